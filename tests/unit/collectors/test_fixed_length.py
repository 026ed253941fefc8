"""Steps of worlds that go on: a batch can be stepped again by hand, ends are marked, and a state restores them."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.collectors.fixed_length import FixedLengthCollector, FixedLengthConfig
from uavlab.core.errors import DivergedError
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, Metric, leaves, select, tensors, tree_map
from uavlab.ops.action_sampling import sample_in_turn
from uavlab.runtime.runtime import Runtime

RT = Runtime()


@tensors
class State:
    pos: torch.Tensor  # B A
    step: torch.Tensor  # B


@dataclass(frozen=True)
class Walk:
    """Two agents walk on a line; the task of one ends beyond 1, the world at the time limit or with both tasks."""

    metrics = (Metric("distance", "mean"),)
    score = {"distance": 1.0}  # noqa: RUF012
    spec = EnvSpec(agents=2, obs=1, action=1, horizon=5, dt=1.0, initial_noise=2, step_noise=2, groups=(0, 0))

    def initial(self, noise: torch.Tensor) -> State:
        return State(pos=noise - 0.5, step=torch.zeros(len(noise), dtype=torch.int64))

    def transition(self, state: State, action: torch.Tensor, noise: torch.Tensor) -> State:
        return State(pos=state.pos + action[..., 0] + 0.2 * (noise - 0.5), step=state.step + 1)

    def observe(self, state: State) -> torch.Tensor:
        return state.pos[..., None].clone()

    def reward(self, state: State, action: torch.Tensor, after: State) -> torch.Tensor:
        return -after.pos.abs()

    def terminated(self, state: State) -> torch.Tensor:
        return state.pos.abs() > 1

    def measure(self, state: State, action: torch.Tensor, after: State) -> dict[str, torch.Tensor]:
        return {"distance": after.pos.abs().mean(-1)}


def wander(obs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    return torch.tanh(0.6 * noise)


def source(seeds: tuple[int, ...] = (0, 3), policy: Any = wander, env: Any = None) -> FixedLengthCollector:
    config = FixedLengthConfig(worlds=4, rollout_steps=7, spares=4)
    return FixedLengthCollector(env or Walk(), policy, config, Streams(seeds), RT)


def run(collector: FixedLengthCollector, batches: int) -> list[Any]:
    data = []
    for _ in range(batches):
        collector.before_cycle()
        data.append(collector.next().data)
        collector.after_cycle()
    return data


def test_batches_can_be_stepped_again_by_hand() -> None:
    """Follow all worlds through two batches from the same streams, one world at a time where they end."""
    batches, env, rng = run(source(), 2), Walk(), Streams((0, 3))
    state = env.initial(rng.uniform("worlds", 4, 2).flatten(0, 1))
    ends = limits = deaths = 0
    alive, taken = torch.ones(8, 2, dtype=torch.bool), [0] * 8
    for data in batches:
        spare = env.initial(rng.uniform("pool", 4, 4, 2).transpose(0, 1).flatten(1, 2).flatten(0, 1))
        for t in range(7):
            at = tree_map(lambda leaf, t=t: leaf[:, t].flatten(0, 1), data)
            assert torch.equal(at.obs, env.observe(state))
            action = wander(at.obs, rng.normal("act", 4, 2, 1).flatten(0, 1))
            assert torch.equal(at.action, action)
            after = env.transition(state, action, rng.uniform("step", 4, 2).flatten(0, 1))
            assert torch.equal(at.next_obs, env.observe(after))
            assert torch.equal(at.reward, env.reward(state, action, after))
            assert torch.equal(at.terminated, env.terminated(after))
            assert torch.equal(at.live, alive)
            over = env.terminated(after).all(-1)
            late = (after.step >= 5) & ~over
            assert torch.equal(at.ended, at.terminated | late[:, None])
            ends, limits = ends + int(over.sum()), limits + int(late.sum())
            deaths += int((~alive).sum())
            alive = (alive & ~at.terminated) | (over | late)[:, None]
            picked = torch.tensor([taken[w] % 4 * 8 + w for w in range(8)])
            for w in torch.nonzero(over | late)[:, 0].tolist():
                taken[w] += 1
            state = select(over | late, tree_map(lambda leaf, i=picked: leaf[i], spare), after)
    assert min(ends, limits, deaths) > 0


def test_runs_draw_from_their_own_streams() -> None:
    together, alone = run(source((0, 3)), 2)[1], run(source((3,)), 2)[1]
    for (name, leaf), (_, own) in zip(leaves(together), leaves(alone), strict=True):
        assert torch.equal(leaf[1:], own), name
    assert not torch.equal(together.action[:1], alone.action)


def test_a_state_goes_on_bit_for_bit() -> None:
    one, other = source(), source((7, 8))
    run(one, 2)
    other.rng.load_state_dict(one.rng.state_dict())
    other.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    assert other.steps == 14
    for a, b in zip(run(one, 2), run(other, 2), strict=True):
        for (name, leaf), (_, same) in zip(leaves(a), leaves(b), strict=True):
            assert torch.equal(leaf, same), name


@pytest.mark.parametrize(
    "part", ["worlds.live", "steps", "worlds.state.pos", "worlds.obs", "worlds.replaced", "pool.state.pos"]
)
def test_a_part_that_a_state_lacks_is_missed(part: str) -> None:
    one = source()
    run(one, 2)
    state = one.state_dict()
    assert part in state
    blank = source().state_dict()
    assert part == "steps" or not torch.equal(state[part], blank[part])


def test_maps_are_collected_too() -> None:
    def at_random(obs: Any, noise: torch.Tensor) -> torch.Tensor:
        return sample_in_turn(torch.zeros(obs.legal.shape), obs.legal, obs.target_cell, noise)

    (data,) = run(source(policy=at_random, env=TINY_MISSION), 1)
    legal = data.obs.legal.gather(-1, data.action[..., None])
    assert legal.all()
    horizon = TINY_MISSION.spec.horizon
    assert data.ended[:, horizon - 1].all()
    assert not data.ended[:, : horizon - 1].any()
    assert torch.equal(data.obs.maps[:, 1:horizon], data.next_obs.maps[:, : horizon - 1])
    assert not torch.equal(data.obs.maps[:, horizon], data.next_obs.maps[:, horizon - 1])


def test_a_number_that_is_not_finite_is_refused() -> None:
    with pytest.raises(DivergedError, match="action"):
        source(policy=lambda obs, noise: noise * torch.nan).next()
