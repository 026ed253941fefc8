"""What actors and critics of a team see, agent by agent."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, MapObs, Scale, tree_map
from uavlab.learners.ppo.acting import make_team
from uavlab.learners.ppo.config import MAPPOConfig
from uavlab.learners.ppo.networks import MapTeam, VectorTeam
from uavlab.nets.mlp import StackedMLP
from uavlab.ops.belief_maps import centre_maps

OBS, ACTION, AGENTS = 4, 2, 3
CENTRED = replace(TINY_MISSION, centred=True)


def vectors(central: bool, networks: tuple[int, ...] = (0, 1, 1)) -> tuple[VectorTeam, Tensor, Tensor, Tensor]:
    """Return networks of two runs, their parameters, and observations of five rows."""
    team, rng = (
        VectorTeam(OBS, ACTION, 8, networks, (0, 1, 2) if central else networks, central),
        Streams([0, 1], dtype=torch.float64),
    )
    blank = torch.zeros(2, AGENTS, OBS, dtype=torch.float64)
    actor, critic = team.initial(Scale(center=blank, spread=blank + 1), rng)
    return team, actor.flatten(0, 1), critic.flatten(0, 1), rng.normal("obs", 5, AGENTS, OBS)


def evaluate(net: Any, row: Tensor, x: Tensor) -> Tensor:
    return net(row[None], x[None, None])[0, 0]


@pytest.mark.parametrize("networks", [(0, 1, 1), (0, 1, 2), (0, 0, 0), (0, 1, 0)])
def test_each_agent_acts_by_its_own_network(networks: tuple[int, ...]) -> None:
    team, actor, _, obs = vectors(central=True, networks=networks)
    out, count = team.act(actor, obs), len(set(networks))
    for run, row, agent in ((0, 0, 0), (1, 3, 1), (1, 4, 2)):
        alone = evaluate(team.actor_net, actor[run * count + networks[agent]], obs[run, row, agent])
        torch.testing.assert_close(out[run, row, agent], alone)
    torch.testing.assert_close(team.act_in_turn(actor, obs), out)


@pytest.mark.parametrize("central", [True, False])
def test_a_critic_sees_all_agents_or_its_own(central: bool) -> None:
    team, _, critic, obs = vectors(central)
    value, count = team.value(critic, obs), 3 if central else 2
    for run, row, agent in ((0, 0, 0), (1, 3, 1), (1, 4, 2)):
        seen = obs[run, row].flatten() if central else obs[run, row, agent]
        alone = evaluate(team.critic_net, critic[run * count + team.critics[agent]], seen)
        torch.testing.assert_close(value[run, row, agent], alone[0])
    changed = obs.clone()
    changed[:, :, 0] += 1.0
    assert torch.equal(team.value(critic, changed)[..., 1:], value[..., 1:]) is not central


@pytest.mark.parametrize(("critic", "rows"), [("central", 3), ("shared", 2), ("own", 3)])
def test_a_critic_of_a_group_is_evaluated_once(critic: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec(AGENTS, OBS, ACTION, 9, 1.0, 0, 0, groups=(5, 2, 5))
    team, rng = make_team(MAPPOConfig(critic=critic, hidden=8), spec, spec), Streams([0, 1], dtype=torch.float64)
    blank = torch.zeros(2, AGENTS, OBS, dtype=torch.float64)
    _, parameters = team.initial(Scale(center=blank, spread=blank + 1), rng)
    obs, theta, plain = rng.normal("obs", 5, AGENTS, OBS), parameters.flatten(0, 1), StackedMLP.__call__
    seen: list[int] = []
    monkeypatch.setattr(StackedMLP, "__call__", lambda net, *given: seen.append(len(given[0])) or plain(net, *given))
    value = team.value(theta, obs)
    assert (seen, value.shape) == ([2 * rows], (2, 5, AGENTS))
    if critic == "shared":
        assert team.critics == (1, 0, 1)
        for run, agent in ((0, 0), (1, 1), (1, 2)):
            alone = evaluate(team.critic_net, parameters[run, team.critics[agent]], obs[run, 3].flatten())
            torch.testing.assert_close(value[run, 3, agent], alone[0])


def maps(critic: str, env: Any = CENTRED) -> tuple[MapTeam, Tensor, Tensor, MapObs]:
    team, rng = MapTeam(env.spec, 4, (3, 2), 8, critic == "central"), Streams([0])
    actor, value = team.initial(None, rng)
    obs = env.observe(env.initial(rng.uniform("start", 4, env.spec.initial_noise)[0]))
    return team, actor.flatten(0, 1), value.flatten(0, 1), tree_map(lambda leaf: leaf[None], obs)


@pytest.mark.parametrize("critic", ["central", "own"])
def test_the_central_critic_of_maps_sees_what_the_team_sees(critic: str) -> None:
    team, actor, parameters, obs = maps(critic)
    value = team.value(parameters, obs)
    other = replace(obs, team=obs.team + 1.0)
    assert torch.equal(value, team.value(parameters, other)) is (critic == "own")
    seen = obs.maps[0, 1, 2]
    if critic == "central":
        seen = torch.cat((seen, centre_maps(obs.team[0, 1], obs.place[0, 1, 2])))
    torch.testing.assert_close(value[0, 1, 2], evaluate(team.critic_net, parameters[0], seen)[0])
    torch.testing.assert_close(team.act_in_turn(actor, obs), team.act(actor, obs))


def test_maps_that_are_not_centred_are_seen_as_they_are() -> None:
    team, _, parameters, obs = maps("central", TINY_MISSION)
    seen = torch.cat((obs.maps[0, 1, 2], obs.team[0, 1]))
    alone = evaluate(team.critic_net, parameters[0], seen)
    torch.testing.assert_close(team.value(parameters, obs)[0, 1, 2], alone[0])
