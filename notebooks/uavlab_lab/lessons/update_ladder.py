"""The rungs of the update ladder side by side: differences of results, evaluations of actors, several runs at once."""

from collections.abc import Mapping
from typing import Any

import torch

from uavlab.core.protocols import CheckedTensors
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.profiling.roofline import count_work
from uavlab_lab.lessons.stage_shares import run_cycles
from uavlab_lab.measure.compare import Settings, build_call


def differences(preset: str, settings: Settings, *layers: Mapping[str, Any], updates: int = 10) -> list[dict[str, Any]]:
    """Train learners side by side in float64, from equal batches and equal noise.

    Returns:
        A row for each setting: ``setting``, ``difference`` (the largest of any parameter or moment from the first
        setting's, relative to the largest number of its tensor) and ``fell_back``.
    """
    configs = {name: configure(preset, *layers, setting) for name, setting in settings.items()}
    runtimes = {name: build.runtime(config.run, config.toggles) for name, config in configs.items()}
    learners, sources, streams = {}, {}, {}
    for name, config in configs.items():
        streams[name] = build.streams(config.run, runtimes[name].device, torch.float64)
        with runtimes[name].scope():
            learners[name], sources[name] = config.task.build(config, streams[name], runtimes[name])
    first = next(iter(configs))
    source, rng = sources[first], streams[first]
    for _ in range(updates):
        batch, noise = source.next(), learners[first].update_noise(rng, configs[first].source.batch)
        for name, learner in learners.items():
            with runtimes[name].scope():
                learner.update(batch, noise)
    results = {name: learner.tensors_to_check() for name, learner in learners.items()}
    largest = {name: _largest_difference(results[first], result) for name, result in results.items()}
    return [{"setting": n, "difference": largest[n], "fell_back": runtimes[n].fell_back} for n in configs]


def _largest_difference(one: CheckedTensors, other: CheckedTensors) -> float:
    pairs = [(one[name][0], other[name][0]) for name in one]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in pairs)


def count_evaluations(preset: str, settings: Settings, *layers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Count how often an update evaluates an actor, by its products with the shape of an actor's first layer.

    Returns:
        A row for each setting: ``setting``, ``agents``, ``evaluations``, and ``operators`` of the update.
    """
    rows = []
    for name, setting in settings.items():
        config = configure(preset, *layers, setting)
        one = build_call(config, "update")
        with one.rt.scope():
            work = count_work(one.call)
        rows.append(
            {
                "setting": name,
                "agents": config.env.spec.agents,
                "evaluations": _actor_products(config, dict(work.products)),
                "operators": work.operators,
            }
        )
    return rows


def _actor_products(config: Config, products: dict[tuple[int, int, int, int], int]) -> int:
    """Count products of an actor's first layer; G networks stacked in one product count as G."""
    shape = config.source.batch, config.env.spec.obs, config.learner.hidden
    return sum(group * count for (group, *sizes), count in products.items() if tuple(sizes) == shape)


def compare_with_single_runs(preset: str, *layers: Mapping[str, Any], runs: int = 5, updates: int = 10) -> float:
    """Train several runs at once and each by itself; return the largest relative difference of any actor."""
    shared = configure(preset, *layers, {"runs": runs})
    differences = []
    for number, together in enumerate(run_cycles(shared, updates).parameters()):
        config = configure(preset, *layers, {"runs": 1, "seed": shared.run.seed + number})
        [alone] = run_cycles(config, updates).parameters()
        differences.append(float((alone - together).abs().max() / alone.abs().max()))
    return max(differences)
