"""Worlds are stepped, started and seeded as an independent, plain implementation does it, world by world."""

from typing import Any

import pytest
import torch
from torch import Tensor

import uavlab as ul
from tests.support.mortal import Mortal
from tests.support.plain_worlds import NAMES, PlainWorlds, random_action, small
from tests.support.uneven import Uneven
from uavlab.core.errors import ConfigError
from uavlab.core.types import leaves
from uavlab.interop.simulator import Simulator

CPU = torch.device("cpu")


def simulator(env: Any, worlds: int = 3, seed: int = 5, kind: type[Simulator] = Simulator) -> Simulator:
    own = kind(env, worlds, CPU)
    own.seed(seed)
    own.start()
    return own


def require_equal(sim: Simulator, plain: PlainWorlds) -> None:
    """Compare observations and ends of all worlds."""
    assert sim.live.tolist() == plain.live
    assert sim.truncated.tolist() == plain.late
    assert sim.terminated.tolist() == [not any(live) for live in plain.live]
    batch = dict(leaves(sim.obs))
    for world in range(plain.worlds):
        for name, leaf in leaves(plain.env.observe(plain.states[world])):
            torch.testing.assert_close(batch[name][world], leaf[0], rtol=1e-4, atol=1e-4)


def compare(env: Any, steps: int = 20, kind: type[Simulator] = Simulator) -> None:
    """Run both side by side over the ends of episodes; after each step, worlds that have ended start anew."""
    sim, plain, generator = simulator(env, kind=kind), PlainWorlds(env, 3, 5), torch.Generator().manual_seed(1)
    for _ in range(steps):
        action = random_action(plain, generator)
        reward, _ = sim.step(action)
        torch.testing.assert_close(reward, torch.tensor(plain.step(action)), rtol=1e-4, atol=1e-3)
        require_equal(sim, plain)
        if over := plain.over():
            sim.start(torch.tensor([world in over for world in range(3)]))
            plain.begin(over)
        require_equal(sim, plain)


@pytest.mark.parametrize("name", NAMES)
def test_each_registered_environment_equals_its_slow_twin(name: str) -> None:
    compare(ul.make(name, **small(name)))


@pytest.mark.parametrize(
    "env", [Mortal(), Uneven(), ul.make("leader_follower", followers=3, present=(1, 3), horizon=6)], ids=str
)
def test_groups_deaths_and_absent_agents_equal_their_slow_twin(env: Any) -> None:
    compare(env)


class Unseeded(Simulator):
    def seed(self, seed: int | None) -> None:
        super().seed(None)


class AllAnew(Simulator):
    def start(self, ended: Tensor | None = None) -> None:
        super().start()


class Immortal(Simulator):
    def step(self, action: Tensor) -> Any:
        result = super().step(action)
        self.live = torch.ones_like(self.live)
        return result


class Obeyed(Simulator):
    """Agents that have ended still act."""

    def step(self, action: Tensor) -> Any:
        live, self.live = self.live, torch.ones_like(self.live)
        result = super().step(action)
        self.live = self.live & live
        return result


class Padded(Simulator):
    """Padding reaches the environment."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.padding = None


class Endless(Simulator):
    def step(self, action: Tensor) -> Any:
        result = super().step(action)
        self.truncated = torch.zeros_like(self.truncated)
        return result


CROWDED = ul.make("pursuit", pursuers=3, evaders=1, side=4, obstacles=0, horizon=30)  # worlds end one by one


@pytest.mark.parametrize(
    ("kind", "env"),
    [
        *((kind, Mortal()) for kind in (Unseeded, Immortal, Obeyed, Endless)),
        (AllAnew, CROWDED),
        (Padded, Uneven()),
    ],
)
def test_each_broken_variant_differs_from_the_slow_twin(kind: type[Simulator], env: Any) -> None:
    compare(env, steps=60)
    with pytest.raises(AssertionError):
        compare(env, steps=60, kind=kind)


def test_rewards_ends_and_starts_by_hand() -> None:
    sim = simulator(Mortal(), worlds=2)
    first = sim.obs.features[:, 0, 0].clone()
    for step in range(1, 6):
        before = sim.state.total.clone()
        reward, team = sim.step(torch.tensor([[0, 1, 2], [1, 1, 1]]))
        assert sim.live.tolist() == [[step < 2, step < 3, True]] * 2
        assert sim.truncated.tolist() == [step == 5] * 2
        # an agent that has ended makes its first legal move, the second one
        moves = torch.tensor([[0 if step <= 2 else 1, 1, 2 if step else 1], [1, 1, 1]])
        noise = sim.state.total - before - moves
        assert ((noise >= 0) & (noise < 1)).all()
        torch.testing.assert_close(reward, sim.state.total - before + step)
        torch.testing.assert_close(team, reward.mean(1))
    sim.start(torch.tensor([False, True]))
    assert sim.state.step.tolist() == [5, 0]
    assert sim.live.tolist() == [[False, False, True], [True, True, True]]
    assert sim.truncated.tolist() == [True, False]
    assert sim.obs.features[0, 0, 0] == first[0]
    assert sim.obs.features[1, 0, 0] != first[1]


def test_a_seed_repeats_whole_episodes_whatever_else_draws() -> None:
    def episodes(seed: int | None) -> list[Tensor]:
        sim, seen = Simulator(Mortal(), 2, CPU), []
        sim.seed(seed)
        for _ in range(3):
            sim.start()
            for _ in range(5):
                torch.rand(3)  # the global generator is somebody else's
                seen += [sim.step(torch.ones(2, 3, dtype=torch.int64))[0], sim.obs.features]
        return seen

    def same(a: list[Tensor], b: list[Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    state = torch.get_rng_state()
    torch.manual_seed(0)
    first = episodes(7)
    torch.manual_seed(1)
    assert same(first, episodes(7))
    assert not same(first, episodes(8))
    assert not same(episodes(None), episodes(None))
    torch.set_rng_state(state)
    simulator(Mortal()).step(torch.ones(3, 3, dtype=torch.int64))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("seed", [-1, 0.5, "x", [1]])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"seed: got .*; expected a whole number from 0 up"):
        simulator(Mortal(), seed=seed)


def test_a_step_before_the_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="no world has started; call reset first"):
        Simulator(Mortal(), 1, CPU).step(torch.zeros(1, 3, dtype=torch.int64))
