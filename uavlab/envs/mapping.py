"""Informative mapping: a team of UAVs measures where targets are, low and sure or high and wide, within a budget.

UAVs move on a lattice, u = (x, y, altitude) as whole numbers, and measure the cells below them. Maps are rows (y) by
columns (x).

Source:
    Westheider, Rückin, Popović 2023, "Multi-UAV Adaptive Path Planning Using Deep Reinforcement Learning".
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import Metric, tensors
from uavlab.envs import truths
from uavlab.envs.fusion import fuse
from uavlab.envs.lattice import Lattice, averages, bands, constant
from uavlab.ops import grids

TRUTHS = {"halves": (2, truths.halves), "fields": (1 + truths.FIELD_NOISE, truths.fields)}
"""How many uniform numbers each kind of truth takes, and how it is drawn."""


@tensors
class State:
    """Everything that changes in a batch of missions."""

    place: Int[Tensor, "B A 3"]  # lattice: x, y, altitude
    truth: Int[Tensor, "B H H"]  # 1 where targets are, else 0
    logits: Int[Tensor, "B A+1 H H"]  # each UAV's own map, then the team's: steps of log odds, see ``ops.grids``
    mean: Float[Tensor, "B A+1 L L"]  # their leanings (twice the belief, less 1), averaged down to the lattice
    near: Float[Tensor, "B A L L"]  # the same of the part of its own map that each UAV last measured
    link: Bool[Tensor, "B A A"]  # who heard whom after the last measurement, oneself included
    doubt: Float[Tensor, " B"]  # weighted entropy of the team's map, summed over cells (bits)
    gain: Float[Tensor, " B"]  # share of it that the last measurement took away
    step: Int[Tensor, " B"]  # steps taken


@tensors
class Obs:
    """What a team sees: maps of the lattice's size."""

    maps: Float[Tensor, "B A C L L"]  # see ``Mapping.observe``
    team: Float[Tensor, "B K L L"]  # what a critic may see beyond that
    place: Int[Tensor, "B A 3"]
    legal: Bool[Tensor, "B A 6"]  # moves within the lattice


@dataclass(frozen=True)
class Mapping:
    """Parameters of the task; the defaults are the published ones, with the reward paid when it is earned.

    Attributes:
        uavs: UAVs in the team (A).
        cells: Cells along each side of the map (H).
        cell: Side of a cell (m).
        spacing: Distance between neighbours on the lattice (m), in each direction.
        lattice: Places along each side of the lattice (L).
        flip: Chance that a cell is measured wrongly, by altitude; the lowest is ``spacing`` above the ground.
        view_deg: Field of view, across and along.
        reach: Distance within which UAVs hear each other (m).
        dropout: Chance that what one says does not reach another, per step.
        measurements: Measurements of each UAV, the one at its start included.
        truth: Where targets are: on one side of a straight line, as published, or high up in a random field.
        starts: Where UAVs begin, at the top altitude: the four ``corners`` of the published task, which more than four
            share, or ``random`` places.
        reward_scale: Reward for taking away all of the weighted entropy at once.
        reward_offset: Added to each reward.
        lagged: Quirk: the reward of a step is that of the measurement before it.
    """

    uavs: int = 4
    cells: int = 493
    cell: float = 2 * 5 * math.tan(math.radians(30)) / 57
    spacing: float = 5.0
    lattice: int = 11
    flip: tuple[float, ...] = (0.01, 0.265, 0.375)
    view_deg: float = 60.0
    reach: float = 25.0
    dropout: float = 0.0
    measurements: int = 15
    truth: Literal["halves", "fields"] = "halves"
    starts: Literal["corners", "random"] = "corners"
    reward_scale: float = 22.0
    reward_offset: float = -0.5
    lagged: bool = False

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("entropy", "last", "bit", better="low"), Metric("f1", "last"))
    score: ClassVar[dict[str, float]] = {"entropy": -1.0}

    @cached_property
    def places(self) -> Lattice:
        """Where UAVs can be, and what they see from there."""
        return Lattice(self.cells, self.cell, self.spacing, self.lattice, len(self.flip), self.view_deg)

    @cached_property
    def step_noise(self) -> int:
        """Uniform numbers per mission and step: one for two cells that a UAV sees, and one for each pair of UAVs."""
        return self.uavs * -(-self.places.widest // 2) + self.uavs**2

    @cached_property
    def initial_noise(self) -> int:
        """Uniform numbers per mission: the truth's, the starts' and those of the first measurement."""
        return TRUTHS[self.truth][0] + 2 * self.uavs + self.step_noise

    def initial(self, noise: Float[Tensor, "B K"], stage: Int[Tensor, " B"]) -> State:
        """Draw fresh missions and measure once."""
        numbers, draw_truth = TRUTHS[self.truth]
        split, start, rest = noise.split([numbers, 2 * self.uavs, self.step_noise], dim=1)
        missions, device = len(noise), noise.device
        maps, size = self.uavs + 1, self.lattice
        blank = State(
            place=self._starts(start.view(missions, self.uavs, 2)),
            truth=draw_truth(split, self.cells).to(torch.int8),
            logits=torch.zeros(missions, maps, self.cells, self.cells, dtype=torch.int16, device=device),
            mean=noise.new_zeros(missions, maps, size, size),
            near=noise.new_zeros(missions, self.uavs, size, size),
            link=torch.ones(missions, self.uavs, self.uavs, dtype=torch.bool, device=device),
            doubt=noise.new_full((missions,), 0.5 * self.cells**2),  # 1 bit for each cell, at a weight of 0.5
            gain=noise.new_zeros(missions),
            step=torch.zeros(missions, dtype=torch.int64, device=device),
        )
        return self._measured(blank, blank.place, rest, blank.step)

    def transition(self, state: State, action: Int[Tensor, "B A"], noise: Float[Tensor, "B K"]) -> State:
        """Move everybody, then measure and exchange; who would leave the lattice stays."""
        return self._measured(state, self.places.moved(state.place, action), noise, state.step + 1)

    def observe(self, state: State) -> Obs:
        """Show each UAV seven maps of the lattice's size, and a critic four more of the whole team.

        A UAV's own: share of the budget left; its number; itself and those it heard, seen from its own place, by
        altitude; weighted entropy of its map; the same of the part it last measured; its map; who last measured
        what, 1 itself, 0 others that it heard, 0.5 nobody. The team's: all places by altitude; weighted entropy and
        belief of the team's map; what was last measured. Maps are averaged down to the lattice first.
        """
        place, uavs, size = state.place, self.uavs, self.lattice
        own, near = _belief(state.mean), _belief(state.near)
        missions = len(place)
        left = 1 - state.step.to(own.dtype) / max(1, self.measurements - 1)
        number = (torch.arange(uavs, device=place.device) + 1) / uavs
        one = own.new_ones(missions, uavs, size, size)
        heard, anyone = _last_seen(self.places, place, state.link)
        maps = (
            one * left[:, None, None, None],
            one * number[:, None, None],
            _around(self.places, place, state.link),
            grids.weighted_entropy(own[:, :-1]),
            grids.weighted_entropy(near),
            own[:, :-1],
            heard,
        )
        team = (_everywhere(self.places, place), grids.weighted_entropy(own[:, -1]), own[:, -1], anyone)
        return Obs(maps=torch.stack(maps, 2), team=torch.stack(team, 1), place=place, legal=self.places.legal(place))

    def reward(self, state: State, action: Int[Tensor, "B A"], after: State) -> Float[Tensor, "B A"]:
        """Pay the team for the share of weighted entropy that its measurement took away, the same for everybody."""
        gain = (state if self.lagged else after).gain
        return (self.reward_scale * gain + self.reward_offset)[:, None].expand(-1, self.uavs)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """End a mission when its budget is spent."""
        return (state.step >= self.measurements - 1)[:, None].expand(-1, self.uavs)

    def measure(self, state: State, action: Int[Tensor, "B A"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Judge the team's map: mean entropy (bits) over cells with targets, and F1 of targets at a belief of 0.5."""
        belief, truth = grids.belief(after.logits[:, -1], after.mean.dtype), after.truth.to(after.mean.dtype)
        targets = truth.sum((1, 2))
        claimed = grids.above(belief, 0.5)
        right = (claimed * truth).sum((1, 2))
        doubt = (grids.entropy(belief) * truth).sum((1, 2))
        return {
            "entropy": doubt / targets.clamp_min(1),
            "f1": 2 * right / (targets + claimed.sum((1, 2))).clamp_min(1),
        }

    def _measured(self, state: State, place: Tensor, noise: Tensor, step: Tensor) -> State:
        """Measure from ``place`` and tell each other."""
        uavs, missions = self.uavs, len(place)
        flips, drops = noise.split([noise.shape[1] - uavs**2, uavs**2], dim=1)
        link = self._link(place, drops.view(missions, uavs, uavs))
        logits, mean, near, added, lost = fuse(
            state.logits,
            state.mean,
            state.truth,
            place,
            torch.cat(self.places.footprint(place), -1),
            torch.cat((link, link.new_ones(missions, 1, uavs)), 1),  # the team's map hears everybody
            flips.unflatten(1, (uavs, -1)),
            self.flip,
            *averages(self.places, noise.device, noise.dtype),
        )
        doubt = state.doubt + added
        return State(
            place=place,
            truth=state.truth,
            logits=logits,
            mean=mean,
            near=near,
            link=link,
            doubt=doubt - lost,
            gain=lost / doubt,
            step=step,
        )

    def _link(self, place: Tensor, drop: Tensor) -> Tensor:
        apart = (place[:, :, None] - place[:, None]).to(drop.dtype).square().sum(-1).sqrt() * self.spacing
        own = torch.eye(self.uavs, dtype=torch.bool, device=place.device)
        return ((apart <= self.reach) & (drop >= self.dropout)) | own

    def _starts(self, unit: Tensor) -> Tensor:
        if self.starts == "corners":
            near, far = 2, self.lattice - 3
            corners = constant(((near, near), (far, near), (far, far), (near, far)), unit.device)
            place = corners[torch.arange(self.uavs, device=unit.device) % 4].expand(len(unit), -1, -1)
        else:
            place = (unit * self.lattice).long()
        return torch.cat((place, torch.full_like(place[..., :1], len(self.flip) - 1)), -1)


def _belief(leaning: Tensor) -> Tensor:
    return (leaning / 2 + 0.5).clamp(grids.SURE, 1 - grids.SURE)


def _around(lattice: Lattice, place: Int[Tensor, "B A 3"], link: Bool[Tensor, "B A A"]) -> Float[Tensor, "B A L L"]:
    """Draw the lattice around each UAV: 0 outside, the altitudes of UAVs that it heard and its own, else 1."""
    offset = torch.arange(lattice.size, device=place.device) - lattice.size // 2
    x, y = place[..., 0, None] + offset, place[..., 1, None] + offset  # B A L
    rows, columns = (y >= 0) & (y < lattice.size), (x >= 0) & (x < lattice.size)
    inside = (rows[..., :, None] & columns[..., None, :]).float()
    at = (y[:, :, None] == place[:, None, :, 1, None])[..., :, None]
    at = at & (x[:, :, None] == place[:, None, :, 0, None])[..., None, :] & link[..., None, None]
    height = (place[..., 2] + 1) / (lattice.altitudes + 1)
    return torch.where(at.any(2), (at * height[:, None, :, None, None]).amax(2), inside)


def _everywhere(lattice: Lattice, place: Int[Tensor, "B A 3"]) -> Float[Tensor, "B L L"]:
    """Draw all UAVs where they are, by altitude."""
    grid = torch.arange(lattice.size, device=place.device)
    at = (place[..., 1, None] == grid)[..., :, None] & (place[..., 0, None] == grid)[..., None, :]
    return (at * ((place[..., 2] + 1) / lattice.altitudes)[..., None, None]).amax(1)


def _last_seen(
    lattice: Lattice, place: Int[Tensor, "B A 3"], link: Bool[Tensor, "B A A"]
) -> tuple[Float[Tensor, "B A L L"], Float[Tensor, "B L L"]]:
    """Draw what was last measured: for each UAV by itself or whom it heard, and for the team by anyone."""
    average, covered = bands(lattice, place.device, torch.float32)
    x, y, z = place.unbind(-1)
    rows, columns = covered[z, y], covered[z, x]  # B A bands
    seen = rows[..., :, None] * columns[..., None, :]
    others = link & ~torch.eye(link.shape[1], dtype=torch.bool, device=link.device)
    heard = torch.einsum("bij,bjp,bjq->bipq", others.to(seen.dtype), rows, columns)
    whose = torch.maximum(seen, 0.5 - heard.clamp_max(0.5))  # products and maxima: choices by truth values are dear
    return grids.area_resize(whose, average, average), grids.area_resize(seen.amax(1), average, average)
