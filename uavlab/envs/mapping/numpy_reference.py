"""Informative mapping in numpy and OpenCV, mission by mission on whole maps: the reference of ``mapping.env``."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uavlab.core.extras import require
from uavlab.core.types import MapObs
from uavlab.envs.mapping.env import Mapping, State
from uavlab.ops.belief_maps import LIMIT, MIN_BELIEF, STEP, UNKNOWN_MARGIN

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class HostMapping(Mapping):
    """The mapping task, computed on the host, for which OpenCV must be installed."""

    def __post_init__(self) -> None:
        require("mapping", "maps=host", "cv2")

    def observe(self, state: State) -> MapObs:
        beliefs = ((part + 1) / 2 for part in (state.mean, state.footprint))
        parts = (np.asarray(part) for part in (state.place, state.link, *beliefs, state.remaining))
        channels = [self._channels(*mission) for mission in zip(*parts, strict=True)]
        maps, team = (torch.from_numpy(np.stack(part)).to(state.mean) for part in zip(*channels, strict=True))
        return self.complete(state.place, maps, team)

    def _measure(self, state: State, place: Tensor, noise: Tensor) -> State:
        parts = (np.asarray(part) for part in (state.truth, place, state.logits, noise))
        missions = [self._mission(*mission) for mission in zip(*parts, strict=True)]
        link, logits, *means = (torch.from_numpy(np.stack(part)) for part in zip(*missions, strict=True))
        mean, footprint, uncertainty, gain = (part.to(noise) for part in means)
        remaining, step = state.remaining, state.step
        return State(place, state.truth, logits, mean, footprint, link, uncertainty, gain, remaining, step)

    def _mission(self, truth: Array, place: Array, logits: Array, noise: Array) -> tuple[Any, ...]:
        uavs = self.uavs
        flips, drops = noise[: -(uavs**2)].reshape(uavs, -1), noise[-(uavs**2) :].reshape(uavs, uavs)
        apart = np.linalg.norm((place[:, None] - place[None]) * self.spacing, axis=-1)
        link = ((apart <= self.reach) & (drops >= self.dropout)) | np.eye(uavs, dtype=bool)
        changes = [self._sense(truth, place[uav], flips[uav]) for uav in range(uavs)]
        maps = self._fuse(logits, changes, link)
        beliefs, before = belief(maps), entropy(belief(logits[-1]))
        weight = target_weight(beliefs[-1])
        removed, total = (weight * (before - entropy(beliefs[-1]))).sum(), (weight * before).sum()
        mean = [self._downscale(each) for each in beliefs]
        footprint = [self._downscale(beliefs[uav][self._slices(place[uav])]) for uav in range(uavs)]
        uncertainty, gain = np.float64(total - removed), np.float64(removed / total)
        return link, maps, 2 * np.array(mean) - 1, 2 * np.array(footprint) - 1, uncertainty, gain

    def _fuse(self, logits: Array, changes: list[Array], link: Array) -> Array:
        """Add measurements to all maps that receive them, the team's map last."""
        maps = logits.copy()
        for listener in range(self.uavs + 1):
            for uav in range(self.uavs):
                if listener == self.uavs or link[listener, uav]:
                    maps[listener] = np.clip(maps[listener] + changes[uav], -LIMIT, LIMIT)
        return maps

    def _sense(self, truth: Array, place: Array, noise: Array) -> Array:
        """Draw one UAV's measurement as changes of log odds, 0 outside its footprint."""
        part, flip = self._slices(place), self.flip[place[2]]
        step, targets = round(np.log((1 - flip) / flip) / STEP), truth[part] > 0
        chance = np.concatenate((noise, (noise * 4096) % 1))[: targets.size].reshape(targets.shape)
        change = np.zeros(truth.shape, np.int16)
        change[part] = np.where(targets ^ (chance < noise.dtype.type(flip)), step, -step)
        return change

    def _slices(self, place: Array) -> tuple[slice, slice]:
        (top, left), (bottom, right) = self._rectangle(place)
        return slice(top, bottom), slice(left, right)

    def _rectangle(self, place: Array) -> Array:
        half, centre = self.places.half(int(place[2])), (place[1::-1] * (self.spacing / self.cell) + 1e-6).astype(int)
        return np.stack((np.maximum(centre - half, 0), np.minimum(centre + half, self.cells - 1)))

    def _channels(
        self, place: Array, link: Array, mean: Array, footprint: Array, remaining: np.integer[Any]
    ) -> tuple[Array, Array]:
        size, uavs = self.lattice, self.uavs
        mean, footprint = (np.clip(each, MIN_BELIEF, 1 - MIN_BELIEF) for each in (mean, footprint))
        parts = [self._rectangle(each) for each in place]
        own = []
        for uav in range(uavs):
            seen = np.full((self.cells, self.cells), 0.5)
            for other in (*np.flatnonzero(link[uav] & (np.arange(uavs) != uav)), uav):
                (first, start), (last, end) = parts[other]
                seen[first:last, start:end] = float(other == uav)
            small, near = mean[uav], footprint[uav]
            own.append(
                (
                    self._constant(remaining / (self.measurements - 1)),
                    self._constant((uav + 1) / uavs),
                    self._local_positions(place, uav, link[uav]),
                    target_weight(small) * entropy(small),
                    target_weight(near) * entropy(near),
                    small,
                    area_resize(seen, size),
                )
            )
        everywhere, anyone = np.zeros((size, size)), np.zeros((self.cells, self.cells))
        for each, ((top, left), (bottom, right)) in zip(place, parts, strict=True):
            spot = (each[1], each[0])
            everywhere[spot] = max(everywhere[spot], (each[2] + 1) / len(self.flip))
            anyone[top:bottom, left:right] = 1
        small = mean[-1]
        last = area_resize(anyone, size)
        return np.array(own), np.array((everywhere, target_weight(small) * entropy(small), small, last))

    def _constant(self, value: float) -> Array:
        return np.full((self.lattice, self.lattice), value)

    def _downscale(self, image: Array) -> Array:
        small = area_resize(image.astype(np.float64), self.lattice)
        return np.clip(small, MIN_BELIEF, 1 - MIN_BELIEF)

    def _local_positions(self, place: Array, uav: int, link: Array) -> Array:
        size, centre = self.lattice, self.lattice // 2
        positions = np.zeros((size, size))
        for row in range(size):
            for column in range(size):
                y, x = place[uav, 1] + row - centre, place[uav, 0] + column - centre
                here = [z for (ox, oy, z), heard in zip(place, link, strict=True) if heard and (ox, oy) == (x, y)]
                inside = 0 <= y < size and 0 <= x < size
                positions[row, column] = (max(here) + 1) / (len(self.flip) + 1) if here else float(inside)
        return positions


def area_resize(image: Array, size: int) -> Array:
    import cv2

    return cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA)


def belief(logits: Array) -> Array:
    return 1 / (1 + np.exp(-STEP * logits.astype(np.float64)))


def entropy(belief: Array) -> Array:
    return -(belief * np.log2(belief) + (1 - belief) * np.log2(1 - belief))


def target_weight(belief: Array) -> Array:
    return np.where(belief > 0.5 + UNKNOWN_MARGIN, 1.0, np.where(belief < 0.5 - UNKNOWN_MARGIN, 0.0, belief))
