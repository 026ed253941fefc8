"""How much memory a batch takes, searched for and refused: what notebooks show of sizes."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from uavlab.collectors.off_policy import blank_row
from uavlab.core.errors import RetryWarning
from uavlab.core.types import Batch, Inputs, tree_map
from uavlab.envs.autoreset import start_worlds
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.learners.masac.batched import MASAC, UpdateNoise
from uavlab.profiling.batch_size import Budget, StepFactory
from uavlab.runtime.runtime import Runtime


def peak_bytes(call: Callable[[], Any]) -> int:
    """Count the most bytes that tensors made during a call hold at a time."""
    with Budget(2**62) as counted:
        call()
    return counted.peak


def whole_steps(config: Config, unit: int = 1) -> StepFactory:
    """Build, for ``unit`` rows times a number, a whole update of them: forward, backward, optimizer."""

    def make_step(count: int) -> Callable[[], Any]:
        learner, batch, noise = _blank(config, unit * count)
        return lambda: learner.update(batch, noise)

    return make_step


def forward_alone(config: Config, unit: int = 1) -> StepFactory:
    """Build, for as many rows, what a search often makes do with: actors and critics, forward, without gradients."""

    def make_step(count: int) -> Callable[[], Any]:
        learner, batch, noise = _blank(config, unit * count)
        parts = (learner.actor.parameter, learner.target, learner.temperature.parameter)
        return torch.no_grad()(lambda: learner.targets(*parts, batch.data, noise.next_action))

    return make_step


def _blank(config: Config, rows: int) -> tuple[MASAC, Batch, UpdateNoise]:
    """Build a learner, and a batch of ``rows`` first observations, without worlds and replay."""
    rt, env = build.runtime(config.run, config.toggles), config.env
    rng, runs = build.streams(config.run, rt.device), config.run.runs
    start = rng.uniform("worlds", rows, env.spec.initial_noise).flatten(0, 1)
    worlds = start_worlds(env, start)
    data = tree_map(lambda leaf: leaf.unflatten(0, (runs, rows)), blank_row(env, worlds))
    flat = data.obs.new_zeros(runs, env.spec.agents, env.spec.obs)
    learner = MASAC(config.learner, env.spec, Inputs(center=flat, scale=flat + 1), rng, rt)
    return learner, Batch(data, torch.zeros(runs, rows, dtype=torch.int64)), learner.update_noise(rng, rows)


def refused(config: Config, share: float = 0.5) -> dict[str, Any]:
    """Make one update with too little memory, and the same update with enough of it, whole and in pieces.

    Args:
        config: Of the learner.
        share: Memory that is granted, of what the whole batch takes at its peak.

    Returns:
        ``peak_bytes`` and ``limit_bytes``; ``retries`` (``what, phase, from, to``); ``same_bits``, whether the result
        is that of batches cut so from the start; ``off``, how far it is from the whole batch's, relative to its norm.
    """
    made = {name: _prepared(config) for name in ("counted", "whole", "refused", "cut")}
    peak = peak_bytes(made["counted"][1])
    limit = int(share * peak)
    made["whole"][1]()
    with warnings.catch_warnings(), Budget(limit):
        warnings.simplefilter("ignore", RetryWarning)
        made["refused"][1]()
    rt = made["refused"][2]
    for batcher, reached in zip(made["cut"][2].microbatchers, rt.microbatchers, strict=True):
        batcher.pieces = reached.pieces
    made["cut"][1]()
    whole, found, cut = (made[name][0].state_dict() for name in ("whole", "refused", "cut"))
    off = [torch.linalg.vector_norm(found[key] - whole[key]) / torch.linalg.vector_norm(whole[key]) for key in whole]
    return {
        "peak_bytes": peak,
        "limit_bytes": limit,
        "retries": rt.retries,
        "same_bits": all(torch.equal(found[key], cut[key]) for key in found),
        "off": max(error.item() for error in off),
    }


def _prepared(config: Config) -> tuple[Any, Callable[[], Any], Runtime]:
    """Build a learner, one update of it, and its runtime; all that are built alike would do the same."""
    rt, rng, learner, source = build.assembled(config)
    batch, noise = source.next(), learner.update_noise(rng, config.source.batch)

    def update() -> None:
        with rt.scope():
            learner.update(batch, noise)

    return learner, update, rt


def rates(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turn rows of ``compare``, whose settings are sizes, into rows ``size, ms, rate`` (per second), ``low, high``."""
    first = rows[0]["ms"] / 1e3
    found = []
    for row in rows:
        size = int(row["setting"])
        rate, low, high = (round(size / first * row[key], 1) for key in ("over_first", "low", "high"))
        found.append({"size": size, "ms": row["ms"], "rate": rate, "low": low, "high": high})
    return found
