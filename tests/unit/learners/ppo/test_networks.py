"""What actors and critics of a team see, agent by agent."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_mapping import TINY_MISSION
from tests.support.sighted import Sighted
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, MapObs, Scale, tree_map
from uavlab.envs.spread import Spread
from uavlab.envs.target_assignment.env import Assignment
from uavlab.learners.ppo.networks import MapTeam, VectorTeam, own_first
from uavlab.learners.ppo.ppo import MAPPOConfig, make_team
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


def seeing(critic: str, drop: bool = False, **changes: Any) -> tuple[Tensor, ...]:
    """Return what a team on maps with features computes, and the same agent by agent without ``drop``ping features."""
    env = Sighted(**changes)
    spec, rng = env.spec, Streams([0, 1], dtype=torch.float64)
    team = MapTeam(spec, 4, (3, 2), 8, critic == "central")
    center, spread = rng.normal("center", 2, 3), 0.5 + rng.uniform("spread", 2, 3)
    actor, value = (each.flatten(0, 1) for each in team.initial(Scale(center=center, spread=spread), rng))
    state = env.initial(rng.uniform("start", 3, spec.initial_noise).flatten(0, 1))
    obs = tree_map(lambda leaf: leaf.unflatten(0, (2, 3)), env.observe(state))
    obs = replace(obs, maps=rng.normal("maps", 3, *obs.maps.shape[2:]), features=rng.normal("seen", 3, 2, 3))
    acts, values = torch.zeros(2, 3, 2, 2).double(), torch.zeros(2, 3, 2).double()
    for run in range(2):
        for row in range(3):
            for agent in range(2):
                maps, own = obs.maps[run, row, agent], obs.features[run, row, agent]
                features = own * (not drop)
                acts[run, row, agent] = team.actor_net(actor[run : run + 1], maps[None, None], features[None, None])[
                    0, 0
                ]
                if critic == "central":
                    more = obs.team[run, row]
                    maps = torch.cat((maps, centre_maps(more, obs.place[run, row, agent]) if env.centred else more))
                    features = torch.cat((features, obs.features[run, row, 1 - agent]))  # its own, then the other one's
                values[run, row, agent] = team.critic_net(value[run : run + 1], maps[None, None], features[None, None])
    assert (team.actor_net.features, team.critic_net.features) == (3, 6 if critic == "central" else 3)
    assert team.actor_net.outputs == 2  # two moves, or a mean and a log standard deviation
    torch.testing.assert_close(team.act_in_turn(actor, obs), team.act(actor, obs), rtol=1e-12, atol=1e-12)
    return team.act(actor, obs), team.value(value, obs), acts, values


@pytest.mark.parametrize("changes", [{}, {"centred": True}, {"moves": True, "centred": True}])
@pytest.mark.parametrize("critic", ["central", "own"])
def test_a_team_sees_maps_beside_features(critic: str, changes: dict[str, Any]) -> None:
    act, value, slow_act, slow_value = seeing(critic, team=True, **changes)
    torch.testing.assert_close(act, slow_act, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(value, slow_value, rtol=1e-9, atol=1e-9)
    _, _, blind_act, blind_value = seeing(critic, drop=True, team=True, **changes)
    assert (act - blind_act).abs().max() > 1e-4
    assert (value - blind_value).abs().max() > 1e-4


def test_first_weights_follow_the_features_of_the_first_agent_and_of_all() -> None:
    """Features at their means give what zeros give with plain first weights."""
    team, plain = MapTeam(Sighted().spec, 4, (3, 2), 8, True), Streams([0], dtype=torch.float64)
    nets, means = (team.actor_net, team.critic_net), torch.arange(6.0).double().view(1, 2, 3)
    rows = team.initial(Scale(center=means, spread=means + 1), Streams([0], dtype=torch.float64))
    maps = torch.ones(1, 1, 2, 4, 4).double()
    for net, name, row, mean in zip(nets, ("actor", "critic"), rows, (means[:, :1], means.view(1, 1, 6)), strict=True):
        expected = net(net.initial(plain.uniform(name, net.count)), maps, 0 * mean)
        torch.testing.assert_close(net(row[:, 0], maps, mean), expected, rtol=1e-9, atol=1e-9)


def test_own_features_come_first() -> None:
    rows = own_first(torch.tensor([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]]))
    assert rows[0, 0].tolist() == [[1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 1, 2], [5, 6, 1, 2, 3, 4]]


def test_maps_alone_have_the_networks_that_they_had() -> None:
    team = MapTeam(TINY_MISSION.spec, 4, (3, 2), 8, central=False)
    side, moves = TINY_MISSION.spec.side - 3, TINY_MISSION.spec.choices
    assert team.actor_net.weights == [(3, 3, 7, 4), (2, 2, 4, 4), (side * side * 4, 8), (8, moves)]
    actor, _ = team.initial(None, Streams([0]))
    assert torch.equal(actor[:, 0], team.actor_net.initial(Streams([0]).uniform("actor", team.actor_net.count)))


@pytest.mark.parametrize("positions", [True, False])
def test_networks_of_entities_see_positions_as_set(positions: bool) -> None:
    spec = Assignment().spec
    team = make_team(MAPPOConfig(positions=positions), spec, spec)
    assert (team.actor_net.positions, team.critic_net.positions) == (positions, positions)
    assert (team.actor_net.pairs, team.critic_net.pairs) == (True, False)


@pytest.mark.parametrize(
    ("env", "config"),
    [
        (Spread(), MAPPOConfig()),
        (Spread(), MAPPOConfig(memory=4)),
        (Assignment(), MAPPOConfig(layers=1)),
        (TINY_MISSION, MAPPOConfig()),
    ],
    ids=["vectors", "memory", "entities", "maps"],
)
def test_networks_are_created_before_anything_is_compiled(env: Any, config: MAPPOConfig) -> None:
    """The compiler of torch 2.11 cannot create them in what it compiles."""
    assert {"actor_net", "critic_net"} <= vars(make_team(config, env.spec, env.spec)).keys()
