"""Footprints one by one: numbers by hand, and boxes outside the map are refused."""

from typing import Any

import numba
import numpy as np
import pytest
import torch

from uavlab.envs.mapping import fusion_numba
from uavlab.envs.mapping.fusion_numba import Maps
from uavlab.envs.mapping.geometry import Measurement
from uavlab.ops import belief_maps

STEP = 100


def fuse_once(logits: np.ndarray, boxes: list[list[int]], numbers: list[list[float]], **changes: Any) -> Maps:
    """Fuse one measurement of each UAV, all at altitude 0, of 4 x 4 cells whose upper half holds targets."""
    uavs = len(boxes)
    truth = np.zeros((1, 4, 4), bool)
    truth[:, :2] = True
    average = belief_maps.area_matrix(4, 2).double().numpy()
    arrays: dict[str, Any] = {
        "truth": truth,
        "place": np.zeros((1, uavs, 3), np.int64),
        "box": np.array([boxes]),
        "heard": np.concatenate((np.eye(uavs, dtype=bool), np.ones((1, uavs), bool)))[None],
        "noise": np.array([numbers]),
        "flip": np.array([0.25]),
        "whole": average,
        "part": np.broadcast_to(average, (1, 2, 2, 4)).copy(),
    }
    maps = Maps(logits, np.zeros((1, uavs + 1, 2, 2)), np.zeros((1, uavs, 2, 2)), np.zeros(1), np.zeros(1))
    steps, tables = np.array([STEP], np.int16), fusion_numba.tables(torch.float64)
    fusion_numba.fuse(maps, Measurement(**(arrays | changes)), steps, tables)
    return maps


def blank(uavs: int = 1) -> np.ndarray:
    return np.zeros((1, uavs + 1, 4, 4), np.int16)


def bits(steps: int) -> float:
    sure = 1 / (1 + np.exp(-steps * belief_maps.STEP))
    return -sure * np.log2(sure) - (1 - sure) * np.log2(1 - sure)


def test_by_hand() -> None:
    """Four cells and two numbers, of which each decides about two: by itself, and by its lower digits."""
    noise = [[0.5, 2**-3 + 0.5 / fusion_numba.DIGITS]]
    result = fuse_once(blank(), [[1, 1, 3, 3]], noise)
    expected = np.zeros((4, 4))
    expected[1, 1:3] = STEP, -STEP  # targets, the second measured as none: 0.125 < 0.25
    expected[2, 1:3] = STEP, -STEP  # no targets, the first measured as one: lower digits are 0 < 0.25, then 0.5
    assert np.array_equal(result.logits, np.broadcast_to(expected, (1, 2, 4, 4)))
    signed = np.tanh(STEP * belief_maps.STEP / 2)
    quarters = np.array([[signed, -signed], [signed, -signed]]) / 4  # of each quarter of the map one cell was seen
    assert np.allclose(result.means, quarters, atol=1e-12)
    assert np.allclose(result.footprints, quarters, atol=1e-12)
    assert np.allclose(result.added, 0, atol=1e-12)  # two cells weigh 1 and two 0, where each had weighed a half
    assert np.allclose(result.removed, 2 * (1 - bits(STEP)), atol=1e-9)


def test_a_cell_in_two_boxes_counts_once() -> None:
    noise = [[0.9, 0.9]] * 2
    both, one = fuse_once(blank(2), [[0, 0, 2, 2]] * 2, noise), fuse_once(blank(), [[0, 0, 2, 2]], noise[:1])
    assert np.array_equal(both.logits[0, -1], 2 * one.logits[0, -1])
    assert both.added == one.added == 2  # bits: four cells, from a weight of a half to 1
    assert np.allclose(both.removed, 4 * (1 - bits(2 * STEP)), atol=1e-9)


@pytest.mark.parametrize("start", [belief_maps.LIMIT, -belief_maps.LIMIT, 2**15 - 1, -(2**15)])
def test_log_odds_stay_within_their_limit(start: int) -> None:
    result = fuse_once(np.full((1, 2, 4, 4), start, np.int16), [[0, 0, 4, 4]], [[0.9] * 8])
    assert np.abs(result.logits.astype(int)).max() == belief_maps.LIMIT
    assert all(np.isfinite(part).all() for part in result[1:])


@pytest.mark.parametrize(
    "changes",
    [
        {"box": np.array([[[-1, 0, 2, 2]]])},
        {"box": np.array([[[0, 0, 2, 5]]])},
        {"box": np.array([[[2, 0, 1, 2]]])},
        {"place": np.array([[[0, 0, 1]]])},
        {"place": np.array([[[0, -1, 0]]])},
        {"noise": np.full((1, 1, 1), 0.5)},
    ],
    ids=["before", "behind", "turned", "too high", "beside", "too little noise"],
)
def test_nothing_outside_is_read_or_written(changes: dict[str, Any]) -> None:
    logits = blank()
    with pytest.raises(IndexError, match="outside"):
        fuse_once(logits, [[0, 0, 2, 2]], [[0.5, 0.5]], **changes)
    assert not logits.any()


def test_loops_are_compiled_without_a_folder_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(number: int) -> int:
        return 2 * number

    monkeypatch.setattr(numba.core.caching.CompileResultCacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(twice)
    assert fusion_numba.compile_loops(twice)(4) == 8
