"""The information-gain plan in plain numpy: UAV by UAV and cell by cell in float64, on beliefs instead of log odds."""

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MOVES = ((0, 0, 1), (-1, 0, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0), (0, 0, -1))
ACCURACY = (0.99, 0.735, 0.625)  # at 5, 10 and 15 m
HALF = (28, 57, 85)  # cells on each side of a footprint's centre
CELLS, CELL, LATTICE, SPACING = 493, 10 * np.tan(np.pi / 6) / 57, 11, 5.0
floor = math.floor  # of the centres of footprints
LEAST = 1e-4  # beliefs stay this far from 0 and 1


def rectangle(place: tuple[int, ...]) -> tuple[slice, slice]:
    """Return rows (y) and columns (x) of the footprint of a place."""
    centres = (floor(axis * SPACING / CELL) for axis in (place[1], place[0]))
    half = HALF[place[2]]
    rows, columns = (slice(max(at - half, 0), min(at + half, CELLS - 1)) for at in centres)
    return rows, columns


def update(belief: Array, measurement: float) -> Array:
    """Return beliefs after a measurement that is stored as the sensor's accuracy, or 1 minus it."""
    odds = belief / (1 - belief) * measurement / (1 - measurement)
    return np.clip(odds / (1 + odds), LEAST, 1 - LEAST)


def entropy(belief: Array) -> Array:
    """Return the entropy of each cell (bits)."""
    return -belief * np.log2(belief) - (1 - belief) * np.log2(1 - belief)


def weight(belief: Array) -> Array:
    """Return 1 above 0.501, 0 below 0.499, else the belief."""
    return np.where(belief > 0.501, 1.0, np.where(belief < 0.499, 0.0, belief))


def footprint_gain(belief: Array, accuracy: float) -> float:
    """Return the information gain of a footprint (1000 bits)."""
    hit, miss = update(belief, accuracy), update(belief, 1 - accuracy)
    gain = belief * (entropy(belief) - entropy(hit)) * weight(hit)
    return float((gain + (1 - belief) * (entropy(belief) - entropy(miss)) * weight(miss)).sum()) / 1000


def choose(beliefs: Array, places: list[list[int]], masked: bool = True) -> tuple[list[int], float]:
    """Return the move of each UAV, and the smallest lead of a chosen share over the next one.

    ``beliefs`` are the UAVs' own maps (A H H). Without ``masked`` UAVs may fly above or below each other.
    """
    after: list[dict[int, Any]] = []
    for uav, place in enumerate(places):
        there = {move: tuple(np.add(place, step).tolist()) for move, step in enumerate(MOVES)}
        legal = {
            move: (x, y, z)
            for move, (x, y, z) in there.items()
            if 0 <= x < LATTICE and 0 <= y < LATTICE and 0 <= z < len(HALF)
        }
        occupied = [tuple(other[:2]) for other in places[:uav]] if masked else []
        after.append({move: to for move, to in legal.items() if to[:2] not in occupied} or legal)
    share = []
    for uav, moves in enumerate(after):
        gain = {move: footprint_gain(beliefs[uav][rectangle(to)], ACCURACY[to[2]]) for move, to in moves.items()}
        share.append({move: value / sum(gain.values()) for move, value in gain.items()})
    for uav, moves in enumerate(after):
        for move, to in moves.items():
            for other, rivals in enumerate(after):
                for theirs, where in rivals.items():
                    if other != uav and where == to:
                        share[uav][move] *= 1 - share[other][theirs]
    chosen = [max(each, key=lambda move: (each[move], -move)) for each in share]
    leads = [
        each[best] - max(v for m, v in each.items() if m != best) for each, best in zip(share, chosen, strict=True)
    ]
    return chosen, min(leads)
