"""An external environment keeps the contract of ``Env``: rows are those of a plain loop."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.strangers import Hill, Meadow
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.types import LiveTransition
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.testing import check_env
from uavlab.workers.env import External, State, groups_of
from uavlab.workers.registration import external

HERE = "tests.support.strangers"
NOTHING = torch.zeros(5, 0)


def env_of(factory: str, **arguments: Any) -> External:
    return ENVIRONMENTS[external(f"{HERE}:{factory}", **arguments)].kind(workers=1, copies=32)


def draw(env: External, worlds: int, dice: torch.Generator) -> Tensor:
    spec = env.spec
    if spec.choices:
        return torch.randint(0, 2, (worlds, spec.agents), generator=dice)  # moves that every agent may choose
    return 2 * torch.rand(worlds, spec.agents, spec.action, generator=dice) - 1


def rollout(env: External, steps: int, worlds: int = 5, seed: int = 0) -> list[State]:
    dice = torch.Generator().manual_seed(seed)
    states = [env.initial(torch.rand(worlds, 2, generator=dice))]
    for _ in range(steps):
        states.append(env.transition(states[-1], draw(env, worlds, dice), NOTHING[:worlds]))
    return states


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [("Meadow", {"cut": 8}), ("Meadow", {"moves": False}), ("Hill", {"length": 6}), ("Hill", {"moves": 3})],
)
def test_the_contract_of_environments(factory: str, arguments: dict[str, Any]) -> None:
    report = check_env(replace(env_of(factory, **arguments), horizon=10), worlds=3, steps=12)
    assert report.truncated > 0
    assert report.effect[0] > 0


def test_the_spec_describes_groups_and_deaths() -> None:
    spec = env_of("Meadow").spec
    assert [(part.name, part.agents, part.obs, part.choices) for part in spec.parts] == [
        ("grazer", 2, 3, 3), ("wolf", 1, 4, 2)
    ]  # fmt: skip
    assert (spec.agents, spec.obs, spec.action, spec.choices, spec.horizon, spec.deaths) == (3, 4, 1, 3, 12, True)
    assert spec.groups == (0, 0, 1)
    alone = env_of("Hill")
    assert (alone.spec.agents, alone.spec.obs, alone.spec.action, alone.spec.horizon) == (1, 4, 2, 1000)
    assert (alone.spec.parts, alone.spec.deaths, alone.spec.choices) == ((), False, 0)
    assert [group.name for group in groups_of(alone.description)] == ["agent"]


def test_seeds_come_from_two_numbers_of_noise() -> None:
    env = env_of("Hill")
    noise = torch.tensor([[0.0, 0.0], [0.5, 0.25], [1 - 2.0**-24, 1 - 2.0**-24]])
    state = env.initial(noise)
    assert state.seed.tolist() == [0, 16384 * 65536 + 16384, 32767 * 65536 + 65535]
    assert int(state.seed.max()) == 2**31 - 1
    own = Hill()
    for seed, obs in zip(state.seed.tolist(), state.obs, strict=True):
        assert obs[0, 0] == np.float32(own.reset(seed=seed)[0]["place"][0])


def test_worlds_that_are_not_needed_are_blank() -> None:
    env, noise = env_of("Meadow"), torch.rand(4, 2, generator=torch.Generator().manual_seed(1))
    needed = torch.tensor([False, True, False, True])
    some, every = env.initial_where(noise, needed), env.initial(noise)
    assert torch.equal(some.obs.features[needed], every.obs.features[needed])
    assert not some.obs.features[~needed].any()
    assert torch.equal(some.seed, every.seed)
    assert some.key[~needed].tolist() == [0, 0]
    assert not env.initial_where(noise, needed & False).obs.features.any()


class Plain:
    """One world of the environment, stepped by a plain loop as its authors would; deaths and padding by hand."""

    def __init__(self, moves: bool, cut: int) -> None:
        self.env, self.moves = Meadow(moves, cut=cut), moves
        self.order = ("grazer_0", "grazer_1", "wolf_0")

    def start(self, seed: int) -> None:
        self.seen, _ = self.env.reset(seed=seed)
        self.over = dict.fromkeys(self.order, False)
        self.step_number = 0

    def obs(self) -> list[list[float]]:
        rows = []
        for name in self.order:
            own = self.seen.get(name, np.zeros(4, np.float32))
            own = own["observation"] if isinstance(own, dict) else own
            rows.append([*own.tolist(), *[0.0] * (4 - len(own))])
        return rows

    def step(self, actions: list[Any]) -> dict[str, Any]:
        live = [not self.over[name] for name in self.order]
        given = {}
        for n, name in enumerate(self.order):
            if not self.over[name]:
                low, high = (np.array([-1.0, 0.0]), 3.0) if name == "wolf_0" else (np.array([-1.0]), 3.0)
                unit = np.array(actions[n], np.float64)[: len(low)] if not self.moves else None
                given[name] = (
                    int(actions[n]) if unit is None else (low + (high - low) * (unit + 1) / 2).astype(np.float32)
                )
        self.step_number += 1
        self.seen, rewards, ends, cuts, _ = self.env.step(given)
        late = not self.env.agents and any(cuts[name] and not ends[name] for name in given)
        for name in given:
            self.over[name] = ends[name] or (cuts[name] and not late)
        return {
            "reward": [float(np.float32(rewards.get(name, 0.0))) for name in self.order],
            "next_obs": self.obs(),
            "terminated": [self.over[name] for name in self.order],
            "truncated": late,
            "live": live,
        }


@pytest.mark.parametrize(("moves", "cut"), [(True, 0), (False, 0), (True, 5)])
def test_rows_are_those_of_a_plain_loop(moves: bool, cut: int) -> None:
    env, dice, count = env_of("Meadow", moves=moves, cut=cut), torch.Generator().manual_seed(3), 4
    first, spare = torch.rand(count, 2, generator=dice), torch.rand(6, count, 2, generator=dice)
    worlds: Any = start_worlds(env, first, deaths=True)
    pool = make_pool(env, spare, worlds)
    assert pool.obs is None
    plain, seeds, taken = [Plain(moves, cut) for _ in range(count)], env.initial(first).seed.tolist(), [0] * count
    reserve = env.initial(spare.flatten(0, 1)).seed.view(6, count)
    for twin, seed in zip(plain, seeds, strict=True):
        twin.start(seed)
    ends = set()
    for _ in range(40):
        action = draw(env, count, dice)
        obs = worlds.obs.features if moves else worlds.obs
        assert obs.tolist() == [twin.obs() for twin in plain]
        worlds, row = advance(env, worlds, action, NOTHING[:count], pool)
        rows = [twin.step(action[n].tolist()) for n, twin in enumerate(plain)]
        assert isinstance(row, LiveTransition)
        following = row.next_obs.features if moves else row.next_obs
        for name, value in {**vars(row), "next_obs": following}.items():
            if name in rows[0]:
                assert value.tolist() == [each[name] for each in rows], name
        for n, (twin, each) in enumerate(zip(plain, rows, strict=True)):
            ends |= (
                {("cut" if each["truncated"] else "over")} if each["truncated"] or all(each["terminated"]) else set()
            )
            if each["truncated"] or all(each["terminated"]):
                twin.start(int(reserve[taken[n] % 6, n]))
                taken[n] += 1
    assert sum(taken) > 8
    assert "cut" in ends


def test_a_world_whose_copy_is_gone_is_truncated_where_it_stands_and_starts_again() -> None:
    env, dice = env_of("Meadow"), torch.Generator().manual_seed(1)
    worlds: Any = start_worlds(env, torch.rand(5, 2, generator=dice), deaths=True)
    pool = make_pool(env, torch.rand(2, 5, 2, generator=dice), worlds)
    worlds, _ = advance(env, worlds, draw(env, 5, dice), NOTHING, pool)
    before = worlds
    env._pool.release(worlds.state.key[:2].tolist())
    assert env.inexact() == []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        worlds, row = advance(env, worlds, draw(env, 5, dice), NOTHING, pool)
        again, _ = advance(env, before, draw(env, 5, dice), NOTHING, pool)  # whose copies have gone on
    assert row.truncated.tolist() == [True, True, False, False, False]
    assert torch.equal(row.next_obs.features[:2], before.obs.features[:2])
    assert not row.reward[:2].any()
    assert row.reward[2:].any()
    assert worlds.state.step.tolist() == [0, 0, 2, 2, 2]
    assert again.replaced.tolist() == [1] * 5
    assert env.record()["gone"] == 7
    assert env.inexact() == [f"{HERE}:Meadow: worlds without a copy were truncated where they stood, and started again"]
    assert replace(env).inexact() == []  # that of another run
    assert [*map(str, (each.message for each in caught))] == [
        f"{HERE}:Meadow: a world had no copy, as after a resume, and is truncated where it stands; the run is not "
        "exact. Further ones are counted in run.json."
    ]


def test_a_world_stays_as_it_is_after_its_end() -> None:
    env = env_of("Hill", length=4)
    *_, last = states = rollout(env, 7)
    assert states[3].cut.tolist() == [False] * 5
    assert states[4].cut.tolist() == [True] * 5
    assert not states[4].ended.any()
    assert torch.equal(last.obs, states[4].obs)
    assert torch.equal(last.key, states[4].key)
    assert not last.reward.any()
    assert last.step.tolist() == [7] * 5
    short = replace(env, horizon=3)
    *_, over = states = rollout(short, 5)
    assert torch.equal(over.obs, states[3].obs)
    assert not over.cut.any()  # the horizon is not the environment's


def test_an_agent_that_is_truncated_alone_has_ended() -> None:
    env = env_of("lone_leaver")
    states = rollout(env, 4, worlds=2)
    assert [state.ended[0].tolist() for state in states] == [[False, False], [False, False], *[[True, False]] * 3]
    assert [bool(state.cut[0]) for state in states] == [False, False, False, False, True]


def test_groups_have_returns_of_their_own() -> None:
    env = env_of("Meadow")
    assert [metric.name for metric in env.metrics] == ["grazer_return", "wolf_return"]
    assert env.group_scores == {"grazer": {"grazer_return": 1.0}, "wolf": {"wolf_return": 1.0}}
    before, after = rollout(env, 1)
    figures = env.measure(before, NOTHING, after)
    assert torch.allclose(figures["grazer_return"], after.reward[:, :2].mean(1))
    assert torch.equal(figures["wolf_return"], after.reward[:, 2])
    assert env_of("Hill").measure(before, NOTHING, after) == {}
