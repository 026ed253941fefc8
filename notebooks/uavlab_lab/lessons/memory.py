"""Memory of a batch: its peak, and an update that is refused memory; rates of sizes."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from uavlab.core.errors import RetryWarning
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.profiling.batch_size import Budget
from uavlab.runtime.runtime import Runtime


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the most bytes that tensors allocated during a call hold at a time."""
    with Budget(2**62) as budget:
        call()
    return budget.peak


def refuse_memory(config: Config, share: float = 0.5) -> dict[str, Any]:
    """Run one update with ``share`` of its peak memory, and the same update with enough memory, whole and in pieces.

    Returns:
        ``peak_bytes`` and ``limit_bytes``; ``retries`` (``what, phase, from, to``); ``same_bits``, whether the result
        equals that of a batch cut so from the start; ``difference`` from the whole batch's, relative to its norm.
    """
    updates = {name: _build_update(config) for name in ("counted", "whole", "refused", "cut")}
    peak = peak_bytes(updates["counted"].run)
    limit = int(share * peak)
    updates["whole"].run()
    with warnings.catch_warnings(), Budget(limit):
        warnings.simplefilter("ignore", RetryWarning)
        updates["refused"].run()
    rt = updates["refused"].rt
    for batcher, reached in zip(updates["cut"].rt.microbatchers, rt.microbatchers, strict=True):
        batcher.pieces = reached.pieces
    updates["cut"].run()
    whole, refused, cut = (updates[name].learner.state_dict() for name in ("whole", "refused", "cut"))
    norm = torch.linalg.vector_norm
    return {
        "peak_bytes": peak,
        "limit_bytes": limit,
        "retries": rt.retries,
        "same_bits": all(torch.equal(refused[key], cut[key]) for key in refused),
        "difference": max((norm(refused[key] - whole[key]) / norm(whole[key])).item() for key in whole),
    }


@dataclass(frozen=True)
class _Update:
    learner: Any
    run: Callable[[], Any]
    rt: Runtime


def _build_update(config: Config) -> _Update:
    """Build a learner and one update of it; equal settings give equal updates."""
    rt, rng, learner, source = build.assemble(config)
    batch, noise = source.next(), learner.update_noise(rng, config.source.batch)

    def update() -> None:
        with rt.scope():
            learner.update(batch, noise)

    return _Update(learner, update, rt)


def to_rates(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert rows of ``compare``, whose settings are sizes, to rows ``size, ms, rate`` (per second), ``low, high``."""
    first = rows[0]["ms"] / 1e3
    rates = []
    for row in rows:
        size = int(row["setting"])
        rate, low, high = (round(size / first * row[key], 1) for key in ("over_first", "low", "high"))
        rates.append({"size": size, "ms": row["ms"], "rate": rate, "low": low, "high": high})
    return rates
