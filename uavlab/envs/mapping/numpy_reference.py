"""Informative mapping in numpy and OpenCV, mission by mission on whole maps: how programs of this kind usually do it.

The slow twin of ``uavlab.envs.mapping.env``: same parameters, states, observations and noise.
"""

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from uavlab.core.types import MapObs
from uavlab.envs.mapping.env import Mapping, State
from uavlab.ops.belief_maps import LIMIT, MIN_BELIEF, STEP, UNKNOWN_MARGIN

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class HostMapping(Mapping):
    """The same task, computed on the host."""

    def observe(self, state: State) -> MapObs:
        """Show what ``Mapping.observe`` shows."""
        beliefs = ((part + 1) / 2 for part in (state.mean, state.near))
        given = (np.asarray(part) for part in (state.place, state.link, *beliefs, state.left))
        shown = [self._shown(*mission) for mission in zip(*given, strict=True)]
        maps, team = (torch.from_numpy(np.stack(part)).to(state.mean) for part in zip(*shown, strict=True))
        return self.shown(state.place, maps, team)

    def _measured(self, state: State, place: Tensor, noise: Tensor) -> State:
        given = (np.asarray(part) for part in (state.truth, place, state.logits, noise))
        made = [self._mission(*mission) for mission in zip(*given, strict=True)]
        link, maps, mean, near, doubt, gain = (torch.from_numpy(np.stack(part)) for part in zip(*made, strict=True))
        return State(
            place=place,
            truth=state.truth,
            logits=maps,
            mean=mean.to(noise),
            near=near.to(noise),
            link=link,
            doubt=doubt.to(noise),
            gain=gain.to(noise),
            left=state.left,
            step=state.step,
        )

    def _mission(self, truth: Array, place: Array, logits: Array, noise: Array) -> tuple[Any, ...]:
        """Measure, exchange and update the maps of one mission."""
        uavs = self.uavs
        flips, drops = noise[: -(uavs**2)].reshape(uavs, -1), noise[-(uavs**2) :].reshape(uavs, uavs)
        apart = np.linalg.norm((place[:, None] - place[None]) * self.spacing, axis=-1)
        link = ((apart <= self.reach) & (drops >= self.dropout)) | np.eye(uavs, dtype=bool)
        told = [self._told(truth, place[uav], flips[uav]) for uav in range(uavs)]
        maps = self._fused(logits, told, link)
        before, after, beliefs = belief(logits[-1]), belief(maps[-1]), belief(maps)
        weight = interest(after)
        lost, had = (weight * (entropy(before) - entropy(after))).sum(), (weight * entropy(before)).sum()
        mean = [self._small(each) for each in beliefs]
        near = [self._small(beliefs[uav][self._part(place[uav])]) for uav in range(uavs)]
        return (
            link,
            maps,
            2 * np.array(mean) - 1,
            2 * np.array(near) - 1,
            np.float64(had - lost),
            np.float64(lost / had),
        )

    def _fused(self, logits: Array, told: list[Array], link: Array) -> Array:
        """Add measurements to the maps of all that hear of them, the team's map last."""
        maps = logits.copy()
        for listener in range(self.uavs + 1):
            for uav in range(self.uavs):
                if listener == self.uavs or link[listener, uav]:
                    maps[listener] = np.clip(maps[listener] + told[uav], -LIMIT, LIMIT)
        return maps

    def _told(self, truth: Array, place: Array, noise: Array) -> Array:
        """Draw one UAV's measurement on a map of its own; 0 where it saw nothing."""
        part, flip = self._part(place), self.flip[place[2]]
        sure, seen = round(np.log((1 - flip) / flip) / STEP), truth[part] > 0
        chance = np.concatenate((noise, (noise * 4096) % 1))[: seen.size].reshape(seen.shape)
        told = np.zeros(truth.shape, np.int16)
        told[part] = np.where(seen ^ (chance < noise.dtype.type(flip)), sure, -sure)
        return told

    def _part(self, place: Array) -> tuple[slice, slice]:
        (top, left), (bottom, right) = self._rectangle(place)
        return slice(top, bottom), slice(left, right)

    def _rectangle(self, place: Array) -> Array:
        half, centre = self.places.half(int(place[2])), (place[1::-1] * (self.spacing / self.cell) + 0.5).astype(int)
        return np.stack((np.maximum(centre - half, 0), np.minimum(centre + half, self.cells - 1)))

    def _shown(
        self, place: Array, link: Array, mean: Array, around: Array, budget: np.integer[Any]
    ) -> tuple[Array, Array]:
        """Draw all channels of one mission, those of a UAV and those of the team, from maps that were made small."""
        size, uavs = self.lattice, self.uavs
        mean, around = (np.clip(each, MIN_BELIEF, 1 - MIN_BELIEF) for each in (mean, around))
        parts = [self._rectangle(each) for each in place]
        own = []
        for uav in range(uavs):
            seen = np.full((self.cells, self.cells), 0.5)
            for other in (*np.flatnonzero(link[uav] & (np.arange(uavs) != uav)), uav):
                (first, start), (last, end) = parts[other]
                seen[first:last, start:end] = float(other == uav)
            small, near = mean[uav], around[uav]
            own.append(
                (
                    self._even(budget / (self.measurements - 1)),
                    self._even((uav + 1) / uavs),
                    self._drawn_around(place, uav, link[uav]),
                    interest(small) * entropy(small),
                    interest(near) * entropy(near),
                    small,
                    cv2.resize(seen, (size, size), interpolation=cv2.INTER_AREA),
                )
            )
        everywhere, anyone = np.zeros((size, size)), np.zeros((self.cells, self.cells))
        for each, ((top, left), (bottom, right)) in zip(place, parts, strict=True):
            spot = (each[1], each[0])
            everywhere[spot] = max(everywhere[spot], (each[2] + 1) / len(self.flip))
            anyone[top:bottom, left:right] = 1
        small = mean[-1]
        last = cv2.resize(anyone, (size, size), interpolation=cv2.INTER_AREA)
        return np.array(own), np.array((everywhere, interest(small) * entropy(small), small, last))

    def _even(self, value: float) -> Array:
        return np.full((self.lattice, self.lattice), value)

    def _small(self, image: Array) -> Array:
        size = (self.lattice, self.lattice)
        return np.clip(
            cv2.resize(image.astype(np.float64), size, interpolation=cv2.INTER_AREA), MIN_BELIEF, 1 - MIN_BELIEF
        )

    def _drawn_around(self, place: Array, uav: int, link: Array) -> Array:
        size, centre = self.lattice, self.lattice // 2
        drawn = np.zeros((size, size))
        for row in range(size):
            for column in range(size):
                y, x = place[uav, 1] + row - centre, place[uav, 0] + column - centre
                here = [z for (ox, oy, z), heard in zip(place, link, strict=True) if heard and (ox, oy) == (x, y)]
                inside = 0 <= y < size and 0 <= x < size
                drawn[row, column] = (max(here) + 1) / (len(self.flip) + 1) if here else float(inside)
        return drawn


def belief(logits: Array) -> Array:
    """Turn steps of log odds into beliefs."""
    return 1 / (1 + np.exp(-STEP * logits.astype(np.float64)))


def entropy(belief: Array) -> Array:
    """Measure what is unknown about each cell (bits)."""
    return -(belief * np.log2(belief) + (1 - belief) * np.log2(1 - belief))


def interest(belief: Array) -> Array:
    """Weigh cells by what they seem to be: 1 for targets, 0 for free ones, themselves where nothing is known."""
    return np.where(belief > 0.5 + UNKNOWN_MARGIN, 1.0, np.where(belief < 0.5 - UNKNOWN_MARGIN, 0.0, belief))
