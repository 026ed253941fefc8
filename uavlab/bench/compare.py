"""Compare a run under several settings: time one of its calls in turn, or train it once under each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from uavlab.bench.timing import median, ratio, time_call, time_in_turn
from uavlab.core.rng import acting_noise
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import count_work
from uavlab.train import make_cycle

Settings = Mapping[str, Mapping[str, Any]]
"""Layers of settings by the names that rows have for them."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One repeatable piece of a run, and the runtime that it runs under."""

    call: Callable[[], Any]
    rt: Runtime


def update_call(config: Config) -> Call:
    """Build a call that learns from one batch, always the same."""
    rt, rng, learner, source = build.assemble(config)
    batch = source.next()
    noise = learner.update_noise(rng, batch.index.shape[1])
    return Call(lambda: learner.update(batch, noise), rt)


def cycle_call(config: Config) -> Call:
    """Build a call that runs a whole cycle: act, step, store, draw, update, feedback."""
    rt, rng, learner, source = build.assemble(config)
    return Call(make_cycle(source, learner, rng, rt), rt)


def acting_call(config: Config) -> Call:
    """Build a call that chooses the actions of all worlds once."""
    rt, rng, learner, source = build.assemble(config)
    spec = config.env.spec
    policy, obs = learner.policy(spec), source.observations()
    noise = acting_noise(rng, "act", config.source.worlds, spec)
    return Call(lambda: policy(obs, noise), rt)


def environment_call(config: Config) -> Call:
    """Build a call that steps all worlds once: transition, reward, observation, and autoreset where there is one."""
    rt, _, _, source = build.assemble(config)
    return Call(source.world_step(), rt)


def load_call(config: Config) -> Call:
    """Build a call that loads one batch."""
    rt, _, _, source = build.assemble(config)
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
) -> list[Row]:
    """Time one piece of a run under each of ``settings``, laid over ``layers``, in turn in this process.

    Args:
        preset: The run.
        settings: What is compared, by name.
        layers: Settings that all of them share.
        call: The piece, one of ``CALLS``.
        rounds: Interleaved repetitions.
        enough_s: Seconds after which there are no more rounds than an interval needs.

    Returns:
        A row for each setting, in order, as ``compare_calls`` returns them.

    Raises:
        ConfigError: Settings that are not valid.
    """
    configs = {name: configure(preset, *layers, setting) for name, setting in settings.items()}
    calls, first = prepare({name: partial(CALLS[call], config) for name, config in configs.items()})
    return compare_calls(calls, first, rounds, enough_s)


def prepare(builders: Mapping[str, Callable[[], Call]]) -> tuple[dict[str, Call], dict[str, float]]:
    """Build calls, each in the scope of its own runtime, and time the first call of each with all warm-up (s).

    Raises:
        ResourceError: Memory does not suffice.
    """
    calls: dict[str, Call] = {}
    first: dict[str, float] = {}
    for name, builder in builders.items():
        with build.enough_memory():
            one = builder()
            calls[name] = Call(one.rt.scope()(one.call), one.rt)
            first[name] = time_call(calls[name].call, one.rt.device)
    return calls, first


def compare_calls(
    calls: Mapping[str, Call], first: Mapping[str, float], rounds: int, enough_s: float = math.inf
) -> list[Row]:
    """Time prepared calls in turn.

    Returns:
        A row for each: ``setting``, ``ms`` (median), ``over_first`` and ``over_below`` (how many times faster than the
        first row and the row before; medians of ratios of the same round), ``low`` and ``high`` (95 % interval of
        ``over_first``), ``ops`` (operators that reach the device), ``first_call_s`` and ``fell_back`` (toggles that
        are not in effect, and why).
    """
    names, device = list(calls), next(iter(calls.values())).rt.device
    seconds = time_in_turn({name: one.call for name, one in calls.items()}, rounds, device, enough_s=enough_s)
    rows = []
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
                "ops": count_work(calls[name].call).operators,
                "first_call_s": round(first[name], 3),
                "fell_back": calls[name].rt.fell_back,
            }
        )
    return rows


def learning(
    preset: str,
    settings: Settings,
    *layers: Mapping[str, Any],
    say: Callable[[str], Any] = lambda line: None,
) -> list[Row]:
    """Train a run of one or more seeds under each of ``settings``, and record its scores.

    Returns:
        A row for each setting: ``setting``, ``seeds``, ``first_update_s`` (with all warm-up), ``updates_per_s``
        (afterwards, without scoring), ``fell_back``, and ``curve``: for each score the ``update``, the ``seconds`` of
        training so far, and ``each``, by metric the value of every run.

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
                paused += run.score_seconds
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
