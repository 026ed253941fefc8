"""Whole rollouts of LeaderFollower equal its reference, which was written from the published facts alone."""

import dataclasses
import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from tests.support.reference_leader_follower import Seen, Twin
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower, State

WORLDS, STEPS, DEPTH = 8, 300, 12

VARIANTS = {
    "default": LeaderFollower(),
    "published": PUBLISHED,
    "alone": LeaderFollower(followers=0, obstacles=2, sight=2, first_follower_only=True, horizon=50),
    "many": LeaderFollower(followers=9, obstacles=5, obstacle_speed=15.0, sight=3, dt=0.5, horizon=70),
    "moving": LeaderFollower(followers=2, obstacles=3, obstacle_speed=40.0, sight=1, lagged=True, horizon=50),
    "trailing": LeaderFollower(followers=3, trailing=True, formation_radius=90.0, horizon=45),
    "first_follower_only": LeaderFollower(followers=3, first_follower_only=True, formation_radius=90.0),
    "first_and_trailing": LeaderFollower(followers=3, first_follower_only=True, trailing=True, formation_radius=90.0),
    "no_follower_costs": LeaderFollower(followers=2, follower_costs=False, time_cost=0.2),
    "lagged": LeaderFollower(followers=2, lagged=True, horizon=40),
    "every_price": LeaderFollower(
        followers=2, obstacles=2, goal_reward=7.0, crash_cost=3.0, near_cost=0.5, border_cost=0.25, distance_cost=0.02,
        match_bonus=1.5, match_speed=6.0, apart_cost=0.005, time_cost=1.0, formation_radius=120.0, crash_radius=30.0,
    ),
}  # fmt: skip


def pilot(state: State, draws: Tensor, seek: Tensor) -> Tensor:
    """Fly at random, or, in the worlds of ``seek``, towards the goal or the first obstacle with some jitter."""
    target = torch.where((seek == 1)[:, None], state.goal, state.obstacle[:, 0])[:, None]
    dx, dy = (target - state.pos).unbind(-1)
    error = torch.remainder(torch.atan2(-dy, dx) - state.heading + math.pi, 2 * math.pi) - math.pi
    homing = torch.stack((-torch.ones_like(error), (4 * error).clamp(-1, 1) * 0.9 + 0.1 * draws[..., 1]), -1)
    return torch.where((seek == 0)[:, None, None], 1.3 * draws, homing)  # 1.3: the limits are exercised too


def compare(env: LeaderFollower, seed: int = 0, steps: int = STEPS) -> Counter[str]:
    """Step environment and reference through ends and restarts; return counts of events.

    Raises:
        AssertionError: They differ; the message says where.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(WORLDS, env.spec.initial_noise, generator=generator, dtype=torch.float64)
    spare = torch.rand(DEPTH, WORLDS, env.spec.initial_noise, generator=generator, dtype=torch.float64)
    worlds, pool = start_worlds(env, noise), make_pool(env, spare)
    twins, lives = [Twin(env, row.tolist()) for row in noise], [0] * WORLDS
    events: Counter[str] = Counter()
    for b, twin in enumerate(twins):
        check_state(twin.look(), worlds.state, b, f"world {b} at its start")
    for t in range(steps):
        draws = 2 * torch.rand(WORLDS, env.followers + 1, 2, generator=generator, dtype=torch.float64) - 1
        action = pilot(worlds.state, draws, torch.arange(WORLDS) % 3)
        before, nothing = worlds.state, action.new_zeros(WORLDS, 0)
        after = env.transition(before, action, nothing)
        measures = env.measure(before, action.clamp(-1, 1), after)
        assert set(measures) == {m.name for m in env.metrics}
        worlds, row = advance(env, worlds, action, nothing, pool)
        for b, twin in enumerate(twins):
            where = f"world {b}, step {t}"
            seen = twin.step(action[b].tolist())
            check_state(seen, after, b, where)
            near("reward", row.reward[b].tolist(), seen.reward, where)
            near("next_obs", row.next_obs[b].flatten().tolist(), [v for o in seen.obs for v in o], where)
            near("measures", [measures[k][b].item() for k in seen.measures], list(seen.measures.values()), where)
            assert row.terminated[b].tolist() == [seen.terminated] * (env.followers + 1), f"terminated, {where}"
            assert row.truncated[b].item() == seen.truncated, f"truncated, {where}"
            present = seen.obs
            if seen.terminated or seen.truncated:
                twins[b] = Twin(env, spare[lives[b] % DEPTH, b].tolist())
                lives[b] += 1
                present = twins[b].look().obs
            near("obs", worlds.obs[b].flatten().tolist(), [v for o in present for v in o], where)
            events.update(k for k, v in seen.measures.items() if v > 0)
            events.update(("truncated",) if seen.truncated else ())
            events["near"] += seen.obs[0][6]
            events["border"] += any(a.x in (50, 750) or a.y in (50, 650) for a in seen.agents)
    return events


def check_state(seen: Seen, state: State, b: int, where: str) -> None:
    """Compare every leaf of the torch state."""
    agents, leader = seen.agents, seen.agents[0]
    near("heading", state.heading[b].tolist(), [a.heading for a in agents], where)
    near("pos", state.pos[b].flatten().tolist(), [v for a in agents for v in (a.x, a.y)], where)
    near("speed", state.speed[b].tolist(), [a.speed for a in agents], where)
    near("goal", state.goal[b].tolist(), list(seen.goal), where)
    near("obstacle", state.obstacle[b].flatten().tolist(), [v for o in seen.obstacles for v in (o.x, o.y)], where)
    near("drift", state.drift[b].flatten().tolist(), [v for o in seen.obstacles for v in (o.vx, o.vy)], where)
    gap = [math.dist((a.x, a.y), (leader.x, leader.y)) for a in agents[1:]]
    near("gap", state.gap[b].tolist(), gap, where)
    near("to_goal", state.to_goal[b].tolist(), [math.dist((a.x, a.y), seen.goal) for a in agents], where)
    clear = [min(math.dist((a.x, a.y), (o.x, o.y)) for o in seen.obstacles) for a in agents]
    near("clearance", state.clearance[b].tolist(), clear, where)
    assert state.step[b].item() == seen.step, f"step, {where}"


def near(name: str, got: list[float], expected: list[float], where: str) -> None:
    """Compare to 1e-9, relative above 1."""
    assert len(got) == len(expected), f"{name} has {len(got)} numbers for {len(expected)}, {where}"
    for g, e in zip(got, expected, strict=True):
        assert abs(g - e) <= 1e-9 * max(1.0, abs(e)), f"{name}: {g} for {e}, {where}"


@pytest.mark.parametrize("name", VARIANTS)
def test_rollouts_equal_the_twin(name: str) -> None:
    compare(VARIANTS[name], seed=1, steps=100)  # 300 in tests/proofs/test_larger_samples.py


def test_rollouts_meet_every_event() -> None:
    env = dataclasses.replace(VARIANTS["every_price"], horizon=60)
    events = compare(env, seed=3, steps=400)
    rare = {k: events[k] for k in ("completion", "collision", "truncated", "formation_strict", "near", "border")}
    assert min(rare.values()) >= 3, rare


class SwappedAxes(LeaderFollower):
    def _move(self, state: State, action: Tensor) -> dict[str, Tensor]:
        motion = super()._move(state, action)
        return {**motion, "pos": motion["pos"].flip(-1)}


class RewardBefore(LeaderFollower):
    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        return super().reward(state, action, state)


class FasterTurn(LeaderFollower):
    def _move(self, state: State, action: Tensor) -> dict[str, Tensor]:
        return super()._move(state, action * action.new_tensor((1.0, 1.0001)))


class LateEnd(LeaderFollower):
    def terminated(self, state: State) -> Tensor:
        return super().terminated(state) & (state.to_goal[:, :1] < 39)


class TwoStepClock(LeaderFollower):
    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        after = super().transition(state, action, noise)
        return dataclasses.replace(after, step=after.step + 1)


class LooseFormation(LeaderFollower):
    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Tensor]:
        figures = super().measure(state, action, after)
        return {**figures, "formation_strict": figures["formation_mean"].ceil()}


MUTANTS = [
    (SwappedAxes, "pos: "),
    (RewardBefore, "reward: "),
    (FasterTurn, "heading: "),
    (LateEnd, "terminated"),
    (TwoStepClock, "step, "),
    (LooseFormation, "measures: "),
]


@pytest.mark.parametrize(("mutant", "message"), MUTANTS, ids=lambda p: getattr(p, "__name__", ""))
def test_comparison_catches_mutants(mutant: type[LeaderFollower], message: str) -> None:
    with pytest.raises(AssertionError, match=f"^{message}"):
        compare(mutant(followers=2, formation_radius=90.0), seed=1)


def test_comparison_catches_a_quirk_left_out() -> None:
    class Unlagged(LeaderFollower):
        def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
            return LeaderFollower.transition(dataclasses.replace(self, lagged=False), state, action, noise)

    with pytest.raises(AssertionError, match=r"^heading: .*, step 0"):
        compare(Unlagged(lagged=True), seed=1)
