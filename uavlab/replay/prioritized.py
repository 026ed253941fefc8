"""Prioritized replay: rows are sampled by the magnitude of their TD errors, without a host sync.

Row i of priority p_i is drawn with probability P(i) = p_i^alpha / sum_k p_k^alpha, one row from each of N equal parts
of the mass. Its weight is w_i / max_j w_j with w_i = (size P(i))^-beta and the maximum over the batch, or those of all
ranks. A new row gets the largest priority so far, which decays by 1/1024 with each batch: one very large error would
otherwise put new rows first for the rest of the run.

Source:
    Schaul et al. 2016, "Prioritized Experience Replay": probabilities, eq. 1; new rows, algorithm 1; weights and how
    beta rises, section 3.4; equal parts of the mass, appendix B.2.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.types import Transition, Update
from uavlab.ops import sum_tree
from uavlab.ops.schedules import linear
from uavlab.replay.buffer import Store, Transfer
from uavlab.replay.ring import describe_leaf
from uavlab.runtime.ranks import ALONE, Ranks

DECAY = 1024  # batches in which the largest priority falls to 1/e
DRAWS = 100_000  # batches of a schedule where the length of the run is not known


@dataclass(frozen=True)
class PriorityConfig:
    """Exponents of priorities and importance weights, and their schedule.

    Attributes:
        priority_alpha: Exponent of priorities; 0 draws uniformly.
        priority_alpha_end: Exponent after ``priority_draws`` batches; None for no change.
        priority_beta: Initial exponent of importance weights; 1 corrects the whole bias of priorities.
        priority_draws: Batches over which both exponents change linearly, that of importance weights to 1; None for
            the updates at which the run was to end when it began, or 100,000 if it ends by time alone.
    """

    priority_alpha: Annotated[float, Ge(0), Le(1)] = 0.6
    priority_alpha_end: Annotated[float, Ge(0), Le(1)] | None = None
    priority_beta: Annotated[float, Ge(0), Le(1)] = 0.4
    priority_draws: Annotated[int, Ge(1), Le(10**9)] | None = None


class ByPriority(Store):
    """A store that samples rows by priority, the TD error of a row's agents in its last update."""

    def __init__(
        self,
        example: Transition,
        capacity: int,
        config: PriorityConfig,
        by: Literal["mean", "max"] = "mean",
        transfer: Transfer | None = None,
        updates: int | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Reserve rows and a tree over them for a run of ``updates``; ``by`` reduces errors of agents to a priority."""
        runs, device = example.reward.shape[0], example.reward.device
        self.config, self.by, self.ranks = config, by, ranks
        self.tree = sum_tree.empty(runs, capacity, device)  # of priorities to the power of alpha, as masses
        super().__init__(example, capacity, transfer)
        self.largest = torch.full((runs,), sum_tree.UNIT, device=device)  # mass so far, which decays
        self.refused = torch.zeros_like(self.largest)  # number of invalid priorities
        self.draws = torch.zeros((), dtype=torch.int64, device=device)
        self.length = self.draws + (config.priority_draws or updates or DRAWS)  # draws over which exponents change

    def add(self, rows: Transition) -> None:
        """Overwrite the oldest rows by W new ones per run, each with the largest priority so far."""
        super().add(rows)
        runs, count = len(self.largest), min(rows.reward.shape[1], self.ring.capacity)
        back = torch.arange(-count, 0, device=self.largest.device)
        slot = (self.ring.cursor + back).remainder(self.ring.capacity).expand(runs, count)
        sum_tree.update(self.tree, slot, self.largest[:, None].expand(runs, count))

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], Float[Tensor, "R N"]]:
        """Sample slots by priority; also return their importance weights (host sync if the tree is on the host)."""
        index, mass = sum_tree.sample(self.tree, noise.to(self.largest.device))
        beta = self.anneal(self.config.priority_beta, 1.0, noise.device)
        self.draws.add_(1)
        self.largest.sub_(self.largest // DECAY)
        share = mass.to(noise.device)
        if self.ranks.size > 1:  # each has a sum of masses of its own
            share = share / (self.tree.levels[0].sum(1, keepdim=True) / self.ring.size).to(noise.device)
        return index, importance_weights(share, beta, self.ranks)

    def feedback(self, index: Int[Tensor, "R N"], update: Update, replaced: Bool[Tensor, "R N"] | None = None) -> None:
        """Set the priorities of rows by their TD errors, except for rows ``replaced`` since the draw."""
        if update.td_error is None:
            raise ConfigError(
                "priorities: the learner returned no td_error; expected the error of each row and agent. Set "
                "priorities=off, or let the learner return it."
            )
        self.set_priorities(index, joint_priority(update.td_error, self.by), replaced)

    def set_priorities(
        self,
        index: Int[Tensor, "R N"],
        priority: Float[Tensor, "R N"],
        skip: Bool[Tensor, "R N"] | None = None,
    ) -> None:
        """Set the priorities of rows but those to ``skip``; for a row that occurs several times, the last one is used.

        A priority that is negative or not finite, or whose slot holds no row, is ignored and counted in ``refused``.
        Priorities to the power of alpha are clamped to [2^-20, 2^16], so rows of priority 0 can be drawn. They become
        masses on their own device: a power of the host differs in its last bits from one of a GPU, and a run would
        depend on where its replay lies.
        """
        self._require_fit(index, priority)
        wild = priority.clamp(0, torch.finfo(priority.dtype).max) != priority  # true for nan
        alpha = self.anneal(self.config.priority_alpha, self.config.priority_alpha_end, priority.device)
        mass = sum_tree.fixed_point(priority.pow(alpha)).masked_fill_(wild, 0).to(index.device)
        bad = (mass == 0) | (index < 0) | (index >= self.ring.size)
        left_out = bad if skip is None else bad | skip
        mass = sum_tree.update(self.tree, index, mass, left_out)
        newest = mass.masked_fill(left_out, 0).amax(1)  # entries that are left out have the mass of slot 0
        torch.maximum(self.largest, newest, out=self.largest)
        self.refused.add_(bad.sum(1))

    def anneal(self, first: float, last: float | None, device: torch.device) -> Tensor | float:
        """Interpolate an exponent linearly from ``first`` to ``last`` by the number of batches."""
        if last is None or first == last:
            return first
        return linear(self.draws, first, last, self.length).to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """Copy the masses by slot (R n) and the counters (host sync)."""
        mass = sum_tree.masses(self.tree)[:, : int(self.ring.size)]
        return {name: value.clone() for name, value in {"mass": mass, **self._counters()}.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load masses and counters, before or after the rows (host sync).

        An empty state is that of uniform replay: all of its rows get the largest priority, as new ones do.
        """
        if not state:
            sum_tree.fill(self.tree, self.largest[:, None].expand(-1, int(self.ring.size)))
            return
        expected = {"mass": sum_tree.masses(self.tree), **self._counters()}
        wrong = [name for name, here in expected.items() if name not in state or not _like(state[name], here)]
        if wrong or not ((state["mass"] >= 1) & (state["mass"] <= sum_tree.MAX_MASS)).all():
            wrong = wrong or ["mass"]
            problems = [f"{name} is {describe_leaf(state[name])}" if name in state else f"no {name}" for name in wrong]
            raise FileError(
                f"Prioritized replay: the saved state does not fit: {', '.join(problems)}. Expected int64: mass in "
                f"[1, 2^36], {len(self.largest)}xN with N at most {self.ring.capacity}, and one counter each; resume "
                "with the settings that it was saved with, or with --fresh-replay."
            )
        sum_tree.fill(self.tree, state["mass"].to(self.largest.device))
        for name, counter in self._counters().items():
            counter.copy_(state[name])

    def forget(self) -> None:
        sum_tree.fill(self.tree, sum_tree.masses(self.tree)[:, :0])

    def _counters(self) -> dict[str, Tensor]:
        return {"largest": self.largest, "draws": self.draws, "length": self.length, "refused": self.refused}

    def _require_fit(self, index: Tensor, priority: Tensor) -> None:
        """Check the shapes, types and devices of R x N slots and priorities, without a host sync."""
        runs, device = self.largest.shape[0], self.largest.device
        fits = index.shape == priority.shape and index.dim() == 2 and index.shape[0] == runs and index.numel() > 0
        types = index.dtype == torch.int64 and priority.dtype in (torch.float32, torch.float64)
        if not (fits and types and index.device == device):
            index_, priority_ = (f"{describe_leaf(leaf)} on {leaf.device}" for leaf in (index, priority))
            raise ConfigError(
                f"Prioritized replay: index is {index_}, priority {priority_}; expected int64 and float32 or float64, "
                f"both {runs}xN with N at least 1, slots on {device}. Give each row that was drawn one priority."
            )


def importance_weights(mass: Shaped[Tensor, "R N"], beta: Tensor | float, ranks: Ranks = ALONE) -> Float[Tensor, "R N"]:
    """Return w_i / max_j w_j = (min_j mass_j / mass_i)^beta, as P(i) = mass_i / total.

    With several ranks, masses are relative to the mean of their own replay.
    """
    return (ranks.min(mass.amin(1, keepdim=True)) / mass).pow(beta)


def joint_priority(error: Float[Tensor, "R N A"], by: Literal["mean", "max"]) -> Float[Tensor, "R N"]:
    """Return one priority per row: the mean or the maximum of the absolute TD errors of its agents."""
    size = error.abs()
    return size.mean(-1) if by == "mean" else size.amax(-1)


def _like(saved: Tensor, here: Tensor) -> bool:
    fits = saved.shape[:1] == here.shape[:1] and saved.shape[1:] <= here.shape[1:]
    return saved.dtype == here.dtype and saved.dim() == here.dim() and fits
