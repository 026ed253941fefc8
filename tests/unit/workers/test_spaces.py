"""Spaces of Gymnasium become numbers and back; what is not served is refused with a next step."""

import numpy as np
import pytest
from gymnasium import spaces

from uavlab.workers.spaces import Codec, Refusal

SEEN = spaces.Box(-1, 1, (2, 2))
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32))


def test_actions_are_scaled_from_minus_one_and_one_to_their_bounds() -> None:
    codec = Codec("a", SEEN, BOX)
    assert (codec.obs, codec.action, codec.choices) == (4, 2, 0)
    for unit, expected in (([-1, -1], [-1, 0]), ([1, 1], [3, 10]), ([0, 0.5], [1, 7.5]), ([9, -9], [3, 0])):
        action = codec.act(np.array([*unit, 0.7], np.float32))  # the third is padding
        assert action.tolist() == expected
        assert BOX.contains(action)
    whole = spaces.Box(0, 3, (1,), np.int64)
    assert Codec("a", SEEN, spaces.Box(-1e6, 1e6, (2,), np.float64)).bounds == (-1e6, 1e6)  # the farthest
    assert [Codec("a", SEEN, whole).act(np.array([x]))[0] for x in (-1.0, 0.0, 0.4, 1.0)] == [0, 2, 2, 3]


def test_moves_count_from_the_first_one() -> None:
    codec = Codec("a", SEEN, spaces.Discrete(3, start=-1))
    assert [codec.act(np.array([move])) for move in range(3)] == [-1, 0, 1]
    assert codec.choices == 3


def test_observations_are_flat() -> None:
    numbers, mask = Codec("a", SEEN, BOX).observe(np.array([[1, 2], [3, 4]]), {"action_mask": [1]})
    assert numbers.tolist() == [1, 2, 3, 4]
    assert mask is None  # continuous actions have no mask
    mixed = spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(0, 1, (1,))})
    assert Codec("a", mixed, BOX).observe({"a": np.array([0.5], np.float32), "b": 2}, {})[0].tolist() == [0.5, 0, 0, 1]


def test_masks_come_from_the_observation_or_from_infos() -> None:
    masked = spaces.Dict({"observation": SEEN, "action_mask": spaces.MultiBinary(3)})
    codec, moves = Codec("a", masked, spaces.Discrete(3)), np.array([0, 1, 1], np.int8)
    assert codec.obs == 4
    mask = codec.observe({"observation": np.zeros((2, 2)), "action_mask": moves}, {})[1]
    assert mask.tolist() == [False, True, True]
    assert (
        Codec("a", SEEN, spaces.Discrete(3)).observe(np.zeros((2, 2)), {"action_mask": moves})[1].tolist()
        == mask.tolist()
    )
    assert Codec("a", SEEN, spaces.Discrete(3)).observe(np.zeros((2, 2)), {})[1] is None
    for wrong in ([1, 1], [0.0, -np.inf, 0.0]):
        with pytest.raises(Refusal, match="expected 3 numbers, 1 for each move that is open and 0 for the others"):
            codec.observe({"observation": np.zeros((2, 2)), "action_mask": wrong}, {})


def test_a_space_of_many_lines_is_one_short_line() -> None:
    low = -np.arange(1.0, 200.0)
    low[0] = -np.inf
    with pytest.raises(Refusal, match=r"^a acts in Box\(\[.{0,120} \.\.\., which has no bounds; expected finite"):
        Codec("a", SEEN, spaces.Box(low, -low, dtype=np.float64))
