"""Starts, motion, observations, rewards and ends against values computed by hand."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower, State

NOTHING = torch.zeros(1, 0, dtype=torch.float64)
Place = tuple[float, float]


def world(
    leader: Place,
    *followers: Place,
    speed: tuple[float, ...] = (),
    heading: float = 0.0,
    goal: Place = (400, 150),
    obstacles: tuple[Place, ...] = ((350, 400),),
    drift: tuple[Place, ...] | None = None,
    step: int = 1,
) -> State:
    """Make one world; speeds are 15 px/s by default."""
    places = (leader, *followers)

    def row(values: object) -> Tensor:
        return torch.tensor([values], dtype=torch.float64)

    return State(
        pos=row(places),
        speed=row(speed or (15.0,) * len(places)),
        heading=row([heading] * len(places)),
        action=row([(0.0, 0.0)] * len(places)),
        goal=row(goal),
        obstacle=row(obstacles),
        drift=row(drift or [(0.0, 0.0)] * len(obstacles)),
        step=torch.tensor([step]),
        gap=row([math.dist(p, leader) for p in followers]),
        to_goal=row([math.dist(p, goal) for p in places]),
        clearance=row([min(math.dist(p, o) for o in obstacles) for p in places]),
    )


def pay(env: LeaderFollower, state: State) -> list[float]:
    """Return the rewards of a step into ``state``."""
    return env.reward(state, torch.zeros(1, env.followers + 1, 2, dtype=torch.float64), state)[0].tolist()


# ---- starts ----


def starts(env: LeaderFollower, unit: float | Tensor, worlds: int = 1) -> State:
    noise = torch.full((worlds, env.spec.initial_noise), 0.0, dtype=torch.float64) + unit
    return env.initial(noise)


def test_lowest_noise_starts_at_the_lowest_published_numbers() -> None:
    state = starts(LeaderFollower(followers=2, obstacles=2), 0.0)
    assert state.pos[0].tolist() == [[300, 500], [400, 500], [400, 500]]
    assert state.speed[0].tolist() == [10, 20, 20]
    assert state.goal[0].tolist() == [300, 150]
    assert state.obstacle[0].tolist() == [[350, 400], [200, 250]]
    assert state.heading.abs().max() == 0
    assert state.step.tolist() == [0]


def test_highest_noise_starts_at_the_highest_published_numbers() -> None:
    below_one = 1 - 2**-53
    state = starts(LeaderFollower(followers=2, obstacles=2), below_one)
    assert state.pos[0].tolist() == [[400, 550], [500, 550], [500, 550]]
    assert state.speed[0].tolist() == [20, 30, 30]
    assert state.goal[0].tolist() == [500, 200]
    assert state.obstacle[0].tolist() == [[350, 450], [600, 450]]
    assert 0 <= state.heading.min() <= state.heading.max() <= 2 * math.pi


def test_highest_float32_noise_stays_in_range() -> None:
    env = LeaderFollower()
    noise = torch.full((1, env.spec.initial_noise), 1 - 2**-24)
    state = env.initial(noise)
    assert state.pos[0].tolist() == [[400, 550], [500, 550]]
    assert state.speed[0].tolist() == [20, 30]


def test_starts_are_whole_numbers_spread_over_the_whole_range() -> None:
    env = LeaderFollower()
    noise = torch.rand(20_000, env.spec.initial_noise, generator=torch.Generator().manual_seed(0))
    state = env.initial(noise)
    for values, low, high in (
        (state.pos[:, 0, 0], 300, 400), (state.pos[:, 0, 1], 500, 550), (state.speed[:, 0], 10, 20),
        (state.pos[:, 1, 0], 400, 500), (state.pos[:, 1, 1], 500, 550), (state.speed[:, 1], 20, 30),
        (state.goal[:, 0], 300, 500), (state.goal[:, 1], 150, 200), (state.obstacle[:, 0, 1], 400, 450),
    ):  # fmt: skip
        counts = torch.bincount(values.to(torch.int64) - low)
        assert torch.equal(values, values.round())
        assert len(counts) == high - low + 1
        mean = 20_000 / len(counts)
        assert (counts - mean).abs().max() < 5 * math.sqrt(mean)  # five standard deviations, ends included


# ---- motion ----


@pytest.mark.parametrize(
    ("action", "speed", "heading"),
    [
        ((1.0, 0.0), (15.3, 15.6), (0.0, 0.0)),  # 0.3 and 0.6 px/s per step
        ((0.0, 1.0), (15.0, 15.0), (0.6, 1.2)),  # rad per step
        ((0.0, -1.0), (15.0, 15.0), (2 * math.pi - 0.6, 2 * math.pi - 1.2)),  # wrapped into [0, 2 pi)
        ((7.0, 7.0), (15.3, 15.6), (0.6, 1.2)),  # clamped to 1
    ],
)
def test_action_gains(action: Place, speed: Place, heading: Place) -> None:
    both = torch.tensor([[action, action]], dtype=torch.float64)
    after = LeaderFollower().transition(world((400, 300), (500, 300)), both, NOTHING)
    torch.testing.assert_close(after.speed[0], torch.tensor(speed, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(after.heading[0], torch.tensor(heading, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_heading_turns_the_nose_up_the_screen() -> None:
    still = torch.zeros(1, 2, 2, dtype=torch.float64)
    after = LeaderFollower(dt=0.5).transition(world((400, 300), (500, 300), heading=math.pi / 2), still, NOTHING)
    expected = torch.tensor([[400.0, 292.5], [500.0, 292.5]], dtype=torch.float64)  # y - 15 px/s x 0.5 s
    torch.testing.assert_close(after.pos[0], expected)


def test_speed_and_place_are_clamped() -> None:
    fast = torch.tensor([[[1.0, 0.0]] * 2], dtype=torch.float64)
    env = LeaderFollower()
    after = env.transition(world((745, 300), (749, 300), speed=(19.9, 39.9)), fast, NOTHING)
    assert after.speed[0].tolist() == [20, 40]
    assert after.pos[0].tolist() == [[750, 300], [750, 300]]
    after = env.transition(world((745, 300), (749, 300), speed=(10.1, 10.1)), -fast, NOTHING)
    assert after.speed[0].tolist() == [10, 10]


def test_obstacles_bounce_off_the_area() -> None:
    env = LeaderFollower(obstacles=2, obstacle_speed=10.0)
    still = torch.zeros(1, 2, 2, dtype=torch.float64)
    state = world((400, 500), (500, 500), obstacles=((745, 300), (300, 55)), drift=((10, 2), (1, -10)))
    after = env.transition(state, still, NOTHING)
    assert after.obstacle[0].tolist() == [[750, 302], [301, 50]]
    assert after.drift[0].tolist() == [[-10, 2], [1, 10]]
    again = env.transition(after, still, NOTHING)
    assert again.obstacle[0].tolist() == [[740, 304], [302, 60]]


def test_lagged_action_takes_effect_one_step_late() -> None:
    lagged, direct = LeaderFollower(lagged=True), LeaderFollower()
    start = world((400, 300), (500, 300), step=0)
    first, second = torch.tensor([[[[1.0, 0.5]] * 2], [[[-1.0, 0.2]] * 2]], dtype=torch.float64)
    unmoved = lagged.transition(start, first, NOTHING)
    assert torch.equal(unmoved.pos, start.pos)
    moved = lagged.transition(unmoved, second, NOTHING)
    assert torch.equal(moved.pos, direct.transition(start, first, NOTHING).pos)
    assert moved.step.tolist() == [2]


# ---- observations ----


def test_observation_by_hand() -> None:
    state = world((400, 300), (500, 360), speed=(15, 30), heading=1.0, goal=(420, 160), obstacles=((430, 300),))
    leader, follower = LeaderFollower(sight=1).observe(state)[0].tolist()
    turn = 57.3 / 360
    assert leader == pytest.approx([0.4, 0.3, 0.5, turn, 0.42, 0.16, 1.0, 0.03, 0.0])  # 30 px to the obstacle: seen
    assert follower == pytest.approx([0.5, 0.36, 1.0, turn, 0.4, 0.3, 0.5, -0.07, -0.06])


def test_obstacle_flag_starts_below_forty() -> None:
    env = LeaderFollower()
    for distance, flag in ((39.9, 1.0), (40.0, 0.0)):
        state = world((400, 300), (500, 300), obstacles=((400 + distance, 300),))
        assert env.observe(state)[0, 0, 6].item() == flag


# ---- rewards, each term alone ----

BARE = LeaderFollower(
    goal_reward=0, crash_cost=0, near_cost=0, border_cost=0, distance_cost=0, match_bonus=0, apart_cost=0
)
FAR = ((400.0, 500.0), (500.0, 500.0))  # 100 px apart, nothing near, goal 350 px from the leader
CASES = {
    "goal": ({"goal_reward": 1000.0}, world((400, 189.9), (500, 300)), (1000, 0)),
    "goal just missed": ({"goal_reward": 1000.0}, world((400, 190), (500, 300)), (0, 0)),  # 40 px is not within
    "crash": ({"crash_cost": 500.0}, world((350, 419.9), (500, 300)), (-500, 0)),
    "crash just missed": ({"crash_cost": 500.0}, world((350, 420), (500, 300)), (0, 0)),
    "follower never crashes": ({"crash_cost": 500.0}, world((500, 300), (350, 400)), (0, 0)),
    "goal before crash": (
        {"goal_reward": 1000.0, "crash_cost": 500.0}, world((400, 160), (500, 300), obstacles=((400, 170),)), (1000, 0),
    ),
    "near": ({"near_cost": 2.0}, world((350, 439.9), (350, 360)), (-2, 0)),  # the follower is 40 px away: not near
    "near follower": ({"near_cost": 2.0}, world((350, 440), (350, 361)), (0, -2)),
    "left": ({"border_cost": 1.0}, world((100, 300), (100.1, 300)), (-1, 0)),
    "right": ({"border_cost": 1.0}, world((700, 300), (699.9, 300)), (-1, 0)),
    "top": ({"border_cost": 1.0}, world((300, 100), (300, 100.1), goal=(600, 600)), (-1, 0)),
    "bottom": ({"border_cost": 1.0}, world((300, 600), (300, 599.9)), (-1, 0)),
    "corner pays once": ({"border_cost": 1.0}, world((60, 60), (740, 640)), (-1, -1)),
    "distance": ({"distance_cost": 0.001}, world(*FAR), (-0.35, 0)),  # 0.001 x (500 - 150)
    "matched": ({"match_bonus": 1.0}, world((400, 500), (424, 532), speed=(15, 15.9)), (1, 1)),  # gap 40 px
    "speed not matched": ({"match_bonus": 1.0}, world((400, 500), (424, 532), speed=(15, 16)), (0, 0)),
    "at the radius": (
        {"match_bonus": 1.0, "apart_cost": 0.001}, world((400, 500), (430, 540)), (-0.05, -0.05),  # gap 50 px: outside
    ),
    "inside costs nothing": ({"apart_cost": 0.001}, world((400, 500), (424, 532)), (0, 0)),
    "apart": ({"apart_cost": 0.001}, world(*FAR), (-0.1, -0.1)),  # 0.001 x 100 px, paid by both
    "time": ({"time_cost": 0.2}, world(*FAR), (-0.2, -0.2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_reward_terms(name: str) -> None:
    prices, state, expected = CASES[name]
    assert pay(dataclasses.replace(BARE, **prices), state) == pytest.approx(expected, abs=1e-12)


def test_reward_terms_add_up() -> None:
    # Leader at (400, 500): goal 350 px -> -0.35; follower 1 in formation and matched -> +1; follower 2 is 100 px
    # away -> -0.1; time -0.2. Sum 0.35. Follower 1: 1 - 0.2; follower 2: -0.1 - 0.2.
    env = LeaderFollower(followers=2, time_cost=0.2)
    assert pay(env, world((400, 500), (424, 532), (500, 500))) == pytest.approx([0.35, 0.8, -0.3])


TRIO = world((400, 500), (424, 532), (500, 500))  # follower 1 behind in formation, follower 2 100 px away
AHEAD = world((400, 500), (424, 468), (500, 500))  # follower 1 in formation but nearer to the goal


@pytest.mark.parametrize(
    ("quirk", "state", "expected"),
    [
        ({}, TRIO, (0.9, 1, -0.1)),
        ({"first_follower_only": True}, TRIO, (1, 1, 1)),  # everybody looks at follower 1
        ({"trailing": True}, TRIO, (0.9, 1, -0.1)),  # leader 350 px from the goal, follower 1 382.8 px
        ({"trailing": True}, AHEAD, (0.9, -0.04, -0.1)),  # 318.9 px: its formation does not count for itself
        ({"trailing": True, "first_follower_only": True}, AHEAD, (1, -0.04, -0.04)),
    ],
)
def test_quirks_of_the_formation(quirk: dict[str, bool], state: State, expected: tuple[float, ...]) -> None:
    env = dataclasses.replace(BARE, followers=2, match_bonus=1.0, apart_cost=0.001, **quirk)
    assert pay(env, state) == pytest.approx(expected)


def test_follower_costs_can_be_left_out() -> None:
    env = dataclasses.replace(BARE, border_cost=1.0, near_cost=2.0, time_cost=0.2, follower_costs=False)
    assert pay(env, world((60, 300), (60, 300))) == pytest.approx([-1.2, -0.2])


def test_prices_keep_float64() -> None:
    env = dataclasses.replace(BARE, crash_cost=0.1, near_cost=0.2, border_cost=0.3, match_bonus=0.7)
    crash = world((60, 400), (60, 410), obstacles=((60, 400),))  # all four terms at once
    assert pay(env, crash) == pytest.approx([0.7 - 0.1 - 0.2 - 0.3, 0.7 - 0.2 - 0.3], rel=1e-14, abs=1e-15)


# ---- ends and figures ----


def test_ends_are_strict_and_shared_by_all_agents() -> None:
    env = LeaderFollower(followers=2)
    for leader, ended in (((400, 189.9), True), ((400, 190), False), ((350, 419.9), True), ((350, 420), False)):
        assert env.terminated(world(leader, (500, 300), (500, 320))).tolist() == [[ended] * 3]
    assert not env.terminated(world((500, 300), (400, 150), (350, 400))).any()  # followers end nothing
    assert not env.terminated(world((500, 300), (510, 300), (520, 300), step=10**6)).any()  # nor does the clock


def test_figures_by_hand() -> None:
    env = LeaderFollower(followers=2, dt=0.5)
    action = torch.tensor([[[-0.5, 0.25], [1, 1], [1, 1]]], dtype=torch.float64)
    after = world((400, 160), (424, 192), (500, 160), speed=(12, 20, 20))
    figures = env.measure(TRIO, action, dataclasses.replace(after, action=action))
    assert {k: v.item() for k, v in figures.items()} == {
        "completion": 1.0,
        "collision": 0.0,
        "formation_strict": 0.0,
        "formation_mean": 0.5,  # gaps 40 and 100 px
        "path": 6.0,  # 12 px/s x 0.5 s
        "energy": 0.75,
    }


def test_published_is_the_published_test() -> None:
    assert (PUBLISHED.followers, PUBLISHED.dt, PUBLISHED.horizon) == (4, 0.1, 1000)
    assert PUBLISHED.lagged
    assert PUBLISHED.trailing
    assert PUBLISHED.first_follower_only
    assert not PUBLISHED.follower_costs
    spec = PUBLISHED.spec
    assert (spec.agents, spec.obs, spec.action, spec.groups) == (5, 7, 2, (0, 1, 1, 1, 1))
