"""Spread by hand, against its reference in plain Python, and what holds in every world."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.reference_spread import Twin
from uavlab.core.types import leaves
from uavlab.envs.spread import Spread, State
from uavlab.testing import check_env

Place = tuple[float, float]
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def row(values: Any) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def world(pos: list[Place], landmark: list[Place], vel: list[Place] | None = None) -> State:
    """Make one world, at rest by default."""
    return State(pos=row(pos), vel=row(vel or [(0.0, 0.0)] * len(pos)), landmark=row(landmark), step=torch.tensor([3]))


def fly(env: Spread, state: State, *action: Place) -> State:
    return env.transition(state, row(action), row([]))


def pay(env: Spread, state: State) -> list[float]:
    """Return the rewards of a step into ``state``."""
    return env.reward(state, torch.zeros_like(state.pos), state)[0].tolist()


def figures(env: Spread, state: State) -> dict[str, float]:
    return {name: value.item() for name, value in env.measure(state, torch.zeros_like(state.pos), state).items()}


# ---- by hand ----

PAIR = Spread(uavs=2, dt=0.1)
TWO = world([(0.0, 0.0), (0.3, 0.4)], [(0.0, 0.05), (0.3, 0.9)], vel=[(0.1, -0.2), (0.0, 0.5)])


def test_noise_fills_the_square_with_uavs_then_landmarks() -> None:
    state = PAIR.initial(row([0.0, 0.5, 0.25, 0.75, 0.5, 0.5, 1 - 2**-53, 0.0]))
    assert state.pos[0].tolist() == [[-1, 0], [-0.5, 0.5]]
    torch.testing.assert_close(state.landmark[0], row([[0, 0], [1, -1]])[0], **EXACT)
    assert (state.vel.abs().max(), state.step.tolist()) == (0, [0])


def test_velocity_approaches_the_action() -> None:
    # After one lag, 1 - 1/e of the way from 0 to 2 units/s; the way flown is 2 lag - 2 lag (1 - 1/e) = 2 lag / e.
    env = Spread(uavs=1, dt=0.2, lag=0.2, max_speed=2.0)
    after = fly(env, world([(0, 0)], [(0, 0)]), (1.0, -0.5))
    rest = math.exp(-1)
    torch.testing.assert_close(after.vel[0], row([[2 * (1 - rest), -(1 - rest)]])[0], **EXACT)
    torch.testing.assert_close(after.pos[0], row([[0.4 * rest, -0.2 * rest]])[0], **EXACT)
    assert after.step.tolist() == [4]


def test_without_action_velocity_fades() -> None:
    after = fly(Spread(uavs=1, dt=0.4, lag=0.4), world([(0, 0)], [(0, 0)], vel=[(1.0, 0.0)]), (0.0, 0.0))
    assert after.vel[0, 0].tolist() == pytest.approx([math.exp(-1), 0])
    assert after.pos[0, 0].tolist() == pytest.approx([0.4 * (1 - math.exp(-1)), 0])


def test_actions_beyond_one_count_as_one() -> None:
    far, near = (fly(PAIR, TWO, (size, 0.0), (0.0, -size)) for size in (5.0, 1.0))
    assert torch.equal(far.pos, near.pos)


def test_a_wall_stops_one_axis() -> None:
    after = fly(Spread(uavs=1, dt=0.1), world([(0.99, 0.0)], [(0, 0)], vel=[(1.0, 0.5)]), (1.0, 0.5))
    assert after.pos[0, 0].tolist() == [1.0, pytest.approx(0.05)]
    assert after.vel[0, 0].tolist() == [0.0, pytest.approx(0.5)]


def test_observation_by_hand() -> None:
    three = world([(0, 0), (0.5, 0), (0, -0.5)], [(1, 1), (0, 0.25), (-1, 0)], vel=[(0.1, 0.2), (0, 0), (0, 0)])
    first, second, _ = Spread().observe(three)[0].tolist()
    assert first == [0.1, 0.2, 0, 0, 1, 1, 0, 0.25, -1, 0, 0.5, 0, 0, -0.5]
    assert second == [0, 0, 0.5, 0, 0.5, 1, -0.5, 0.25, -1.5, 0, -0.5, -0.5, -0.5, 0]  # first the third, then the first


BARE = replace(PAIR, cover_reward=0.0, distance_cost=0.0, collision_cost=0.0)
CLOSE, TOUCHING = ([(0.0, 0.0), (distance, 0.0)] for distance in (0.099, 0.1))
OUT = [(0.0, 0.9), (0.9, 0.9)]
CASES = {
    "covered": ({"cover_reward": 3.0}, TWO, (1.5, 1.5)),  # one of two, 0.05 away
    "at the radius": ({"cover_reward": 3.0}, world([(0, 0), (1, 1)], [(0.1, 0), (0, 0.2)]), (0, 0)),
    "one covers two": ({"cover_reward": 3.0}, world([(0, 0), (1, 1)], [(0.05, 0), (0, 0.05)]), (3, 3)),
    "two at one": ({"cover_reward": 3.0}, world([(0, 0.05), (0, 0)], [(0, 0), (1, 1)]), (1.5, 1.5)),
    "distance": ({"distance_cost": 2.0}, TWO, (-0.55, -0.55)),  # 0.05 and 0.5 units
    "collision": ({"collision_cost": 4.0}, world(CLOSE, OUT), (-4, -4)),
    "no collision": ({"collision_cost": 4.0}, world(TOUCHING, OUT), (0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_reward_terms(name: str) -> None:
    prices, state, expected = CASES[name]
    assert pay(replace(BARE, **prices), state) == pytest.approx(expected, abs=1e-12)


def test_only_those_who_collide_pay_and_once() -> None:
    crowd = world([(0, 0), (0.05, 0), (0, 0.05), (1, 1)], [(0, 0), (0.05, 0), (0, 0.05), (1, 1)])
    env = Spread(uavs=4, collision_cost=0.25)
    assert pay(env, crowd) == pytest.approx([0.75, 0.75, 0.75, 1.0])
    assert figures(env, crowd) == {"covered": 1.0, "collisions": 3.0}


def test_figures_by_hand() -> None:
    assert figures(PAIR, TWO) == {"covered": 0.5, "collisions": 0.0}
    assert figures(PAIR, world(CLOSE, OUT)) == {"covered": 0.0, "collisions": 1.0}


# ---- against the reference ----

WORLDS = 6
VARIANTS = {
    "default": Spread(),
    "alone": Spread(uavs=1, dt=1.0, max_speed=0.3),
    "many": Spread(uavs=7, cover_radius=0.4, collision_radius=0.3, dt=0.05),
    "prices": Spread(uavs=2, cover_reward=2.5, distance_cost=0.3, collision_cost=0.7, cover_radius=0.5, lag=1.0),
    "fast": Spread(uavs=5, max_speed=4.0, lag=0.3, dt=0.2, collision_radius=0.5),
}


def compare(env: Spread, steps: int = 40) -> dict[str, int]:
    """Step environment and reference under random actions that change now and then; return counts of events.

    Raises:
        AssertionError: They differ; the message says where.
    """
    generator = torch.Generator().manual_seed(2)
    noise = torch.rand(WORLDS, env.spec.initial_noise, generator=generator, dtype=torch.float64)
    state, twins = env.initial(noise), [Twin(env, each.tolist()) for each in noise]
    events = dict.fromkeys(("covered", "collisions", "walls"), 0)
    action = torch.zeros(WORLDS, env.uavs, 2, dtype=torch.float64)
    for step in range(steps):
        if step % 8 == 0:
            action = 2.6 * torch.rand(action.shape, generator=generator, dtype=torch.float64) - 1.3
        before, state = state, env.transition(state, action, action.new_zeros(WORLDS, 0))
        obs, reward = env.observe(state), env.reward(before, action, state)
        measured = env.measure(before, action, state)
        for b, twin in enumerate(twins):
            twin.step(action[b].tolist())
            agree("pos", state.pos[b], twin.pos, step)
            agree("vel", state.vel[b], twin.vel, step)
            agree("landmark", state.landmark[b], twin.landmarks, step)
            agree("step", state.step[b], twin.step_count, step)
            agree("obs", obs[b], [twin.observation(i) for i in range(env.uavs)], step)
            agree("reward", reward[b], [twin.reward(i) for i in range(env.uavs)], step)
            agree("covered", measured["covered"][b], twin.covered(), step)
            agree("collisions", measured["collisions"][b], twin.collisions(), step)
            events["covered"] += twin.covered() > 0
            events["collisions"] += twin.collisions()
            events["walls"] += any(abs(x) == 1 for place in twin.pos for x in place)
    return events


def agree(name: str, got: Tensor, expected: Any, step: int) -> None:
    expected = torch.tensor(expected, dtype=got.dtype)
    assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6), f"{name}: {got} for {expected}, step {step}"


@pytest.mark.parametrize("name", VARIANTS)
def test_rollouts_equal_the_reference(name: str) -> None:
    compare(VARIANTS[name])


def test_rollouts_meet_every_event() -> None:
    assert min(compare(VARIANTS["many"], steps=60).values()) >= 5


class Euler(Spread):
    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        vel = state.vel + self.dt / self.lag * (self.max_speed * action.clamp(-1, 1) - state.vel)
        pos = (state.pos + self.dt * vel).clamp(-1, 1)
        return State(pos, vel, state.landmark, state.step + 1)


class Bounce(Spread):
    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        after = super().transition(state, action, noise)
        return replace(after, vel=torch.where(after.pos.abs() == 1, -state.vel, after.vel))


class Turned(Spread):
    def observe(self, state: State) -> Tensor:
        obs = super().observe(state)
        return torch.cat((obs[..., :-4], obs[..., -2:], obs[..., -4:-2]), -1)


class OwnNearest(Spread):
    def gap(self, state: State) -> Tensor:
        return super().gap(state).mT


class Shared(Spread):
    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        return super().reward(state, action, after).mean(1, keepdim=True).expand(-1, self.uavs)


class Early(Spread):
    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        return super().reward(state, action, state)


class Twice(Spread):
    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Tensor]:
        figures = super().measure(state, action, after)
        return {**figures, "collisions": 2 * figures["collisions"]}


MUTANTS = {Euler: "pos", Bounce: "vel", Turned: "obs", OwnNearest: "reward", Shared: "reward", Early: "reward"}


@pytest.mark.parametrize(("mutant", "name"), [*MUTANTS.items(), (Twice, "collisions")], ids=lambda each: str(each))
def test_comparison_catches_mutants(mutant: type[Spread], name: str) -> None:
    with pytest.raises(AssertionError, match=f"^{name}: "):
        compare(mutant(uavs=4, cover_radius=0.3, collision_radius=0.4), steps=60)


# ---- what holds in every world ----


def starts(env: Spread, worlds: int = 50) -> State:
    noise = torch.rand(worlds, env.spec.initial_noise, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return env.initial(noise)


def actions(env: Spread, worlds: int = 50) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return 2 * torch.rand(worlds, env.uavs, 2, generator=generator, dtype=torch.float64) - 1


def halved(env: Spread) -> float:
    """Return how much two steps of half the time differ from one, where no wall is near."""
    state, action, nothing = starts(env), actions(env), torch.zeros(50, 0)
    state = replace(state, pos=state.pos / 2, vel=action.flip(1))
    whole, half = env.transition(state, action, nothing), replace(env, dt=env.dt / 2)
    twice = half.transition(half.transition(state, action, nothing), action, nothing)
    return max((whole.pos - twice.pos).abs().max().item(), (whole.vel - twice.vel).abs().max().item())


def test_motion_does_not_depend_on_the_length_of_steps() -> None:
    assert halved(Spread()) < 1e-12
    assert halved(Euler()) > 1e-3


def renumbered(env: Spread) -> float:
    """Return how much results change if UAVs are renumbered in turn, apart from their order."""
    state, action, nothing = starts(env), actions(env), torch.zeros(50, 0)
    other = replace(state, pos=state.pos.roll(1, 1), vel=state.vel.roll(1, 1))
    after, turned = env.transition(state, action, nothing), env.transition(other, action.roll(1, 1), nothing)
    pairs = (env.observe, lambda each: each.pos, lambda each: env.reward(each, action, each))
    return max((f(after).roll(1, 1) - f(turned)).abs().max().item() for f in pairs)


class Ordered(Spread):
    def _others(self, state: State) -> Tensor:
        index = torch.tensor([[j for j in range(self.uavs) if j != i] for i in range(self.uavs)])
        return state.pos[:, index]


def test_no_uav_is_special() -> None:
    assert renumbered(Spread(uavs=4)) < 1e-12
    assert renumbered(Ordered(uavs=4)) > 0.1


def extremes(env: Spread) -> tuple[float, float, float]:
    """Return the largest coordinate, the smallest reward and the largest one of a rollout under corner actions."""
    state, action = starts(env), actions(env).sign()
    rewards, reach = [], 0.0
    for _ in range(env.horizon):
        before, state = state, env.transition(state, action, torch.zeros(50, 0))
        rewards.append(env.reward(before, action, state))
        reach = max(reach, state.pos.abs().max().item())
    return reach, torch.stack(rewards).min().item(), torch.stack(rewards).max().item()


class Open(Spread):
    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        return replace(state, pos=state.pos + self.dt * self.max_speed * action, step=state.step + 1)


def test_uavs_stay_inside_and_rewards_are_about_one() -> None:
    reach, least, most = extremes(Spread(uavs=6))
    assert reach == 1
    assert -1 - math.sqrt(8) <= least < most <= 1  # a collision and the diagonal of the square; all covered
    assert extremes(Open(uavs=6))[0] > 1


def test_the_task_has_no_end() -> None:
    state = replace(starts(Spread()), step=torch.full((50,), 10**6))
    assert not Spread().terminated(state).any()


def test_sizes_follow_the_team() -> None:
    for uavs in (1, 2, 64):
        env = Spread(uavs=uavs)
        state = starts(env, 2)
        assert env.observe(state).shape == (2, uavs, env.spec.obs)
        assert env.reward(state, state.pos, state).shape == (2, uavs)
        assert env.spec.groups == (0,) * uavs


def test_states_are_new() -> None:
    env = Spread()
    state, action = starts(env), actions(env)
    copies = {name: leaf.clone() for name, leaf in leaves(state)}
    env.reward(state, action, env.transition(state, action, torch.zeros(50, 0)))
    assert all(torch.equal(leaf, copies[name]) for name, leaf in leaves(state))


@pytest.mark.parametrize("name", VARIANTS)
def test_contract_of_variants(name: str) -> None:
    report = check_env(replace(VARIANTS[name], horizon=15), worlds=3, steps=20)
    assert report.truncated > 0 == report.terminated
