"""What the decisions of the information-gain plan, and of its score, are worth: one changed at a time, without times.

Missions, starts and measurement noise are those of ``uavlab evaluate mapping_quick --policy information_gain``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.benchmarks.registry import Record, suite
from uavlab.core.bootstrap import DRAWS, ENDS, interval
from uavlab.core.rng import Streams
from uavlab.core.types import Metric
from uavlab.envs.mapping import baselines
from uavlab.envs.mapping.env import Mapping, OverwrittenMapping, State
from uavlab.envs.mapping.geometry import Lattice, covers
from uavlab.evaluation import Planner, curves
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig
from uavlab.ops.belief_maps import LIMIT, STEP, above, belief, entropy, log_odds_steps, target_weight, weighted_entropy

MISSIONS, FEW = 50, 20
"""Missions of the study, and of the published program's figure."""

UP, DOWN = 0, 5
NEAR = 0.98  # shares this close to the largest count as ties in the rows about ties

PlanFunction = Callable[[Mapping, State, Tensor], Tensor]


@dataclass(frozen=True)
class StudiedMapping(OverwrittenMapping):
    """The task with other scores beside the published ones."""

    metrics: ClassVar[tuple[Metric, ...]] = (
        *Mapping.metrics,
        Metric("own", "last", "bit", better="low"),
        Metric("everywhere", "last", "bit", better="low"),
        Metric("weighted", "last", "bit", better="low"),
    )

    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Float[Tensor, " B"]]:
        """Add entropies: of targets in UAVs' own maps, of all cells, and of all cells weighted by the belief (bits)."""
        scores = super().measure(state, action, after)
        truth = after.truth.to(after.mean.dtype)
        maps = (entropy(belief(each, truth.dtype)) for each in after.logits.unbind(1))
        *own, team = (torch.stack(((each * truth).sum((1, 2)), each.mean((1, 2)))) for each in maps)
        scores["own"] = torch.stack(own).mean(0)[0] / truth.sum((1, 2))
        return {**scores, "everywhere": team[1], "weighted": after.uncertainty / self.cells**2}


class RoundedLattice(Lattice):
    """Footprints around the corner of cells that is nearest to the place."""

    def centre(self, place: int) -> int:
        """Return the first cell behind that corner."""
        return round(place * self.spacing / self.cell)


@dataclass(frozen=True)
class RoundedMapping(OverwrittenMapping):
    """The task with ``RoundedLattice``."""

    @property
    def places(self) -> Lattice:
        """Places of the UAVs, and their footprints."""
        return RoundedLattice(self.cells, self.cell, self.spacing, self.lattice, len(self.flip), self.view_deg)


@dataclass(frozen=True)
class BlindStart(OverwrittenMapping):
    """The task without the measurements at the start, whose noise is drawn and lost."""

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw new missions."""
        state = super().initial(noise)
        blank = {name: torch.zeros_like(getattr(state, name)) for name in ("logits", "mean", "footprint", "gain")}
        return replace(state, **blank, uncertainty=torch.full_like(state.uncertainty, 0.5 * self.cells**2))


def own_maps(env: Mapping, state: State) -> Tensor:
    """Return the log odds of each UAV's own map."""
    return state.logits[:, :-1]


def team_map(env: Mapping, state: State) -> Tensor:
    """Return the log odds of the team's map for each UAV."""
    return state.logits[:, -1:].expand(-1, env.uavs, -1, -1)


def coarse_maps(env: Mapping, state: State) -> Tensor:
    """Return the log odds of the averages over lattice cells, enlarged to all cells."""
    cell = torch.arange(env.cells, device=state.place.device) * env.lattice // env.cells
    steps = (2 / STEP * state.mean[:, :-1].atanh()).round().clamp(-LIMIT, LIMIT).to(state.logits.dtype)
    return steps[:, :, cell[:, None], cell]


def by_belief(chance: Tensor, flip: float) -> Tensor:
    """Return the belief as the chance of a positive measurement, as published."""
    return chance


def by_sensor(chance: Tensor, flip: float) -> Tensor:
    """Return the chance of a positive measurement."""
    return chance * (1 - flip) + (1 - chance) * flip


def plain(before: Tensor, after: Tensor) -> Tensor:
    """Return the entropy that is removed from beliefs (bits)."""
    return entropy(before) - entropy(after)


def weighted(before: Tensor, after: Tensor) -> Tensor:
    """Return the entropy that is removed, by the weight afterwards, as published (bits)."""
    return plain(before, after) * target_weight(after)


def weighted_both(before: Tensor, after: Tensor) -> Tensor:
    """Return by how much the weighted entropy falls (bits)."""
    return weighted_entropy(before) - weighted_entropy(after)


@lru_cache
def cell_gain(
    flip: float,
    device: torch.device,
    dtype: torch.dtype,
    positive: Callable[[Tensor, float], Tensor] = by_belief,
    removed: Callable[[Tensor, Tensor], Tensor] = weighted,
    limit: int = LIMIT,
    blank: bool = False,
    sensed: float | None = None,
) -> Float[Tensor, " K"]:
    """Return a table like ``baselines.expected_cell_gain``, with other decisions.

    They are the chance of a ``positive`` measurement and the entropy that is ``removed``, the ``limit`` of log odds
    after a measurement, whether only ``blank`` cells count, and the error probability that the plan assumes.
    """
    flip, steps = sensed or flip, torch.cat((torch.arange(LIMIT + 1), torch.arange(-LIMIT, 0)))
    chance, change = belief(steps, torch.float64), log_odds_steps(flip)
    hit, miss = (belief((steps + by).clamp(-limit, limit), torch.float64) for by in (change, -change))
    often = positive(chance, flip)
    gain = often * removed(chance, hit) + (1 - often) * removed(chance, miss)
    return (gain * (steps == 0) if blank else gain).to(device, dtype)


def free_without(env: Mapping, place: Tensor, move: int) -> Tensor:
    """Mark free moves but one."""
    return baselines.free_moves(env, place) & (torch.arange(6, device=place.device) != move)


def descend_first(env: Mapping, place: Tensor) -> Tensor:
    """Mark down until a UAV is at the lowest altitude, then free moves that stay there."""
    down = torch.arange(6, device=place.device) == DOWN
    return torch.where(place[..., 2:] == 0, free_without(env, place, UP), down)


def last_rival(share: Tensor, same: Tensor) -> Tensor:
    """Multiply shares by 1 minus that of the last other UAV alone that could go to the same place."""
    share = share.clone()
    for one in range(share.shape[1]):
        mine = share[:, one].clone()
        for other in range(share.shape[1]):
            theirs = (same[:, one, other] * share[:, other, None, :]).sum(-1)
            if one != other:
                share[:, one] = torch.where(same[:, one, other].any(-1), mine * (1 - theirs), share[:, one])
    return share


def first_of_near(share: Tensor, noise: Tensor) -> Tensor:
    """Choose the first share near the largest."""
    return _near(share).to(torch.uint8).argmax(-1)


def last_of_near(share: Tensor, noise: Tensor) -> Tensor:
    """Choose the last share near the largest."""
    return share.shape[-1] - 1 - _near(share).flip(-1).to(torch.uint8).argmax(-1)


def any_of_near(share: Tensor, noise: Tensor) -> Tensor:
    """Choose among the shares near the largest at random."""
    near = _near(share)
    return (near.cumsum(-1) > (noise * near.sum(-1)).floor()[..., None]).to(torch.uint8).argmax(-1)


def _near(share: Tensor) -> Tensor:
    return share >= NEAR * share.amax(-1, keepdim=True)


@dataclass(frozen=True)
class Plan:
    """The information-gain plan by its decisions; the defaults are those of ``baselines.information_gain``."""

    maps: Callable[[Mapping, State], Tensor] = own_maps
    gain: Callable[..., Tensor] = baselines.expected_cell_gain
    free: Callable[[Mapping, Tensor], Tensor] = baselines.free_moves
    discount: Callable[[Tensor, Tensor], Tensor] = baselines.discount_rivals
    pick: Callable[[Tensor, Tensor], Tensor] = lambda share, noise: share.argmax(-1)

    def __call__(self, env: Mapping, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
        """Return the moves of all UAVs."""
        free = self.free(env, state.place)
        gain = baselines.expected_gain(env, self.maps(env, state), state.mean.dtype, self.gain)
        share, same = baselines.shares_of_gain(state.place, gain, free)
        return self.pick(self.discount(share, same).masked_fill(~free, -1), noise)


def reversed_order(env: Mapping, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Plan as published, in the opposite order of the UAVs' numbers."""
    logits = torch.cat((state.logits[:, :-1].flip(1), state.logits[:, -1:]), 1)
    return baselines.information_gain(env, replace(state, place=state.place.flip(1), logits=logits), noise).flip(1)


def one_by_one(
    env: Mapping, state: State, noise: Float[Tensor, "B A"], maps: Callable[[Mapping, State], Tensor] = own_maps
) -> Int[Tensor, "B A"]:
    """Plan UAV by UAV: cells that earlier UAVs are about to measure promise nothing, and nobody flies above them."""
    known, place = maps(env, state).clone(), state.place.clone()
    inside = covers(env.places, place.device, state.mean.dtype) > 0
    moves = []
    for uav in range(env.uavs):
        gain = baselines.expected_gain(env, known[:, uav : uav + 1], state.mean.dtype)
        free = baselines.free_moves(env, place)[:, uav : uav + 1]
        share, _ = baselines.shares_of_gain(place[:, uav : uav + 1], gain, free)
        moves.append(share.masked_fill(~free, -1).argmax(-1)[:, 0])
        place[:, uav] = env.places.move(place[:, uav], moves[-1])
        x, y, z = place[:, uav].unbind(-1)
        measured = inside[z, y][:, :, None] & inside[z, x][:, None]
        known[:, uav + 1 :].masked_fill_(measured[:, None], -LIMIT)
    return torch.stack(moves, 1)


def _gain(**decisions: Any) -> tuple[str, PlanFunction]:
    return "gain", Plan(gain=partial(cell_gain, **decisions))


PLANS: dict[str, tuple[str, PlanFunction]] = {
    "outcomes weigh by the chance of a positive measurement": _gain(positive=by_sensor),
    "fall of the weighted entropy": _gain(removed=weighted_both),
    "fall of the weighted entropy, by the chance of a positive measurement": _gain(
        positive=by_sensor, removed=weighted_both
    ),
    "weight of the belief before": _gain(removed=lambda p, q: plain(p, q) * target_weight(p)),
    "weight 1 from 0.5 upwards": _gain(removed=lambda p, q: plain(p, q) * above(q, 0.5 - 1e-9)),
    "weight is the belief": _gain(removed=lambda p, q: plain(p, q) * q),
    "no weights": _gain(removed=plain),
    "no weights, chance of a positive measurement": _gain(positive=by_sensor, removed=plain),
    "only cells of which nothing is known": _gain(blank=True),
    "beliefs after a measurement not clamped": _gain(limit=2 * LIMIT),
    "the middle altitude's sensor assumed everywhere": _gain(sensed=0.265),
    "averages over lattice cells (11 x 11)": ("resolution", Plan(maps=coarse_maps)),
    "the team's map": ("knowledge", Plan(maps=team_map)),
    "earlier UAVs' choices known": ("knowledge", one_by_one),
    "earlier UAVs' choices known, the team's map": ("knowledge", partial(one_by_one, maps=team_map)),
    "reversed order of UAVs": ("order", reversed_order),
    "only the last rival counts, as in the program's code": ("order", Plan(discount=last_rival)),
    "rivals do not count": ("order", Plan(discount=lambda share, same: share)),
    "first of shares within 2 %": ("ties", Plan(pick=first_of_near)),
    "last of shares within 2 %": ("ties", Plan(pick=last_of_near)),
    "any of shares within 2 %": ("ties", Plan(pick=any_of_near)),
    "no mask but the lattice": ("moves", Plan(free=lambda env, place: env.places.legal(place))),
    "no climbing": ("moves", Plan(free=partial(free_without, move=UP))),
    "no descent": ("moves", Plan(free=partial(free_without, move=DOWN))),
    "down at once, then no climbing": ("moves", Plan(free=descend_first)),
}
"""Changed plans by name, each with the group of its decision."""

TASKS: dict[str, tuple[str, Callable[..., Mapping], dict[str, Any]]] = {
    "centres of footprints rounded": ("task", RoundedMapping, {}),
    "no measurement at the start": ("task", BlindStart, {}),
    "random starts": ("task", OverwrittenMapping, {"starts": "random"}),
    "no communication": ("task", OverwrittenMapping, {"reach": 0.0}),
    "range of 15 m": ("task", OverwrittenMapping, {"reach": 15.0}),
    "unlimited range": ("task", OverwrittenMapping, {"reach": 1e4}),
}
"""Changed tasks by name: group, class and settings."""

SCORES = {
    "one measurement less": ("entropy", 14),
    "one measurement more (the published figure's count)": ("entropy", 16),
    "mean of the UAVs' own maps": ("own", 15),
    "all cells": ("everywhere", 15),
    "all cells, weighted by the belief": ("weighted", 15),
}
"""Other scores of the same missions by name: metric, and measurements of each UAV."""


@suite("plan", about="decisions of the information-gain plan, by their effect")
def plan_suite(
    rounds: int,
    device: Device,
    missions: int = MISSIONS,
    plans: Sequence[str] = tuple(PLANS),
    tasks: Sequence[str] = tuple(TASKS),
    **settings: Any,
) -> Record:
    """Change one decision of the plan, of the task or of the score at a time; ``rounds`` has no effect.

    Missions, starts and noise are the same in every row. Differences are to the first row, mission by mission; all
    intervals are 95 % bootstrap intervals over missions.

    ``plans`` and ``tasks`` are keys of ``PLANS`` and ``TASKS``, ``settings`` those of the task.

    Returns:
        Rows with ``group`` and ``decision``, ``entropy`` of cells with targets at the end (bit) with ``low`` and
        ``high``, ``difference`` to the first row with ``difference_low`` and ``difference_high``, and ``f1``; and
        ``few``, the interval of means of 20 missions with the measurements of the published figure.
    """
    rt = build.runtime(RunConfig(device=device))
    last = settings.pop("measurements", Mapping.measurements)

    def run(kind: Callable[..., Mapping], plan: PlanFunction, **changes: Any) -> dict[str, np.ndarray]:
        env = kind(**{"measurements": last, **settings, **changes})
        scores = curves(env, Planner(plan), Streams([0], rt.device), missions)
        return {name: each[0].double().cpu().numpy() for name, each in scores.items()}

    def row(group: str, decision: str, scores: dict[str, np.ndarray], metric: str = "entropy", at: int = last) -> None:
        value, f1 = scores[metric][:, at - 2], scores["f1"][:, at - 2]  # curves begin after the second measurement
        mean, low, high = interval(value)
        apart, least, most = interval(value - usual)
        figures = {"entropy": mean, "low": low, "high": high}
        figures |= {"difference": apart, "difference_low": least, "difference_high": most, "f1": float(f1.mean())}
        rows.append({"group": group, "decision": decision, **{name: round(each, 4) for name, each in figures.items()}})

    rows: list[dict[str, Any]] = []
    with rt.scope():
        scores = run(StudiedMapping, baselines.information_gain, measurements=last + 1)
        usual = scores["entropy"][:, last - 2]
        row("plan", "as published", scores)
        for decision, (metric, at) in SCORES.items():
            row("score", decision, scores, metric, at + last - Mapping.measurements)
        for decision in tasks:
            group, kind, changes = TASKS[decision]
            row(group, decision, run(kind, baselines.information_gain, **changes))
        for decision in plans:
            group, plan = PLANS[decision]
            row(group, decision, run(OverwrittenMapping, plan))
        row("other plans", "random", run(OverwrittenMapping, baselines.random))
        row("other plans", "sweep", run(OverwrittenMapping, baselines.sweep))
    draws = np.random.default_rng(0).choice(scores["entropy"][:, last - 1], (DRAWS, FEW)).mean(1)
    low, high = np.quantile(draws, ENDS)
    return {"missions": missions, "rows": rows, "few": {"missions": FEW, "low": round(low, 4), "high": round(high, 4)}}
