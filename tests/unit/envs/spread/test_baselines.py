"""The plan: assignments against all permutations, flights to the landmarks, and what a worse plan reaches."""

import math
from itertools import permutations

import pytest
import torch
from torch import Tensor

from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.rng import Streams
from uavlab.envs import spread as plans
from uavlab.envs.spread import Spread, State
from uavlab.evaluation import Planner, episodes, summary


def gaps(uavs: int, worlds: int = 40) -> Tensor:
    return torch.rand(worlds, uavs, uavs, generator=torch.Generator().manual_seed(3))


def lengths(gap: Tensor, number: Tensor) -> list[float]:
    return gap.gather(2, number[..., None]).sum((1, 2)).tolist()


def shortest_slowly(gap: list[list[float]]) -> float:
    """Return the smallest sum of distances over all assignments."""
    uavs = range(len(gap))
    return min(sum(gap[i][choice[i]] for i in uavs) for choice in permutations(uavs))


def greedy_slowly(gap: list[list[float]]) -> list[int]:
    """Return the landmark of each UAV, nearest pairs first."""
    number: dict[int, int] = {}
    for _, uav, landmark in sorted((gap[i][j], i, j) for i in range(len(gap)) for j in range(len(gap))):
        if uav not in number and landmark not in number.values():
            number[uav] = landmark
    return [number[uav] for uav in range(len(gap))]


@pytest.mark.parametrize("uavs", [1, 2, 3, 4])
def test_the_shortest_assignment_is_the_best_of_all(uavs: int) -> None:
    gap = gaps(uavs)
    expected = [shortest_slowly(each) for each in gap.tolist()]
    assert lengths(gap, plans.shortest(gap)) == pytest.approx(expected, rel=1e-6)
    greedy = lengths(gap, plans.nearest_first(gap))
    assert uavs < 3 or sum(greedy) > 1.01 * sum(expected)  # another assignment would be seen


@pytest.mark.parametrize("uavs", [1, 3, 9])
def test_nearest_pairs_come_first(uavs: int) -> None:
    gap = gaps(uavs)
    number = plans.nearest_first(gap)
    assert number.tolist() == [greedy_slowly(each) for each in gap.tolist()]
    assert uavs == 1 or number.tolist() != gap.argmin(2).tolist()  # two of them would go to one landmark


def test_four_uavs_take_the_shortest_paths_and_five_the_nearest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("shortest", "nearest_first"):
        plan = getattr(plans, name)
        monkeypatch.setattr(plans, name, lambda gap, name=name, plan=plan: calls.append(name) or plan(gap))
    for uavs in (4, 5):
        env = Spread(uavs=uavs)
        plans.assignment(env, env.initial(torch.rand(2, env.spec.initial_noise)), torch.rand(2, uavs))
    assert calls == ["shortest", "nearest_first"]


def test_uavs_do_not_cross() -> None:
    """The first UAV is nearest to the second landmark, but then the second UAV would fly past it."""
    env = Spread(uavs=2)
    place = torch.tensor([[[0.0, 0.0], [0.5, 0.0]]])
    landmark = torch.tensor([[[-0.6, 0.0], [0.1, 0.0]]])
    state = State(place, torch.zeros(1, 2, 2), landmark, torch.zeros(1, dtype=torch.int64))
    action = plans.assignment(env, state, torch.zeros(1, 2))
    assert torch.equal(action[0], torch.tensor([[-1.0, 0.0], [-1.0, 0.0]]))  # to the west, both
    assert plans.nearest_first(env.gap(state)).tolist() == [[1, 0]]


def test_steering_by_hand() -> None:
    # response 0.2 s: 0.02 / 0.04 - 2 x 0.1 / 0.2 = -0.5 units/s^2; (0.4 x -0.5 + 0.1) / 2 = -0.05.
    action = plans.steer(Spread(max_speed=2.0, dt=0.1), torch.tensor([[[0.02, 9.0]]]), torch.tensor([[[0.1, 0.0]]]))
    assert action[0, 0].tolist() == pytest.approx([-0.05, 1.0])


def fly(env: Spread, plan: object, count: int = 100) -> dict[str, float]:
    results = episodes(env, Planner(plan), Streams([0]), count)  # type: ignore[arg-type]
    return {name: figure["mean"] for name, figure in summary(results, env.metrics).items()}


@pytest.mark.parametrize(
    "env", [Spread(), Spread(uavs=1), Spread(uavs=8), Spread(dt=0.02, horizon=250), Spread(dt=0.25, horizon=30)]
)
def test_the_plan_covers_all_landmarks(env: Spread) -> None:
    assert ENVIRONMENTS["spread"].baselines == {"assignment": plans.assignment}
    assert fly(env, plans.assignment)["covered"] >= 0.99


def head_for_the_nearest(env: Spread, state: State, noise: Tensor) -> Tensor:
    number = env.gap(state).argmin(2)
    target = state.landmark.gather(1, number[..., None].expand(-1, -1, 2))
    return plans.steer(env, target - state.pos, state.vel)


def test_without_agreement_a_third_stays_uncovered() -> None:
    plain, agreed = fly(Spread(), head_for_the_nearest), fly(Spread(), plans.assignment)
    assert plain["covered"] < 0.8 < agreed["covered"]
    assert plain["collisions"] > 5 * agreed["collisions"]


def test_the_approach_does_not_overshoot() -> None:
    env = Spread(uavs=1, horizon=60)
    state = State(torch.tensor([[[-0.9, 0.0]]]), torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), torch.tensor([0]))
    path = []
    for _ in range(env.horizon):
        state = env.transition(state, plans.assignment(env, state, torch.zeros(1, 1)), torch.zeros(1, 0))
        path.append(state.pos[0, 0, 0].item())
    assert max(path) < 0.02
    assert math.isclose(path[-1], 0.0, abs_tol=1e-3)
