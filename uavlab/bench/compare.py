"""The same run under several settings: one call of it timed in turn, or whole trainings side by side."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from uavlab.bench.timing import interleaved, median, ratio, timed
from uavlab.collectors.on_policy import Rollouts, moved
from uavlab.core.rng import acting_noise
from uavlab.core.types import tree_map
from uavlab.envs.autoreset import advance
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import count_operators
from uavlab.train import cycling

Settings = Mapping[str, Mapping[str, Any]]
"""Layers of settings by the name under which results show them."""


@dataclass(frozen=True)
class Call:
    """One repeatable piece of a run, and the runtime that it runs under."""

    call: Callable[[], Any]
    rt: Runtime


def update_call(config: Config) -> Call:
    """Learn from one batch, always the same."""
    rt, rng, learner, source = build.assembled(config)
    batch = source.next()
    noise = learner.update_noise(rng, batch.index.shape[1])
    return Call(lambda: learner.update(batch, noise), rt)


def cycle_call(config: Config) -> Call:
    """Make a whole cycle: step, act, store, draw, update, feedback."""
    rt, rng, learner, source = build.assembled(config)
    return Call(cycling(source, learner, rng, rt), rt)


def acting_call(config: Config) -> Call:
    """Choose the actions of all worlds once."""
    rt, rng, learner, source = build.assembled(config)
    spec = config.env.spec
    seen = source.start()[1] if isinstance(source, Rollouts) else source.worlds.obs
    policy, obs = learner.policy(spec), tree_map(lambda leaf: leaf.unflatten(0, (config.run.runs, -1)), seen)
    noise = acting_noise(rng, "act", config.source.worlds, spec)
    return Call(lambda: policy(obs, noise), rt)


def environment_call(config: Config) -> Call:
    """Step all worlds once: transition, reward, observation, replacement where worlds are replaced."""
    rt, rng, _, source = build.assembled(config)
    spec, count = config.env.spec, config.source.worlds
    if isinstance(source, Rollouts):
        move, (state, obs) = rt.kernel(moved, "environment"), source.start()
        noise = rng.uniform("step", count, spec.step_noise).flatten(0, 1)
        chosen = obs.legal.to(torch.uint8).argmax(-1)
        return Call(lambda: move(source.env, state, chosen, noise), rt)
    action = 2 * rng.uniform("explore", count, spec.agents, spec.action).flatten(0, 1) - 1
    noise = rng.uniform("step", count, spec.step_noise).flatten(0, 1)
    step = rt.kernel(advance, "environment")
    return Call(lambda: step(config.env, source.worlds, action, noise, source.pool), rt)


def load_call(config: Config) -> Call:
    """Bring one batch."""
    rt, _, _, source = build.assembled(config)
    return Call(source.next, rt)


CALLS = {
    "load": load_call,
    "update": update_call,
    "cycle": cycle_call,
    "acting": acting_call,
    "environment": environment_call,
}


def compare(
    preset: str,
    settings: Settings,
    *layers: Mapping[str, Any],
    call: str = "update",
    rounds: int = 30,
    enough_s: float = math.inf,
) -> list[dict[str, Any]]:
    """Time one piece of a run under each of ``settings``, laid over ``layers``, interleaved in this process.

    After ``enough_s`` seconds, rounds are no more than an interval needs.

    Returns:
        A row for each setting, in order: ``setting``, ``ms`` (median), ``over_first`` and ``over_below`` (how many
        times faster than the first row and the row before; medians of ratios of the same round), ``low`` and ``high``
        (95 % interval of ``over_first``), ``ops`` (operators that reached the device), ``first_call_s`` (with all
        warm-up) and ``fell_back`` (toggles that were not in effect, and why).

    Raises:
        ConfigError: Settings that are not valid.
    """
    configs = {name: configure(preset, *layers, setting) for name, setting in settings.items()}
    made, first = prepared({name: partial(CALLS[call], config) for name, config in configs.items()})
    calls, device = {name: one.call for name, one in made.items()}, next(iter(made.values())).rt.device
    seconds = interleaved(calls, rounds, device, enough_s=enough_s)
    operators = {name: count_operators(one.call) for name, one in made.items()}
    rows, names = [], list(settings)
    for name, below in zip(names, [names[0], *names], strict=False):
        over = ratio(seconds[names[0]], seconds[name])
        rows.append(
            {
                "setting": name,
                "ms": round(1e3 * median(seconds[name]), 3),
                "over_first": over["median"],
                "low": over["low"],
                "high": over["high"],
                "over_below": ratio(seconds[below], seconds[name])["median"],
                "ops": operators[name],
                "first_call_s": round(first[name], 3),
                "fell_back": made[name].rt.fell_back,
            }
        )
    return rows


def prepared(makers: Mapping[str, Callable[[], Call]]) -> tuple[dict[str, Call], dict[str, float]]:
    """Build calls, each to run in the scope of its own runtime, and time the first call of each, warm-up and all (s).

    Raises:
        ResourceError: Memory does not suffice.
    """
    made: dict[str, Call] = {}
    first: dict[str, float] = {}
    for name, maker in makers.items():
        with build.enough_memory():
            one = maker()
            made[name] = Call(one.rt.scope()(one.call), one.rt)
            first[name] = timed(made[name].call, one.rt.device)
    return made, first


def learning(
    preset: str,
    settings: Settings,
    *layers: Mapping[str, Any],
    say: Callable[[str], Any] = lambda line: None,
) -> list[dict[str, Any]]:
    """Train a run (of one or more seeds) under each of ``settings`` and keep the scores along the way.

    Returns:
        A row for each setting: ``setting``, ``first_update_s`` (with all warm-up), ``updates_per_s`` (afterwards,
        scores left out), ``fell_back``, and ``curve``: for each score the ``update``, the ``seconds`` of training since
        the beginning, and by metric what ``each`` run reached.

    Raises:
        ConfigError: Settings that are not valid.
    """
    rows = []
    for name, setting in settings.items():
        run = Run(configure(preset, *layers, setting))
        curve, first, paused = [], 0.0, 0.0
        for progress in run.train():
            first = first or run.seconds
            if progress.each:
                curve.append({"update": progress.number, "seconds": round(run.seconds, 3), "each": progress.each})
                paused += run.scored
        rate = (run.number - 1) / max(run.seconds - first - paused, 1e-9)
        say(f"{name}, seeds {list(run.rng.seeds)}: {run.number} updates in {run.seconds:.1f} s")
        rows.append(
            {
                "setting": name,
                "seeds": list(run.rng.seeds),
                "first_update_s": round(first, 3),
                "updates_per_s": round(rate, 2),
                "fell_back": run.rt.fell_back,
                "curve": curve,
            }
        )
    return rows
