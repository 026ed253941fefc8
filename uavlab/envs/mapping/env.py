"""Informative mapping: a team of UAVs maps targets by a limited number of noisy measurements.

UAVs move on a lattice of places with integer coordinates (x, y, altitude) and measure the cells below them: footprints
grow with altitude, and so does the error probability. Maps are rows (y) by columns (x).

Source:
    Westheider, Rückin, Popović 2023, "Multi-UAV Adaptive Path Planning Using Deep Reinforcement Learning".
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, get_args

import torch
from annotated_types import Ge, Gt, Le, Len, Lt
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.types import EnvSpec, MapObs, Metric, Rule, tensors
from uavlab.envs.mapping.fusion import Measurement, fuse
from uavlab.envs.mapping.geometry import MOVES, Lattice, averages, global_positions, last_footprints, local_positions
from uavlab.ops.belief_maps import MIN_BELIEF, above, belief, centre_maps, entropy, weighted_entropy
from uavlab.ops.geometry import constant

Channel = Literal["budget", "number", "places", "entropy", "near", "belief", "seen"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)
FIXED = 3  # channels that centring leaves as they are: two constants, and one that is centred already
LEAST, SPAN = 30, 31  # targets cover 30 to 60 % of a map, in steps of 1 %
WAVES = 8  # most periods per side of the map in a random field
FALL = 5.0  # power falls with the wave number to this exponent
FIELD_NOISE = 2 * (2 * WAVES + 1) * (WAVES + 1)


def halves(unit: Float[Tensor, "B 2"], cells: int) -> Bool[Tensor, "B cells cells"]:
    """Draw square maps with targets on one side of a straight line."""
    side, cell = (4 * unit[:, 0]).long(), torch.arange(cells, device=unit.device)
    edge = (_share(unit[:, 1]) * cells).round()[:, None]
    line = torch.where((side % 2 == 0)[:, None], cell < edge, cell >= cells - edge)
    along, down = line[:, None].expand(-1, cells, -1), line[:, :, None].expand(-1, -1, cells)
    return torch.where((side < 2)[:, None, None], along, down)


def fields(unit: Float[Tensor, "B K"], cells: int) -> Bool[Tensor, "B cells cells"]:
    """Draw maps with targets where a sum of up to ``WAVES`` random waves is highest; ``unit``: share, then noise."""
    share, noise = unit.split([1, FIELD_NOISE], dim=1)
    height = heights(noise, cells).flatten(1)
    free = ((1 - _share(share)) * cells**2).long().clamp(0, cells**2 - 1)
    edge = height.sort(1).values.gather(1, free)
    return (height >= edge).view(-1, cells, cells)


def heights(noise: Float[Tensor, "B K"], cells: int) -> Float[Tensor, "B cells cells"]:
    """Sum waves whose amplitudes fall with the wave number to the power of 2.5; ``FIELD_NOISE`` numbers per map."""
    across = torch.arange(-WAVES, WAVES + 1, device=noise.device)
    down = torch.arange(WAVES + 1, device=noise.device)
    number = torch.hypot(down[:, None].to(noise.dtype), across.to(noise.dtype))
    once = (down[:, None] > 0) | (across > 0)  # waves k and -k are equal; k = 0 is the mean
    power = torch.where(once, number.clamp_min(1) ** -FALL, 0.0)
    radius, turn = noise.view(len(noise), 2, WAVES + 1, 2 * WAVES + 1).unbind(1)
    size = (power * -2 * (1 - radius).log()).sqrt()  # Rayleigh: heights are then normally distributed
    wave = torch.polar(size, 2 * math.pi * turn)
    place = 2 * math.pi * torch.arange(cells, device=noise.device, dtype=noise.dtype) / cells
    ones = torch.ones((), dtype=noise.dtype, device=noise.device)
    rows, columns = torch.polar(ones, place[:, None] * down), torch.polar(ones, place[:, None] * across)
    return (rows @ wave @ columns.mT).real


def _share(unit: Tensor) -> Tensor:
    return (LEAST + (SPAN * unit).floor()) / 100


GENERATORS = {"halves": (2, halves), "fields": (1 + FIELD_NOISE, fields)}
"""Generators of ground truth: how many uniform numbers each takes, and its function."""


@tensors
class State:
    """State of a batch of missions."""

    place: Int[Tensor, "B A 3"]  # lattice: x, y, altitude
    truth: Int[Tensor, "B H H"]  # 1 where targets are, else 0
    logits: Int[Tensor, "B A+1 H H"]  # each UAV's own map, then the team's: steps of log odds, see ``ops.belief_maps``
    mean: Float[Tensor, "B A+1 L L"]  # signed beliefs of these maps, averaged down to the lattice
    footprint: Float[Tensor, "B A L L"]  # averaged signed beliefs of each UAV's last footprint in its own map
    link: Bool[Tensor, "B A A"]  # [b, i, j]: UAV i received the last measurement of j, or i = j
    uncertainty: Float[Tensor, " B"]  # weighted entropy of the team's map, summed over cells (bits)
    gain: Float[Tensor, " B"]  # share of the uncertainty that the last measurements removed
    remaining: Int[Tensor, " B"]  # measurements that each UAV may still make
    step: Int[Tensor, " B"]  # number of steps


RULES: tuple[Rule, ...] = (
    (
        ("uavs", "lattice"),
        lambda n, size: n <= size**2,
        "uavs {0} > lattice {1} x {1}: they would not fit side by side",
    ),
    (("cells", "lattice"), lambda n, size: n >= size, "cells {0} < lattice {1}: places would lie closer than cells"),
    (
        ("starts", "lattice"),
        lambda starts, size: starts == "random" or size >= 5,
        "starts {0}: a lattice of {1} has no corners two places from its border; use starts=random",
    ),
    (
        ("cells", "cell", "lattice", "spacing"),
        lambda n, cell, size, spacing: (n + 1) * cell >= (size - 1) * spacing,
        "cells {0} x cell {1} m < (lattice {2} - 1) x spacing {3} m: UAVs would leave the map",
    ),
    (("channels",), lambda names: len(set(names)) == len(names), "channels {0}: expected each at most once"),
    (
        ("spacing", "cell", "view_deg"),
        lambda spacing, cell, view_deg: spacing * math.tan(math.radians(view_deg / 2)) >= cell,
        "spacing {0} m, cell {1} m, view_deg {2}: from the lowest altitude no whole cell is seen",
    ),
)


@dataclass(frozen=True)
class Mapping:
    """A mapping mission; the defaults are the published parameters, with the reward paid when it is earned.

    Observations are lattice maps (L x L), averages over the cells around each place:

    | channel of a UAV | content                                                                  | range           |
    | ---------------- | ------------------------------------------------------------------------ | --------------- |
    | budget           | share of measurements left                                               | [0, 1]          |
    | number           | its number from 1, divided by A                                          | (0, 1]          |
    | places           | around itself: altitude z of UAVs that it heard and its own, as          | (z + 1)/(Z + 1) |
    |                  | elsewhere: 1 within the lattice, 0 outside                               | 0, 1            |
    | entropy          | weighted entropy of its map (bit)                                        | [0, 1]          |
    | near             | weighted entropy of its last footprint, enlarged to L x L (bit)          | [0, 1]          |
    | belief           | probability of targets by its map                                        | (0, 1)          |
    | seen             | 1 in its last footprint, 0 in those it heard of, 0.5 elsewhere           | [0, 1]          |

    | channel of the team | content, for the critic                                               | range           |
    | ------------------- | --------------------------------------------------------------------- | --------------- |
    | 0                   | altitude z of all UAVs, 0 elsewhere                                   | (z + 1)/Z       |
    | 1, 2                | weighted entropy (bit) and belief of the team's map                   | [0, 1]          |
    | 3                   | 1 in any last footprint, 0 elsewhere                                  | [0, 1]          |

    Action: one of six ``MOVES`` by ``spacing``. Moves out of the lattice are illegal; learned policies also mask moves
    to the x and y that an earlier UAV of the team chose.

    Reward, equal for all UAVs: ``reward_scale`` x the share of the weighted entropy of the team's map that a step's
    measurements remove, plus ``reward_offset``.

    End, for all UAVs: no measurement is left.

    Attributes:
        uavs: UAVs in the team (A).
        cells: Cells along each side of the map (H).
        cell: Side of a cell (m).
        spacing: Distance between neighbours on the lattice (m), in each direction.
        lattice: Places along each side of the lattice (L).
        flip: Chance that a cell is measured wrongly, by altitude; the lowest is ``spacing`` above the ground.
        view_deg: Field of view along both axes (degrees).
        reach: Distance within which UAVs receive each other's measurements (m).
        dropout: Chance that a message of one UAV does not reach another, per step.
        measurements: Measurements of each UAV, the one at its start included.
        truth: Where targets are: on one side of a straight line, as published, or where a random field is high.
        starts: Where UAVs begin, at the top altitude: the four ``corners`` of the published task, which more than four
            share, or ``random`` places.
        reward_scale: Reward for removing all of the weighted entropy at once.
        reward_offset: Added to each reward.
        centred: Whether all maps are centred on each UAV; as published, only its map of UAVs is.
        channels: Channels that each UAV observes, among ``CHANNELS``; all of them, as published.
        lagged: Quirk: the reward of a step is that of the measurements before it.
    """

    uavs: Annotated[int, Ge(1), Le(64)] = 4
    cells: Annotated[int, Ge(16), Le(4096)] = 493
    cell: Annotated[float, Gt(0), Le(100)] = 2 * 5 * math.tan(math.radians(30)) / 57
    spacing: Annotated[float, Gt(0), Le(1000)] = 5.0
    lattice: Annotated[int, Ge(2), Le(256)] = 11
    flip: Annotated[tuple[Annotated[float, Gt(0), Lt(0.5)], ...], Len(1, 16)] = (0.01, 0.265, 0.375)
    view_deg: Annotated[float, Gt(0), Lt(180)] = 60.0
    reach: Annotated[float, Ge(0), Le(1e6)] = 25.0
    dropout: Annotated[float, Ge(0), Le(1)] = 0.0
    measurements: Annotated[int, Ge(2), Le(10_000)] = 15
    truth: Literal["halves", "fields"] = "halves"
    starts: Literal["corners", "random"] = "corners"
    reward_scale: Annotated[float, Ge(-1e6), Le(1e6)] = 22.0
    reward_offset: Annotated[float, Ge(-1e6), Le(1e6)] = -0.5
    centred: bool = False
    channels: Annotated[tuple[Channel, ...], Len(1, len(CHANNELS))] = CHANNELS
    lagged: bool = False

    overwrites: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("entropy", "last", "bit", "low", (0.0, math.inf)),
        Metric("f1", "last", bounds=(0.0, 1.0)),
    )
    labels: ClassVar[dict[str, str]] = {
        "entropy": "entropy of cells with targets",
        "f1": "F1 of targets",
        "uavs": "UAVs",
        "cells": "cells along a side",
        "cell": "side of a cell (m)",
        "spacing": "spacing of the lattice (m)",
        "view_deg": "field of view (°)",
        "reach": "range of messages (m)",
        "dropout": "chance that a message is lost",
    }
    score: ClassVar[dict[str, float]] = {"entropy": -1.0}
    rules: ClassVar[tuple[Rule, ...]] = RULES

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            agents=self.uavs,
            obs=len(self.channels),
            action=1,
            horizon=self.measurements - 1,
            dt=1.0,  # nothing in the task depends on it
            initial_noise=self.initial_noise,
            step_noise=self.step_noise,
            groups=(0,) * self.uavs,
            choices=len(MOVES),
            team=4,
            side=self.lattice,
            centred=self.centred,
        )

    @property
    def places(self) -> Lattice:
        return Lattice(self.cells, self.cell, self.spacing, self.lattice, len(self.flip), self.view_deg)

    @property
    def step_noise(self) -> int:
        """Uniform numbers per mission and step: one per two cells of a footprint, and one per pair of UAVs."""
        return self.uavs * -(-self.places.widest // 2) + self.uavs**2

    @property
    def initial_noise(self) -> int:
        """Uniform numbers per mission: those of the truth, of the starts and of the first measurement."""
        return GENERATORS[self.truth][0] + 2 * self.uavs + self.step_noise

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        numbers, draw_truth = GENERATORS[self.truth]
        split, start, rest = noise.split([numbers, 2 * self.uavs, self.step_noise], dim=1)
        missions, device = len(noise), noise.device
        maps, size = self.uavs + 1, self.lattice
        blank = State(
            place=self._starts(start.view(missions, self.uavs, 2)),
            truth=draw_truth(split, self.cells).to(torch.int8),
            logits=torch.zeros(missions, maps, self.cells, self.cells, dtype=torch.int16, device=device),
            mean=noise.new_zeros(missions, maps, size, size),
            footprint=noise.new_zeros(missions, self.uavs, size, size),
            link=torch.ones(missions, self.uavs, self.uavs, dtype=torch.bool, device=device),
            uncertainty=noise.new_full((missions,), 0.5 * self.cells**2),  # 1 bit for each cell, at a weight of 0.5
            gain=noise.new_zeros(missions),
            remaining=torch.full((missions,), self.measurements - 1, device=device),
            step=torch.zeros(missions, dtype=torch.int64, device=device),
        )
        return self._measure(blank, blank.place, rest)

    def transition(self, state: State, action: Int[Tensor, "B A"], noise: Float[Tensor, "B K"]) -> State:
        """Move all UAVs, measure, and exchange the measurements; UAVs do not leave the lattice."""
        self._require_shapes(state)
        counted = replace(state, remaining=(state.remaining - 1).clamp_min(0), step=state.step + 1)
        return self._measure(counted, self.places.move(state.place, action), noise)

    def observe(self, state: State) -> MapObs:
        self._require_shapes(state)
        place, uavs, size = state.place, self.uavs, self.lattice
        own, near = _mean_belief(state.mean), _mean_belief(state.footprint)
        budget = state.remaining.to(own.dtype) / (self.measurements - 1)
        number = (torch.arange(uavs, device=place.device).to(own.dtype) + 1) / uavs
        one = own.new_ones(len(place), uavs, size, size)
        seen, seen_by_any = last_footprints(self.places, place, state.link, own.dtype)
        maps = (
            one * budget[:, None, None, None],
            one * number[:, None, None],
            local_positions(self.places, place, state.link),
            weighted_entropy(own[:, :-1]),
            weighted_entropy(near),
            own[:, :-1],
            seen,
        )
        team = (global_positions(self.places, place), weighted_entropy(own[:, -1]), own[:, -1], seen_by_any)
        return self.complete(place, torch.stack(maps, 2), torch.stack(team, 1))

    def complete(self, place: Tensor, maps: Tensor, team: Tensor) -> MapObs:
        """Centre and select channels, and add places and legal moves."""
        spot = place[..., 1] * self.lattice + place[..., 0]
        if self.centred:
            maps = torch.cat((maps[:, :, :FIXED], centre_maps(maps[:, :, FIXED:], spot)), 2)
        if self.channels != CHANNELS:
            seen = constant(tuple(map(CHANNELS.index, self.channels)), maps.device, torch.int64)
            maps = maps.index_select(2, seen)
        return MapObs(maps, team, spot, self.places.legal(place), self.target_cell(place))

    def target_cell(self, place: Int[Tensor, "B A 3"]) -> Int[Tensor, "B A 6"]:
        """Return the number of the cell on the ground, row by row, that each move leads to."""
        target = place[..., None, :2] + constant(MOVES, place.device, torch.int64)[:, :2]
        return target[..., 1] * self.lattice + target[..., 0]

    def reward(self, state: State, action: Int[Tensor, "B A"], after: State) -> Float[Tensor, "B A"]:
        gain = (state if self.lagged else after).gain
        return (self.reward_scale * gain + self.reward_offset)[:, None].expand(-1, self.uavs)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        return (state.remaining == 0)[:, None].expand(-1, self.uavs)

    def measure(self, state: State, action: Int[Tensor, "B A"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Score the team's map: mean entropy (bits) over cells with targets, and F1 of targets at a belief of 0.5."""
        chance, truth = belief(after.logits[:, -1], after.mean.dtype), after.truth.to(after.mean.dtype)
        targets = truth.sum((1, 2))
        positive = above(chance, 0.5)
        true_positives = (positive * truth).sum((1, 2))
        return {
            "entropy": (entropy(chance) * truth).sum((1, 2)) / targets.clamp_min(1),
            "f1": 2 * true_positives / (targets + positive.sum((1, 2))).clamp_min(1),
        }

    def _require_shapes(self, state: State) -> None:
        maps = self.uavs + 1, self.cells, self.cells
        shapes = {"place": (self.uavs, 3), "truth": maps[1:], "logits": maps, "mean": (maps[0], *2 * (self.lattice,))}
        for name, shape in shapes.items():
            got = tuple(getattr(state, name).shape)
            if got[1:] != shape:
                expected = ", ".join(map(str, shape))
                raise ConfigError(
                    f"Mapping: state.{name} has shape {got}; expected (missions, {expected}) of {self.uavs} UAVs, "
                    f"{self.cells} cells and a lattice of {self.lattice}. Use states that this object's initial drew."
                )

    def _measure(self, state: State, place: Tensor, noise: Tensor) -> State:
        uavs, missions = self.uavs, len(place)
        flips, drops = noise.split([noise.shape[1] - uavs**2, uavs**2], dim=1)
        link = self._link(place, drops.view(missions, uavs, uavs))
        measurement = Measurement(
            state.truth,
            place,
            torch.cat(self.places.footprint(place), -1),
            torch.cat((link, link.new_ones(missions, 1, uavs)), 1),  # the team's map receives all
            flips.unflatten(1, (uavs, -1)),
            self.flip,
            *averages(self.places, noise.device, noise.dtype),
        )
        logits, mean, footprint, added, removed = fuse(state.logits, state.mean, measurement, reuse=self.overwrites)
        total = state.uncertainty + added
        return replace(
            state,
            place=place,
            logits=logits,
            mean=mean,
            footprint=footprint,
            link=link,
            uncertainty=total - removed,
            gain=removed / total,
        )

    def _link(self, place: Tensor, drop: Tensor) -> Tensor:
        apart = (place[:, :, None] - place[:, None]).to(drop.dtype).square().sum(-1).sqrt() * self.spacing
        own = torch.eye(self.uavs, dtype=torch.bool, device=place.device)
        return ((apart <= self.reach) & (drop >= self.dropout)) | own

    def _starts(self, unit: Tensor) -> Tensor:
        if self.starts == "corners":
            near, far = 2, self.lattice - 3
            ends = ((near, near), (far, near), (far, far), (near, far))
            corners = constant(ends, unit.device, torch.int64)
            place = corners[torch.arange(self.uavs, device=unit.device) % 4].expand(len(unit), -1, -1)
        else:
            place = (unit * self.lattice).long()
        return torch.cat((place, torch.full_like(place[..., :1], len(self.flip) - 1)), -1)


@dataclass(frozen=True)
class OverwrittenMapping(Mapping):
    """The task for callers that use each state once: on a CPU, ``transition`` overwrites the maps of its argument."""

    overwrites: ClassVar[bool] = True


def _mean_belief(signed: Tensor) -> Tensor:
    return (signed / 2 + 0.5).clamp(MIN_BELIEF, 1 - MIN_BELIEF)
