"""How early a team can gather, by hand and against flights; and the bound that follows."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.envs.leader_follower.test_env import Place, world
from uavlab.envs.leader_follower.bounds import (
    DIRECTIONS,
    bound,
    earliest_gathering,
    first,
    meet,
    possible_gathering,
    reach,
)
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower, State

ENV = LeaderFollower()
EAST, NORTH, WEST = 0, DIRECTIONS // 4, DIRECTIONS // 2
ANGLE = torch.arange(DIRECTIONS, dtype=torch.float64) * (2 * math.pi / DIRECTIONS)


def random_starts(worlds: int) -> State:
    noise = torch.rand(worlds, PUBLISHED.spec.initial_noise, dtype=torch.float64, generator=torch.manual_seed(0))
    return PUBLISHED.initial(noise)


def discs(*circles: tuple[float, float, float]) -> Tensor:
    """Return how far the common part of discs (x, y, radius) is at the most, in each direction."""
    far = [x * ANGLE.cos() - y * ANGLE.sin() + radius for x, y, radius in circles]
    return torch.stack(far).amin(0)[None]


# ---- reach ----


def test_the_reach_ahead_grows_with_the_speed() -> None:
    far = reach(ENV, world((300, 300), (400, 300)), 3)[0]
    assert far.shape == (2, 4, DIRECTIONS)
    assert far[0, :, EAST].tolist() == pytest.approx([300, 315.3, 330.9, 346.8])  # 15 px/s, 0.3 px/s faster each second
    assert far[1, :, EAST].tolist() == pytest.approx([400, 415.6, 431.8, 448.6])


def test_the_reach_behind_takes_a_turn() -> None:
    far = reach(ENV, world((300, 300), (400, 300)), 4)[0]
    left = [math.pi - 1.2, math.pi - 2.4, 0.0, 0.0]  # of a follower's turn
    speeds = [14.4, 16.2, 16.8, 17.4]  # it slows down while it flies away
    gone = [math.cos(angle) * speed for angle, speed in zip(left, speeds, strict=True)]
    assert far[1, :, WEST].tolist() == pytest.approx([-400 + sum(gone[:n]) for n in range(5)])


def test_the_reach_upwards_is_against_y() -> None:
    far = reach(ENV, world((300, 300), (400, 300), heading=math.pi / 2), 1)[0]
    assert far[0, 1, NORTH].item() == pytest.approx(-300 + 15.3)


def test_the_reach_ends_at_the_highest_speed() -> None:
    far = reach(ENV, world((300, 300), (400, 300), speed=(19.9, 39.9)), 2)[0]
    assert far[:, 2, EAST].tolist() == pytest.approx([340, 480])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_no_flight_leaves_the_reach(share: float) -> None:
    state, generator = random_starts(50), torch.Generator().manual_seed(1)
    env, moves = replace(PUBLISHED, lagged=False), 40
    far = reach(env, state, moves)
    steady = torch.randint(-1, 2, (50, 5, 2), generator=generator)
    over = torch.zeros(())
    for move in range(1, moves + 1):
        action = share * steady + (1 - share) * (2 * torch.rand(50, 5, 2, generator=generator, dtype=torch.float64) - 1)
        state = env.transition(state, action, torch.empty(50, 0))
        place = state.pos[..., :1] * ANGLE.cos() - state.pos[..., 1:] * ANGLE.sin()
        assert (place <= far[:, :, move] + 1e-9).all()
        over = torch.maximum(over, (place - far[:, :, move - 1]).amax())
    assert over > 0.5  # a reach that is one move too short would be left


# ---- a point within all distances ----


@pytest.mark.parametrize(
    ("circles", "one"),
    [
        ([(0, 0, 10), (15, 0, 6)], True),
        ([(0, 0, 10), (15, 0, 4)], False),
        ([(0, 0, 10), (0, 15, 6)], True),
        ([(0, 0, 10), (0, 15, 4)], False),
        ([(0, 0, 10), (1, 1, 2)], True),
        ([(0, 0, 10), (20, 0, 10), (10, 17.32, 10)], False),  # each pair touches, not all three
        ([(0, 0, 12), (20, 0, 12), (10, 17.32, 12)], True),  # the centre is 11.55 from each
        ([(300, 500, 12), (320, 500, 12), (310, 517.32, 12)], True),
        ([(300, 500, 11.4), (320, 500, 11.4), (310, 517.32, 11.4)], False),
    ],
)
def test_discs_with_a_common_point(circles: list[tuple[float, float, float]], one: bool) -> None:
    assert meet(discs(*circles)).tolist() == [one]


def test_opposite_directions_alone_do_not_tell() -> None:
    far = discs((0, 0, 10.5), (20, 0, 10.5), (10, 17.32, 10.5))
    assert (far + far.roll(WEST, 1) >= 0).all()
    assert not meet(far)


def test_the_first_flag() -> None:
    flags = torch.tensor([[False, True, False, True], [False] * 4, [True] * 4])
    assert first(flags).tolist() == [1, 4, 0]


# ---- gathering ----


def gathering(*followers: Place, heading: float = 0.0, moves: int = 20) -> int:
    env = replace(ENV, followers=len(followers))
    return int(earliest_gathering(env, world((300, 300), *followers, heading=heading), moves))


def test_a_team_that_is_gathered() -> None:
    assert gathering((340, 300), (300, 260)) == 0


def test_a_follower_ahead_of_the_leader() -> None:
    # 60 px are too many; it cannot turn at once: after one move it is 60 + 5.2 - 15.3 px ahead or more
    assert gathering((360, 300)) == 1
    assert gathering((364, 300)) == 2


def test_a_leader_that_flies_to_its_follower_and_one_that_does_not() -> None:
    """150 px between both, of which 100 must go; by 15 px/s and more."""
    state = world((300, 300), (450, 300))
    state = replace(state, heading=torch.tensor([[0.0, math.pi]], dtype=torch.float64))
    assert earliest_gathering(ENV, state, 20).tolist() == [4]  # 3 moves: 30.9 + 31.8 + 32.7 = 95.4 px
    state = replace(state, heading=torch.tensor([[math.pi, math.pi]], dtype=torch.float64))
    assert earliest_gathering(ENV, state, 20).item() > 4
    assert earliest_gathering(ENV, state, 4).tolist() == [5]


def test_followers_on_both_sides_gather_later_than_each_alone() -> None:
    alone = max(gathering((440, 300)), gathering((160, 300)))
    assert gathering((440, 300), (160, 300)) > alone


def test_sampled_controls_are_never_earlier_and_seldom_later() -> None:
    state = random_starts(12)
    least, possible = earliest_gathering(PUBLISHED, state, 80), possible_gathering(PUBLISHED, state, 80)
    assert (possible >= least).all()
    assert (possible - least).double().mean() < 2
    assert 20 < least.double().mean() < 45


def test_a_leader_that_has_met_the_obstacle_does_not_count() -> None:
    state = world((300, 300), (420, 300), obstacles=((900, 900),))
    free = possible_gathering(ENV, state, 10)
    blocked = possible_gathering(ENV, replace(state, clearance=torch.zeros_like(state.clearance)), 10)
    assert free.item() < 5
    assert blocked.tolist() == [11]


# ---- the bound ----


def test_the_bound_is_the_best_choice_of_lengths() -> None:
    apart = torch.tensor([4, 16])
    shares = [(1 - 4 / n + 1 - 16 / (72 - n)) / 2 for n in range(16, 57)]
    assert bound(apart, 36).item() == pytest.approx(0.75)
    assert max(shares) == pytest.approx(0.75)
    assert bound(apart, 72).item() == pytest.approx(0.875)
    assert bound(torch.tensor([9, 9]), 36).item() == pytest.approx(1 - 9 / 36)
