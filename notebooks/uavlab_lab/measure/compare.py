"""Pieces of a run, timed in turn: under several settings, or loading beside learning; and trainings side by side."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import initial_memory, step_policy
from uavlab.core.rng import Streams, acting_noise
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.learners.learner import Learner
from uavlab.profiling.roofline import count_operators
from uavlab.profiling.timing import FEWEST, WARM_UP, median, ratio, time_call, time_in_turn
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import Monitor
from uavlab.telemetry.window_source import WindowCollector
from uavlab.training import make_cycle

PARTS = ("loader", "model", "both")  # whose throughput is measured
IN_A_ROW = 10  # batches per timed call of the loader alone, with no network in between that evicts the caches
CYCLES = 10  # batches of a timed call, where the throughput of loading and learning is measured

Settings = Mapping[str, Mapping[str, Any]]
"""Layers of settings, by the name of the row that each becomes."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One repeatable piece of a run, the runtime that it runs under, and how long its first call took (s)."""

    call: Callable[[], Any]
    rt: Runtime
    first_s: float = 0.0


def build_call(config: Config, piece: str, monitor: Monitor | None = None) -> Call:
    """Build a call of one piece of a run, whose stages ``monitor`` times.

    Pieces are ``load`` (a batch), ``update`` (from one batch, always the same), ``cycle`` (act, step, store, draw,
    update, feedback), ``acting`` (in all worlds once) and ``environment`` (a whole step of all worlds).
    """
    _check_piece(config, piece)
    rt, *parts = build.assemble(config, monitor)
    return Call(_piece(config, piece, rt, *parts), rt)


def _check_piece(config: Config, piece: str) -> None:
    pieces = list(dict.fromkeys(("cycle", "load", *config.task.collector.calls)))
    if piece not in pieces:
        raise ConfigError(f"{config.preset}: no piece {piece!r} to time; expected one of {', '.join(pieces)}.")


def _piece(config: Config, piece: str, rt: Runtime, rng: Streams, learner: Learner, source: Any) -> Callable[[], Any]:
    if piece == "update":
        batch = source.next()
        return partial(learner.update, batch, learner.update_noise(rng, batch.index.shape[1]))
    if piece == "cycle":
        return make_cycle(source, learner, rng, rt)
    if piece == "acting":
        spec = config.env.spec
        with torch.no_grad():  # as in a cycle, which compiles the same function
            policy, obs, worlds = learner.policy(spec, explore=True), source.observations(), config.source.worlds
            memory = initial_memory(policy, config.run.runs, worlds)
        return torch.no_grad()(partial(step_policy, policy, obs, acting_noise(rng, "act", worlds, spec), memory))
    return source.world_step() if piece == "environment" else source.next


def prepare(configs: Mapping[str, Config], piece: str) -> dict[str, Call]:
    return {name: prepare_pieces(config, (piece,))[piece] for name, config in configs.items()}


def prepare_pieces(
    config: Config, pieces: Sequence[str], before_compile: Callable[[str], Any] = lambda name: None
) -> dict[str, Call]:
    """Build pieces of one run, which share its learner and source, and time the first call of each, in order.

    ``before_compile`` is called with the name of each function before it is compiled.
    """
    calls = {}
    for piece in pieces:
        _check_piece(config, piece)
    with build.enough_memory():
        rt, *parts = build.assemble(config)
        rt.on_compile.append(before_compile)
        for piece in pieces:
            with rt.scope():  # compiled code is of the flags under which it was traced
                call = rt.scope()(_piece(config, piece, rt, *parts))
            calls[piece] = Call(call, rt, time_call(call, rt.device))
    return calls


def compare(
    preset: str, settings: Settings, *layers: Mapping[str, Any], call: str = "update", rounds: int = 30, **timing: Any
) -> list[Row]:
    """Time a piece of a run under each of ``settings``, which override ``layers``, in turn in this process.

    ``call`` is the piece, as for ``build_call``; ``timing`` and the rows are those of ``compare_calls``.
    """
    configs = {name: configure(preset, *layers, setting) for name, setting in settings.items()}
    return compare_calls(prepare(configs, call), rounds, **timing)


def compare_calls(
    calls: Mapping[str, Call],
    rounds: int,
    enough_s: float = math.inf,
    over: Sequence[str] = (),
    at_once: int = 1,
    warm_up: int = WARM_UP,
    fewest: int = FEWEST,
    count: bool = True,
) -> list[Row]:
    """Time prepared calls in turn, ``at_once`` of one name in a row: a single one finds the caches as others left them.

    The first one is the reference, those ``over`` are further ones. After ``enough_s`` seconds only the ``fewest``
    rounds are run. ``count`` counts operators by one more call of each.

    Returns:
        A row for each: ``setting``, ``ms`` (median), ``over_first`` and ``over_below`` (how many times faster than the
        first row and the row before; medians of ratios of the same round), ``low`` and ``high`` (95 % interval of
        ``over_first``), ``over_NAME`` for each name in ``over``, ``rounds`` (those that were timed), ``ops`` (operators
        that reach the device, if counted), ``first_call_s`` and ``fell_back`` (toggles without effect, and why).
    """
    names, device = list(calls), next(iter(calls.values())).rt.device
    blocks = {name: _repeat(one.call, at_once) for name, one in calls.items()}
    seconds = time_in_turn(blocks, rounds, device, warm_up=warm_up, enough_s=enough_s, fewest=fewest)
    return [
        {
            "setting": name,
            "ms": round(1e3 * median(seconds[name]) / at_once, 3),
            **ratio(seconds[names[0]], seconds[name], "over_first"),
            "over_below": ratio(seconds[below], seconds[name])["median"],
            **{f"over_{reference}": ratio(seconds[reference], seconds[name])["median"] for reference in over},
            "rounds": len(seconds[name]),
            **({"ops": count_operators(calls[name].call)} if count else {}),
            "first_call_s": round(calls[name].first_s, 3),
            "fell_back": calls[name].rt.fell_back,
        }
        for name, below in zip(names, [names[0], *names], strict=False)
    ]


def _repeat(call: Callable[[], Any], times: int) -> Callable[[], None]:
    def block() -> None:
        for _ in range(times):
            call()

    return block


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


def loading_calls(
    config: Config, kind: type[WindowCollector] | None = None
) -> tuple[Runtime, WindowCollector, dict[str, Callable[[], Any]]]:
    """Build the calls ``loader`` (``IN_A_ROW`` batches), ``model`` (an update on one batch) and ``both`` (a cycle).

    ``kind`` replaces the class of the window source.
    """
    rt, rng, learner, source = build.assemble(config)
    source = kind(config.env, config.source, rng, rt) if kind else source
    model, both = (_piece(config, piece, rt, rng, learner, source) for piece in ("update", "cycle"))
    calls = dict(zip(PARTS, (_repeat(source.next, IN_A_ROW), model, both), strict=True))
    return rt, source, {part: rt.scope()(call) for part, call in calls.items()}


def rates(seconds: Mapping[str, list[float]], windows: int) -> dict[str, Any]:
    """Return windows per second of the calls of ``loading_calls``, whose batches have so many, from times by round.

    ``of_model`` is the throughput of both over that of the model alone, with its 95 % interval ``low`` to ``high``.
    """
    counts = {"loader": IN_A_ROW * windows, "model": windows, "both": windows}
    paces = {part: round(count / median(seconds[part])) for part, count in counts.items()}
    return {**paces, **ratio(seconds["model"], seconds["both"], "of_model")}


def break_even_calls(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> int | None:
    """Return the number of calls after which a longer warm-up pays off: 0 if it is not longer, None if it never does.

    Both have the time of a call (``ms``) and of the first one (``first_call_s``); the second is the one that warms up.
    """
    warm_up, gain = 1e3 * (fast["first_call_s"] - slow["first_call_s"]), slow["ms"] - fast["ms"]
    if warm_up <= 0:
        return 0
    return math.ceil(warm_up / gain) if gain > 0 else None
