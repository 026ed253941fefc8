"""Policies of teams of any size, whatever the form in which networks are held."""

import dataclasses

import pytest
import torch

from tests.support.update_rungs import KINDS, Kind, Side, toggled
from uavlab.collectors.world_source import survey
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Update
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.learners.masac import FORMS
from uavlab.learners.masac.loop import MASACLoop
from uavlab.learners.masac.masac import MASAC, MASACConfig, UpdateNoise, list_tensors
from uavlab.runtime.runtime import Runtime


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
    with pytest.raises(ConfigError, match=r"trained on group 0 .*, group 1 "):
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
            loaded = MASAC.load_policy(learner.config, side.env.spec, team.spec, learner.parameters())
            torch.testing.assert_close(alone, loaded(obs, drawn), rtol=1e-12, atol=1e-12)


def lerp_by_hand(learner: MASAC, before: list[list[float]]) -> list[list[float]]:
    """Return target + tau (critic - target), number by number, from the critics that the learner has now."""
    critics = [tensor.flatten().tolist() for tensor in list_tensors(learner.critic_theta)]
    tau = learner.config.tau
    pairs = zip(before, critics, strict=True)
    return [[old + tau * (new - old) for old, new in zip(*pair, strict=True)] for pair in pairs]


def targets_follow(kind: Kind) -> bool:
    """Return whether targets end where the updated critics pull them, after each of three updates in float64."""
    side = Side({"one": kind}, 2)
    learner, follow = side.learners["one"], []
    for _ in range(3):
        before = [tensor.flatten().tolist() for tensor in list_tensors(learner.target)]
        side.train(1)
        after, expected = list_tensors(learner.target), lerp_by_hand(learner, before)
        close = [
            torch.allclose(tensor.flatten(), torch.tensor(row, dtype=tensor.dtype), rtol=1e-12, atol=1e-14)
            for tensor, row in zip(after, expected, strict=True)
        ]
        follow.append(all(close))
    return all(follow)


@pytest.mark.parametrize("name", KINDS)
def test_targets_move_by_tau_to_the_critics_after_their_step(name: str) -> None:
    assert targets_follow(KINDS[name])


@pytest.mark.parametrize("form", [MASAC, MASACLoop])
@pytest.mark.parametrize("moment", ["before", "never"])
def test_targets_that_move_at_another_time_are_caught(form: type[MASAC], moment: str) -> None:
    class Early(form):  # type: ignore[misc, valid-type]
        def _update(self, batch: Batch, noise: UpdateNoise) -> Update:
            with torch.no_grad():
                for old, new in zip(list_tensors(self.target), list_tensors(self.critic_theta), strict=True):
                    old.lerp_(new, self.config.tau if moment == "before" else 0)
            config, self.config = self.config, dataclasses.replace(self.config, tau=0)
            update = super()._update(batch, noise)
            self.config = config
            return update

    assert not targets_follow(toggled(Early, update="loop" if form is MASACLoop else "batched", acting="batched"))
