"""Informative mapping: a team of UAVs measures where targets are, low and sure or high and wide, within a budget.

UAVs move on a lattice, u = (x, y, altitude) as whole numbers, and measure the cells below them. Maps are rows (y) by
columns (x); belief maps are padded on the right to whole cache lines, and nothing is ever measured there.

Source:
    Westheider, Rückin, Popović 2023, "Multi-UAV Adaptive Path Planning Using Deep Reinforcement Learning".
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le, Len, Lt
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import EnvSpec, MapObs, Metric, Rule, tensors
from uavlab.envs import truths
from uavlab.envs.lattice import MOVES, Lattice, averages, bands, constant
from uavlab.ops import grids
from uavlab.ops.crops import centred

TRUTHS = {"halves": (2, truths.halves), "fields": (1 + truths.FIELD_NOISE, truths.fields)}
"""How many uniform numbers each kind of truth takes, and how it is drawn."""


@tensors
class State:
    """Everything that changes in a batch of missions."""

    place: Int[Tensor, "B A 3"]  # lattice: x, y, altitude
    truth: Float[Tensor, "B H W"]  # 1 where targets are, else 0
    odds: Float[Tensor, "B A+1 H W"]  # each UAV's own map, then the team's: belief / (1 - belief)
    link: Bool[Tensor, "B A A"]  # who heard whom after the last measurement, oneself included
    doubt: Float[Tensor, " B"]  # weighted entropy of the team's map, summed over cells (bits)
    gain: Float[Tensor, " B"]  # share of it that the last measurement took away
    step: Int[Tensor, " B"]  # steps taken


def _overlook(spacing: float, cell: float, view_deg: float) -> bool:
    """Tell whether anything is seen from the lowest altitude."""
    return spacing * math.tan(math.radians(view_deg / 2)) >= cell


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
    (
        ("spacing", "cell", "view_deg"),
        _overlook,
        "spacing {0} m, cell {1} m, view_deg {2}: from the lowest altitude no whole cell is seen",
    ),
)


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
        centred: Maps are drawn around each UAV, as far as they reach then; as published, all but who is where are not.
        lagged: Quirk: the reward of a step is that of the measurement before it.
    """

    uavs: Annotated[int, Ge(1), Le(64)] = 4
    cells: Annotated[int, Ge(16), Le(4096)] = 493
    cell: Annotated[float, Gt(0), Le(100)] = 2 * 5 * math.tan(math.radians(30)) / 57
    spacing: Annotated[float, Gt(0), Le(1000)] = 5.0
    lattice: Annotated[int, Ge(2), Le(256)] = 11
    flip: Annotated[tuple[Annotated[float, Gt(0), Lt(0.5)], ...], Len(1, 16)] = (0.01, 0.265, 0.375)
    view_deg: Annotated[float, Gt(0), Lt(180)] = 60.0
    reach: Annotated[float, Ge(0)] = 25.0
    dropout: Annotated[float, Ge(0), Le(1)] = 0.0
    measurements: Annotated[int, Ge(2), Le(10_000)] = 15
    truth: Literal["halves", "fields"] = "halves"
    starts: Literal["corners", "random"] = "corners"
    reward_scale: float = 22.0
    reward_offset: float = -0.5
    centred: bool = False
    lagged: bool = False

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("entropy", "last", "bit", better="low"), Metric("f1", "last"))
    score: ClassVar[dict[str, float]] = {"entropy": -1.0}
    rules: ClassVar[tuple[Rule, ...]] = RULES

    @cached_property
    def spec(self) -> EnvSpec:
        """Give what a learner must know."""
        return EnvSpec(
            agents=self.uavs,
            obs=7,
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

    @cached_property
    def places(self) -> Lattice:
        """Where UAVs can be, and what they see from there."""
        return Lattice(self.cells, self.cell, self.spacing, self.lattice, len(self.flip), self.view_deg)

    @cached_property
    def step_noise(self) -> int:
        """Uniform numbers per mission and step: one for each cell of each window, and one for each pair of UAVs."""
        rows, chunks = self.places.window
        return self.uavs * rows * chunks * grids.CHUNK + self.uavs**2

    @cached_property
    def initial_noise(self) -> int:
        """Uniform numbers per mission: the truth's, the starts' and those of the first measurement."""
        return TRUTHS[self.truth][0] + 2 * self.uavs + self.step_noise

    def initial(self, noise: Float[Tensor, "B K"], stage: Int[Tensor, " B"]) -> State:
        """Draw fresh missions and measure once."""
        numbers, draw_truth = TRUTHS[self.truth]
        split, start, rest = noise.split([numbers, 2 * self.uavs, self.step_noise], dim=1)
        missions, device = len(noise), noise.device
        nothing = torch.ones((missions, self.uavs + 1, self.cells, self.places.width), dtype=noise.dtype, device=device)
        blank = State(
            place=self._starts(start.view(missions, self.uavs, 2)),
            truth=draw_truth(split, self.cells, self.places.width).to(noise.dtype),
            odds=nothing,
            link=torch.ones(missions, self.uavs, self.uavs, dtype=torch.bool, device=device),
            doubt=noise.new_full((missions,), 0.5 * self.cells**2),  # 1 bit for each cell, at a weight of 0.5
            gain=noise.new_zeros(missions),
            step=torch.zeros(missions, dtype=torch.int64, device=device),
        )
        return self._measured(blank, blank.place, nothing, rest, blank.step)

    def transition(self, state: State, action: Int[Tensor, "B A"], noise: Float[Tensor, "B K"]) -> State:
        """Move everybody, then measure and exchange; who would leave the lattice stays."""
        return self._measured(state, self.places.moved(state.place, action), state.odds.clone(), noise, state.step + 1)

    def observe(self, state: State) -> MapObs:
        """Show each UAV seven maps of the lattice's size, and a critic four more of the whole team.

        A UAV's own: share of the budget left; its number; itself and those it heard, seen from its own place, by
        altitude; weighted entropy of its map; the same of the part it last measured; its map; who last measured
        what, 1 itself, 0 others that it heard, 0.5 nobody. The team's: all places by altitude; weighted entropy and
        belief of the team's map; what was last measured. Maps are averaged down to the lattice first.
        """
        place, uavs, size = state.place, self.uavs, self.lattice
        own, near = self._resized(state)
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
        return self.shown(place, torch.stack(maps, 2), torch.stack(team, 1))

    def shown(self, place: Tensor, maps: Tensor, team: Tensor) -> MapObs:
        """Add to maps who is where, and where everybody may go: two UAVs never choose the same place on the ground."""
        spot = place[..., 1] * self.lattice + place[..., 0]
        if self.centred:
            maps = torch.cat((maps[:, :, :3], centred(maps[:, :, 3:], spot)), 2)
        there = place[..., None, :2] + constant(MOVES, place.device)[:, :2]
        return MapObs(
            maps=maps,
            team=team,
            place=spot,
            legal=self.places.legal(place),
            claims=there[..., 1] * self.lattice + there[..., 0],
        )

    def reward(self, state: State, action: Int[Tensor, "B A"], after: State) -> Float[Tensor, "B A"]:
        """Pay the team for the share of weighted entropy that its measurement took away, the same for everybody."""
        gain = (state if self.lagged else after).gain
        return (self.reward_scale * gain + self.reward_offset)[:, None].expand(-1, self.uavs)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """End a mission when its budget is spent."""
        return (state.step >= self.measurements - 1)[:, None].expand(-1, self.uavs)

    def measure(self, state: State, action: Int[Tensor, "B A"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Judge the team's map: mean entropy (bits) over cells with targets, and F1 of targets at a belief of 0.5."""
        belief, truth = grids.belief(after.odds[:, -1, :, : self.cells]), after.truth[..., : self.cells]
        targets = truth.sum((1, 2))
        claimed = grids.above(belief, 0.5 + 1e-6)  # measurements that cancel leave 0.5, give or take a rounding
        right = (claimed * truth).sum((1, 2))
        doubt = (grids.entropy(belief) * truth).sum((1, 2))
        return {
            "entropy": doubt / targets.clamp_min(1),
            "f1": 2 * right / (targets + claimed.sum((1, 2))).clamp_min(1),
        }

    def _measured(self, state: State, place: Tensor, odds: Tensor, noise: Tensor, step: Tensor) -> State:
        """Measure from ``place``, tell each other, and write what was learned into ``odds``."""
        rows, chunks = self.places.window
        across, uavs, missions = self.places.width // grids.CHUNK, self.uavs, len(place)
        flips, drops = noise.split([noise.shape[1] - uavs**2, uavs**2], dim=1)
        link = self._link(place, drops.view(missions, uavs, uavs))
        low, high = self.places.footprint(place)
        top = low[..., 0].clamp_max(self.cells - rows)
        left = (low[..., 1] // grids.CHUNK).clamp_max(across - chunks)
        index = grids.chunk_index(top, left, rows, chunks, across)
        row = top[..., None] + torch.arange(rows, device=top.device)
        column = (left * grids.CHUNK)[..., None] + torch.arange(chunks * grids.CHUNK, device=top.device)
        of_map = torch.arange(missions, device=top.device)[:, None, None, None] * (self.cells * across)
        of_uav = torch.arange(uavs + 1, device=top.device)[:, None, None] * (self.cells * across)
        mine = (uavs + 1) * of_map + of_uav[-1] + index
        before = grids.read_chunks(odds, mine)
        told = self._told(place, grids.read_chunks(state.truth, index + of_map), flips)
        down, along = grids.within(low[:, None], high[:, None], row[:, :, None], column[:, :, None])  # window, whose
        own = torch.arange(uavs, device=top.device)
        told.mul_(down[:, own, own, :, None]).mul_(along[:, own, own, None, :])
        heard = torch.cat((link, link.new_ones(missions, 1, uavs)), 1).to(odds.dtype)  # the team's map hears everybody
        window = odds.new_empty(missions, uavs + 1, *told.shape[2:])
        ratio = torch.empty_like(window)  # both written again and again: fresh memory costs more than the sums
        for uav in range(uavs):
            where = index[:, uav : uav + 1] + (uavs + 1) * of_map + of_uav
            torch.mul(heard[:, :, uav, None, None], told[:, uav : uav + 1], out=ratio).add_(1)
            grids.write_chunks(odds, where, grids.update_(grids.read_chunks(odds, where, window), ratio))
        had, lost = _lost(before, grids.read_chunks(odds, mine), _first_seen(down, along))
        doubt = state.doubt + had
        return State(
            place=place,
            truth=state.truth,
            odds=odds,
            link=link,
            doubt=doubt - lost,
            gain=lost / doubt,
            step=step,
        )

    def _told(self, place: Tensor, truth: Tensor, noise: Tensor) -> Tensor:
        """Measure windows of the truth: by how much each cell multiplies the odds, less 1."""
        flip = constant(self.flip, place.device, truth.dtype)[place[..., 2]][..., None, None]
        wrong = grids.above(flip.expand_as(truth), noise.view_as(truth))
        found = torch.addcmul(wrong, truth, 1 - 2 * wrong)
        return grids.odds_ratio(found, 1 - flip).sub_(1)

    def _resized(self, state: State) -> tuple[Tensor, Tensor]:
        """Average all maps down to the lattice, and each UAV's around where it measured, in one pass over them."""
        missions, uavs, size = len(state.place), self.uavs, self.lattice
        whole, part = averages(self.places, state.odds.device, state.odds.dtype)
        x, y, z = state.place.unbind(-1)
        rows = torch.cat((whole.expand(missions, uavs, -1, -1), part[z, y]), 2)[..., : self.cells]
        leaning = grids.leaning(state.odds)
        short = rows @ leaning[:, :-1]
        own, near = short[:, :, :size] @ whole.T, short[:, :, size:] @ part[z, x].mT
        team = grids.area_resize(leaning[:, -1], whole[:, : self.cells], whole)
        return _belief(torch.cat((own, team[:, None]), 1)), _belief(near)

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


def _lost(before: Tensor, after: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Sum up windows of odds: what new weights add to the weighted entropy before, and what of it was then lost."""
    before, after = grids.belief(before), grids.belief(after)
    weight, was = grids.interest(after).mul_(seen), grids.entropy(before)
    had = (weight - grids.interest(before).mul_(seen)) * was
    return had.sum((1, 2, 3)), (weight * (was - grids.entropy(after))).sum((1, 2, 3))


def _first_seen(down: Tensor, along: Tensor) -> Tensor:
    """Mark what each window sees and no UAV before did, so that sums count a cell once.

    Args:
        down: Rows of window i that UAV j sees, B i j rows.
        along: Columns of window i that it sees, B i j columns.
    """
    seen = []
    for uav in range(down.shape[1]):
        seen.append(down[:, uav, uav, :, None] * along[:, uav, uav, None, :])
        for earlier in range(uav):
            seen[uav] *= 1 - down[:, uav, earlier, :, None] * along[:, uav, earlier, None, :]
    return torch.stack(seen, 1)


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
    heard = torch.einsum("bij,bjp,bjq->bipq", others.to(seen.dtype), rows, columns) > 0
    whose = torch.where(seen > 0, 1.0, torch.where(heard, 0.0, 0.5))
    return grids.area_resize(whose, average, average), grids.area_resize(seen.amax(1), average, average)
