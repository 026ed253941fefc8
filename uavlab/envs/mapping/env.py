"""Informative mapping: a team of UAVs measures where targets are, low and sure or high and wide, within a budget.

UAVs move on a lattice, u = (x, y, altitude) as whole numbers, and measure the cells below them. Maps are rows (y) by
columns (x).

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
from uavlab.envs.mapping import generators
from uavlab.envs.mapping.fusion import fuse
from uavlab.envs.mapping.geometry import MOVES, Lattice, averages, bands, constant
from uavlab.ops import belief_maps
from uavlab.ops.belief_maps import centre_maps

TRUTHS = {"halves": (2, generators.halves), "fields": (1 + generators.FIELD_NOISE, generators.fields)}
"""How many uniform numbers each kind of truth takes, and how it is drawn."""

Channel = Literal["budget", "number", "places", "entropy", "near", "belief", "seen"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)
STILL = 3  # channels that are never moved: two constants, and one that is drawn around each UAV anyway


@tensors
class State:
    """Everything that changes in a batch of missions."""

    place: Int[Tensor, "B A 3"]  # lattice: x, y, altitude
    truth: Int[Tensor, "B H H"]  # 1 where targets are, else 0
    logits: Int[Tensor, "B A+1 H H"]  # each UAV's own map, then the team's: steps of log odds, see ``ops.belief_maps``
    mean: Float[Tensor, "B A+1 L L"]  # their leanings (twice the belief, less 1), averaged down to the lattice
    near: Float[Tensor, "B A L L"]  # the same of the part of its own map that each UAV last measured
    link: Bool[Tensor, "B A A"]  # who heard whom after the last measurement, oneself included
    doubt: Float[Tensor, " B"]  # weighted entropy of the team's map, summed over cells (bits)
    gain: Float[Tensor, " B"]  # share of it that the last measurement took away
    left: Int[Tensor, " B"]  # measurements that each UAV may still make
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
    (("channels",), lambda names: len(set(names)) == len(names), "channels {0}: expected each at most once"),
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
        channels: What each UAV sees, of ``CHANNELS``, see ``observe``; all of it, as published.
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
    channels: Annotated[tuple[Channel, ...], Len(1, len(CHANNELS))] = CHANNELS
    lagged: bool = False

    overwrites: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("entropy", "last", "bit", better="low"), Metric("f1", "last"))
    score: ClassVar[dict[str, float]] = {"entropy": -1.0}
    rules: ClassVar[tuple[Rule, ...]] = RULES

    @property
    def spec(self) -> EnvSpec:
        """Give what a learner must know."""
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
        """Where UAVs can be, and what they see from there."""
        return Lattice(self.cells, self.cell, self.spacing, self.lattice, len(self.flip), self.view_deg)

    @property
    def step_noise(self) -> int:
        """Uniform numbers per mission and step: one for two cells that a UAV sees, and one for each pair of UAVs."""
        return self.uavs * -(-self.places.widest // 2) + self.uavs**2

    @property
    def initial_noise(self) -> int:
        """Uniform numbers per mission: the truth's, the starts' and those of the first measurement."""
        return TRUTHS[self.truth][0] + 2 * self.uavs + self.step_noise

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
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
            left=torch.full((missions,), self.measurements - 1, device=device),
            step=torch.zeros(missions, dtype=torch.int64, device=device),
        )
        return self._measured(blank, blank.place, rest)

    def transition(self, state: State, action: Int[Tensor, "B A"], noise: Float[Tensor, "B K"]) -> State:
        """Move everybody, then measure and exchange; who would leave the lattice stays."""
        self._require_shapes(state)
        counted = replace(state, left=(state.left - 1).clamp_min(0), step=state.step + 1)
        return self._measured(counted, self.places.moved(state.place, action), noise)

    def observe(self, state: State) -> MapObs:
        """Show each UAV seven maps of the lattice's size, and a critic four more of the whole team.

        A UAV's own: share of the budget left; its number; itself and those it heard, seen from its own place, by
        altitude; weighted entropy of its map; the same of the part it last measured; its map; who last measured
        what, 1 itself, 0 others that it heard, 0.5 nobody. The team's: all places by altitude; weighted entropy and
        belief of the team's map; what was last measured. Maps are averaged down to the lattice first.
        """
        self._require_shapes(state)
        place, uavs, size = state.place, self.uavs, self.lattice
        own, near = _belief(state.mean), _belief(state.near)
        left = state.left.to(own.dtype) / (self.measurements - 1)
        number = (torch.arange(uavs, device=place.device) + 1) / uavs
        one = own.new_ones(len(place), uavs, size, size)
        heard, anyone = _last_seen(self.places, place, state.link)
        maps = (
            one * left[:, None, None, None],
            one * number[:, None, None],
            _around(self.places, place, state.link),
            belief_maps.weighted_entropy(own[:, :-1]),
            belief_maps.weighted_entropy(near),
            own[:, :-1],
            heard,
        )
        team = (_everywhere(self.places, place), belief_maps.weighted_entropy(own[:, -1]), own[:, -1], anyone)
        return self.shown(place, torch.stack(maps, 2), torch.stack(team, 1))

    def shown(self, place: Tensor, maps: Tensor, team: Tensor) -> MapObs:
        """Add to maps who is where, and where everybody may go: two UAVs never choose the same place on the ground."""
        spot = place[..., 1] * self.lattice + place[..., 0]
        if self.centred:
            maps = torch.cat((maps[:, :, :STILL], centre_maps(maps[:, :, STILL:], spot)), 2)
        if self.channels != CHANNELS:
            maps = maps.index_select(2, constant(tuple(map(CHANNELS.index, self.channels)), maps.device))
        there = place[..., None, :2] + constant(MOVES, place.device)[:, :2]
        return MapObs(
            maps=maps,
            team=team,
            place=spot,
            legal=self.places.legal(place),
            target_cell=there[..., 1] * self.lattice + there[..., 0],
        )

    def reward(self, state: State, action: Int[Tensor, "B A"], after: State) -> Float[Tensor, "B A"]:
        """Pay the team for the share of weighted entropy that its measurement took away, the same for everybody."""
        gain = (state if self.lagged else after).gain
        return (self.reward_scale * gain + self.reward_offset)[:, None].expand(-1, self.uavs)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """End a mission when its budget is spent."""
        return (state.left == 0)[:, None].expand(-1, self.uavs)

    def measure(self, state: State, action: Int[Tensor, "B A"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Judge the team's map: mean entropy (bits) over cells with targets, and F1 of targets at a belief of 0.5."""
        belief, truth = belief_maps.belief(after.logits[:, -1], after.mean.dtype), after.truth.to(after.mean.dtype)
        targets = truth.sum((1, 2))
        claimed = belief_maps.above(belief, 0.5)
        right = (claimed * truth).sum((1, 2))
        doubt = (belief_maps.entropy(belief) * truth).sum((1, 2))
        return {
            "entropy": doubt / targets.clamp_min(1),
            "f1": 2 * right / (targets + claimed.sum((1, 2))).clamp_min(1),
        }

    def _require_shapes(self, state: State) -> None:
        maps = self.uavs + 1, self.cells, self.cells
        wanted = {"place": (self.uavs, 3), "truth": maps[1:], "logits": maps, "mean": (maps[0], *2 * (self.lattice,))}
        for name, shape in wanted.items():
            got = tuple(getattr(state, name).shape)
            if got[1:] != shape:
                expected = ", ".join(map(str, shape))
                raise ConfigError(
                    f"Mapping: state.{name} has shape {got}; expected (missions, {expected}) of {self.uavs} UAVs, "
                    f"{self.cells} cells and a lattice of {self.lattice}. Use states that this object's initial drew."
                )

    def _measured(self, state: State, place: Tensor, noise: Tensor) -> State:
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
            reuse=self.overwrites,
        )
        doubt = state.doubt + added
        return replace(
            state,
            place=place,
            logits=logits,
            mean=mean,
            near=near,
            link=link,
            doubt=doubt - lost,
            gain=lost / doubt,
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


@dataclass(frozen=True)
class OverwrittenMapping(Mapping):
    """The same task for who never looks back: on a CPU, ``transition`` writes maps over those of the state before."""

    overwrites: ClassVar[bool] = True


def _belief(leaning: Tensor) -> Tensor:
    return (leaning / 2 + 0.5).clamp(belief_maps.MIN_BELIEF, 1 - belief_maps.MIN_BELIEF)


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
    return belief_maps.area_resize(whose, average, average), belief_maps.area_resize(seen.amax(1), average, average)
