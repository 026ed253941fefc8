"""Policies of teams of any size, whatever the form in which networks are held."""

import dataclasses

import pytest
import torch

from tests.support.update_rungs import KINDS, Side, toggled
from uavlab.collectors.entries import survey
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.learners.masac import FORMS
from uavlab.learners.masac.base import MASACBase, MASACConfig, load_policy
from uavlab.learners.masac.batched import MASAC
from uavlab.runtime.runtime import Runtime


def test_the_base_holds_no_networks():
    with pytest.raises(TypeError, match="abstract"):
        MASACBase(MASACConfig(), LeaderFollower().spec, None, Streams([0]), Runtime())


def test_shared_followers_fly_in_any_number():
    env = LeaderFollower(followers=2)
    rng = Streams([0])
    learner = MASAC(MASACConfig(hidden=16), env.spec, survey(env, rng), rng, Runtime())
    assert learner.actor.parameter.shape[0] == 2  # one network for the leader, one for all followers
    team = LeaderFollower(followers=5)
    obs = torch.rand(1, 3, 1, 7).expand(1, 3, 6, 7)
    action = learner.policy(team.spec)(obs, None)
    assert torch.equal(action[:, :, 1], action[:, :, 5])
    assert not torch.equal(action[:, :, 0], action[:, :, 1])


def test_a_team_without_networks_is_refused():
    env, rng = LeaderFollower(), Streams([0])
    learner = MASAC(MASACConfig(hidden=16, share=False), env.spec, survey(env, rng), rng, Runtime())
    with pytest.raises(ConfigError, match=r"cannot fly networks of groups \(0, 1\)"):
        learner.policy(dataclasses.replace(LeaderFollower(followers=3).spec, groups=(0, 1, 2, 3)))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("share", [False, True])
def test_acting_agent_by_agent_equals_acting_at_once(name: str, share: bool) -> None:
    kinds = {acting: toggled(FORMS[name], update=name, acting=acting) for acting in ("loop", "batched")}
    side = Side(kinds, 3, share, (3, 5))
    side.train(2)
    for team in (side.env, LeaderFollower(followers=4)):
        agents = team.spec.agents
        obs, noise = side.rng.uniform("obs", 6, agents, 7), side.rng.normal("noise", 6, agents, 2)
        for drawn in (noise, None):
            alone, at_once = (learner.policy(team.spec)(obs, drawn) for learner in side.learners.values())
            torch.testing.assert_close(alone, at_once, rtol=1e-12, atol=1e-12)
            learner = side.learners["loop"]
            loaded = load_policy(learner.config, side.env.spec, team.spec, learner.parameters())
            torch.testing.assert_close(alone, loaded(obs, drawn), rtol=1e-12, atol=1e-12)
