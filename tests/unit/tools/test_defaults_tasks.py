"""The tasks on which defaults are tried: rewards by hand, masks, and plans against random actions."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import uavlab as ul
from tests.support.default_tasks import brigade, collect, landmarks, registered_tasks, tag, tow

TASKS = (landmarks.Landmarks(), collect.Collect(), tag.Tag(), tow.Tow(), brigade.Brigade())


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Register the tasks for one test."""
    with registered_tasks():
        yield


def row(*values: Any) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


STEP, NONE = torch.tensor([0]), torch.zeros(1, 0, dtype=torch.float64)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_the_contract_is_kept(task: Any) -> None:
    assert "WARNING" not in repr(ul.check_env(task, worlds=3, steps=60))


# ---- landmarks ----

CORNERS = row((0, 0), (1, 0), (0, 1), (1, 1))


def test_landmarks_pay_for_distances_and_collisions() -> None:
    task = landmarks.Landmarks()
    pos = row((0, 0.05), (0, 0), (0.6, 0), (1, 0.7))
    state = landmarks.State(pos, torch.zeros_like(pos), CORNERS, STEP)
    # Nearest: 0 (agent 1), 0.4 (agent 2), 0.95 (agent 0), 0.3 (agent 3): 1.65 in sum. Agents 0 and 1 collide.
    reward = task.reward(state, torch.zeros_like(pos), state)
    torch.testing.assert_close(reward, row(-2.65, -2.65, -1.65, -1.65))
    figures = task.measure(state, torch.zeros_like(pos), state)
    assert {name: value.tolist() for name, value in figures.items()} == {"covered": [0.25], "collisions": [2.0]}


def test_landmarks_follow_force_and_drag() -> None:
    task = landmarks.Landmarks()
    state = landmarks.State(CORNERS, row((1, 0), (0, 0), (0, 0), (0, -1)), CORNERS, STEP)
    after = task.transition(state, row((0, 0), (1, 0), (0, 9), (0, 0.5)), NONE)
    # Drag leaves 0.8 of the velocity, a full force adds 0.4; places change by a tenth of the new velocity.
    torch.testing.assert_close(after.vel, row((0.8, 0), (0.4, 0), (0, 0.4), (0, -0.6)))
    torch.testing.assert_close(after.pos, row((0.08, 0), (1.04, 0), (0, 1.04), (1, 0.94)))


def test_landmarks_are_observed_as_offsets() -> None:
    state = landmarks.State(CORNERS, 2 * CORNERS, CORNERS, STEP)
    seen = landmarks.Landmarks().observe(state)[0, 1].tolist()
    to_landmarks, to_others = [-1, 0, 0, 0, -1, 1, 0, 1], [-1, 1, 0, 1, -1, 0]
    assert seen == [2, 0, 1, 0, *to_landmarks, *to_others]


# ---- collect ----

STAY, NORTH, EAST, SOUTH, WEST = range(5)


def grid(pos: list[tuple[int, int]], item: list[tuple[int, int]], left: list[bool]) -> collect.State:
    return collect.State(row(*pos), row(*item), torch.tensor([left]), STEP)


def test_collecting_pays_every_agent_once() -> None:
    task = collect.Collect(items=3)
    state = grid([(0, 0), (2, 0), (9, 9)], [(1, 0), (9, 8), (5, 0)], [True, True, True])
    after = task.transition(state, torch.tensor([[EAST, WEST, SOUTH]]), NONE)
    assert after.left.tolist() == [[False, False, True]]
    torch.testing.assert_close(task.reward(state, STEP, after), row(1.98, 1.98, 1.98))  # two items, one step
    torch.testing.assert_close(task.measure(state, STEP, after)["collected"], row(2 / 3)[0])
    again = task.transition(after, torch.tensor([[STAY, STAY, STAY]]), NONE)
    torch.testing.assert_close(task.reward(after, STEP, again), row(-0.02, -0.02, -0.02))
    assert not task.terminated(again).any()


def test_nothing_is_paid_after_the_last_item() -> None:
    task = collect.Collect(items=1)
    state = grid([(0, 0)] * 3, [(1, 0)], [False])
    after = task.transition(state, torch.tensor([[EAST, STAY, NORTH]]), NONE)
    assert task.reward(state, STEP, after).tolist() == [[0, 0, 0]]
    assert task.terminated(after).all()


def test_masks_forbid_walls_and_the_edge() -> None:
    task = collect.Collect(items=1)
    state = grid([(0, 0), (3, 8), (8, 3)], [(5, 4)], [True])
    legal = [
        [True, True, True, False, False],  # the corner in the south-west
        [True, True, False, True, True],  # a wall in the east
        [True, False, True, False, True],  # walls in the north and south
    ]
    assert task.observe(state).legal[0].tolist() == legal
    after = task.transition(state, torch.tensor([[WEST, EAST, NORTH]]), NONE)
    assert torch.equal(after.pos, state.pos)  # moves that are not legal


def test_the_whole_floor_is_connected_and_ways_are_shortest() -> None:
    free, way = collect.floor(STEP.device)[1], collect.ways(STEP.device)
    width = collect.SIDE + 2
    length, queue = {width + 1: 0}, deque([width + 1])  # breadth first from the corner in the south-west
    while queue:
        cell = queue.popleft()
        for other in (cell + 1, cell - 1, cell + width, cell - width):
            if free.flatten()[other] and other not in length:
                length[other] = length[cell] + 1
                queue.append(other)
    assert len(length) == free.sum() == collect.Collect().spec.initial_noise
    assert way[width + 1, [*length]].tolist() == [*length.values()]


def test_the_plan_goes_around_walls_to_items_of_its_own() -> None:
    task = collect.Collect(items=3)
    # Agents 0 and 1 are nearest to item 0, agent 0 more so. Item 1 is 2 cells east of agent 2, behind a wall: the way
    # leads past its northern end. Item 2 is collected, so that agent 1 has none of its own and joins agent 0.
    state = grid([(1, 0), (2, 0), (6, 7)], [(0, 0), (8, 7), (3, 0)], [True, True, False])
    assert collect.nearest_item(task, state, row(0, 0, 0)).tolist() == [[WEST, WEST, NORTH]]


# ---- tag ----


def test_tag_pays_both_groups() -> None:
    task = tag.Tag()
    pos = row((0, 0), (0.5, 0), (-1, -1), (0.1, 0), (0.5, 1))
    state = tag.State(pos, torch.zeros_like(pos), STEP)
    # Chaser 0 touches runner 0; chasers are 0.1, 0.4 and sqrt(1.1^2 + 1) from the nearest runner, which is runner 0.
    far = (1.1**2 + 1) ** 0.5
    reward = task.reward(state, torch.zeros_like(pos), state)
    torch.testing.assert_close(reward, row(1 - 0.01, 1 - 0.04, 1 - 0.1 * far, -1, 0))
    assert task.measure(state, torch.zeros_like(pos), state)["touches"].tolist() == [1]


def test_runners_are_faster_and_walls_stop() -> None:
    task = tag.Tag()
    vel = row((1, 0), (0, 0), (1, 0), (1.3, 0), (0, 0))
    state = tag.State(row((0, 0), (0, 0), (0.95, 0), (0, 0), (0, 0)), vel, STEP)
    after = task.transition(state, row((1, 0), (0, -1), (1, 0), (1, 0), (0, -1)), NONE)
    # Of 1 unit/s drag leaves 0.75, the force adds 0.3 to a chaser, whose limit is 1; 0.4 to a runner, with limit 1.3.
    torch.testing.assert_close(after.vel, row((1, 0), (0, -0.3), (0, 0), (1.3, 0), (0, -0.4)))
    torch.testing.assert_close(after.pos, row((0.1, 0), (0, -0.03), (1, 0), (0.13, 0), (0, -0.04)))


def test_groups_of_tag_observe_different_numbers() -> None:
    pos = row((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1))
    seen = tag.Tag().observe(tag.State(pos, 2 * pos, STEP))[0]
    assert seen[0].tolist() == [0, 0, 0, 0, 1, 0, 0, 1, -1, 0, 0, -1, -2, 0, 0, -2]
    assert seen[3].tolist() == [-2, 0, -1, 0, 1, -1, 1, 0, 2, 0, 1, 1, 0, 0, 0, 0]


# ---- tow ----

AT_ROPES = tow.State(
    row((0.4, 0), (0, 0.2), (0, -0.5)), row((0, 0), (1, 0), (0, 0)), row(0, 0), row(0.2, 0), row(0.3, 0.4), STEP
)


def test_ropes_pull_both_ends_and_do_not_push() -> None:
    after = tow.Tow().transition(AT_ROPES, row((1, 0), (0, 1), (0, -9)), NONE)
    # Rope 0 is 0.1 too long and pulls by 3, which is the force of agent 0; rope 1 is slack; rope 2 pulls by 6.
    torch.testing.assert_close(after.vel, row((0, 0), (0.8, 0.3), (0, 0.3)))
    torch.testing.assert_close(after.pos, row((0.4, 0), (0.08, 0.23), (0, -0.47)))
    # The load is pulled by (3, -6), friction takes (1.8, 0), and a twentieth of it is added: mass 2, steps of 0.1 s.
    torch.testing.assert_close(after.load_vel, row(0.26, -0.3))
    torch.testing.assert_close(after.load, row(0.026, -0.03))


def test_towing_pays_by_the_distance_from_the_goal() -> None:
    task, near = tow.Tow(), replace(AT_ROPES, load=row(0.3, 0.31))
    for after, far, delivered in ((AT_ROPES, 0.5, 0), (near, 0.09, 1)):
        torch.testing.assert_close(task.reward(AT_ROPES, STEP, after), row(-far, -far, -far))
        assert task.measure(AT_ROPES, STEP, after)["delivered"].tolist() == [delivered]


def test_towing_starts_in_reach_of_the_ropes_and_is_observed_as_offsets() -> None:
    task = tow.Tow()
    state = task.initial(row(0.5, 0.5, 0.75, 0.5, 0.25, 0, 1, 0.25, 0, 0.9))
    torch.testing.assert_close(state.pos, row((0.15, 0), (0, 0.3), (0, 0)))
    assert (state.load.tolist(), state.goal.tolist()) == ([[0, 0]], [[0.5, 0]])
    seen = task.observe(AT_ROPES)[0, 1]
    torch.testing.assert_close(seen, row(1, 0, 0, -0.2, 0, -0.7, 0.4, -0.2, 0.2, 0, 0.3, 0.4)[0])


# ---- brigade ----

SPRAY, DOWN = brigade.SPRAY, brigade.DOWN
TOWN = brigade.Brigade(houses=4)


def town(*level: int) -> brigade.State:
    """Return engine 0 next to house 0, 1 in house 1, 2 next to houses 1 and 2, and 3 two cells from house 3."""
    pos, house = row((0, 0), (2, 2), (2, 3), (7, 7)), row((0, 1), (2, 2), (3, 3), (5, 7))
    return brigade.State(pos, house, torch.tensor([level]), STEP)


def test_a_brigade_sprays_before_fires_grow_and_break_out() -> None:
    sprays, chance = torch.full((1, 4), SPRAY), row(0.01, 0.24, 0.03, 0.5)
    after = TOWN.transition(town(1, 3, 0, 2), sprays, chance)
    # House 0: 1 - 1, and a fire that is put out does not break out at once. House 1: 3 - 2, and grows. House 2 was
    # safe, and catches fire. House 3: out of reach, and does not grow.
    assert after.level.tolist() == [[0, 2, 1, 2]]
    assert torch.equal(after.pos, town().pos)
    after = TOWN.transition(town(0, 1, 2, DOWN), sprays, row(0.05, 0, 0.3, 0))
    assert after.level.tolist() == [[0, 0, 1, DOWN]]  # two levels are taken from a fire of one
    after = TOWN.transition(town(0, DOWN, 2, DOWN), sprays, row(0.05, 0, 0.3, 0))
    assert after.level.tolist() == [[0, DOWN, 1, DOWN]]  # engine 2 sprays what has burned down, too


def test_a_brigade_pays_for_fires_and_once_for_a_loss() -> None:
    stay, chance = torch.full((1, 4), STAY), row(0, 0, 0, 0)
    state = town(0, 3, 1, 3)
    after = TOWN.transition(state, stay, chance)
    assert after.level.tolist() == [[1, DOWN, 2, DOWN]]
    torch.testing.assert_close(TOWN.reward(state, stay, after), row(*[-2.04] * 4))  # two losses and two fires
    assert TOWN.measure(state, stay, after)["saved"].tolist() == [0.5]
    assert not TOWN.terminated(after).any()
    last, end = town(DOWN, DOWN, 3, DOWN), town(DOWN, DOWN, DOWN, DOWN)
    assert torch.equal(TOWN.transition(last, stay, chance).level, end.level)
    torch.testing.assert_close(TOWN.reward(last, stay, end), row(*[-1.0] * 4))
    assert TOWN.reward(end, stay, TOWN.transition(end, stay, chance)).tolist() == [[0, 0, 0, 0]]
    assert TOWN.terminated(end).all()


def test_masks_let_a_brigade_spray_fires_alone_and_keep_it_in_town() -> None:
    state = town(1, DOWN, 0, 2)
    legal = [
        [True, True, True, False, False, True],  # the corner in the south-west, next to a fire
        [True, True, True, True, True, False],  # where a house has burned down
        [True, True, True, True, True, False],  # next to a safe house
        [True, False, False, True, True, False],  # the corner in the north-east, a cell too far from a fire
    ]
    assert TOWN.observe(state).legal[0].tolist() == legal
    after = TOWN.transition(state, torch.tensor([[WEST, NORTH, EAST, NORTH]]), row(1, 1, 1, 1))
    torch.testing.assert_close(after.pos, row((0, 0), (2, 3), (3, 3), (7, 7)))
    assert torch.equal(after.level, state.level)


def test_a_brigade_is_drawn_from_the_order_of_cells_and_observed_as_offsets() -> None:
    task = brigade.Brigade(houses=2, fires=1)
    state = task.initial(torch.arange(64, dtype=torch.float64).flip(0)[None] / 64)  # from the north-east westwards
    assert state.pos.tolist() == [[[7, 7], [6, 7], [5, 7], [4, 7]]]
    assert (state.house.tolist(), state.level.tolist()) == ([[[3, 7], [2, 7]]], [[1, 0]])
    seen = TOWN.observe(town(1, DOWN, 0, 2)).features[0, 3]
    place, others = [7, 7], [-7, -7, -5, -5, -5, -4]
    houses = [-7, -6, 2, 8, -5, -5, 0, 0, -4, -4, 0, 8, -2, 0, 4, 8]  # levels of 1 and 2 are 2 and 4 eighths
    torch.testing.assert_close(8 * seen, row(*place, 8, 0, 0, 8, 8, 0, *others, *houses)[0])


def test_the_plan_of_a_brigade_shares_fires_and_sprays_what_it_reaches() -> None:
    # Fires at both ends of the street in the south. Engine 0 is nearer to the one in the east, but engine 1 is nearer
    # still, so that engine 0 goes west. Engines 2 and 3 have no fire of their own and go to the nearest one.
    pos, house = row((4, 0), (5, 0), (7, 7), (0, 7)), row((0, 0), (7, 0), (4, 1), (0, 6))
    state = brigade.State(pos, house, torch.tensor([[1, 1, 0, DOWN]]), STEP)
    assert brigade.nearest_fire(TOWN, state, row(0, 0, 0, 0)).tolist() == [[WEST, EAST, SOUTH, SOUTH]]
    assert brigade.nearest_fire(TOWN, town(0, 1, 0, 0), row(0, 0, 0, 0))[0, 1:3].tolist() == [SPRAY, SPRAY]
    assert brigade.nearest_fire(TOWN, town(0, 0, DOWN, 0), row(0, 0, 0, 0)).tolist() == [[STAY] * 4]


# ---- plans ----


@pytest.mark.parametrize(
    ("task", "plan", "figure", "least"),
    [
        (TASKS[0], "fly_to_own", "covered", 0.9),
        (TASKS[1], "nearest_item", "collected", 0.9),
        (TASKS[3], "pull_ahead", "delivered", 0.9),
        (TASKS[4], "nearest_fire", "saved", 0.8),
    ],
)
def test_plans_are_good_and_random_actions_are_not(task: Any, plan: str, figure: str, least: float) -> None:
    planned, chance = (ul.evaluate(task, policy=policy, episodes=60) for policy in (plan, "random"))
    for name in (figure, "return"):
        assert planned[name]["low"] > chance[name]["high"]
    assert planned[figure]["low"] > least
    assert chance[figure]["high"] < 0.5


def test_each_side_of_tag_gains_by_its_plan() -> None:
    play = ul.cross_play({"plan": "chase_and_flee", "random": "random"}, tag.Tag(), episodes=60)
    for group in ("chasers", "runners"):
        for other in ("plan", "random"):
            assert play.score(group, "plan", other)["low"] > play.score(group, "random", other)["high"]
