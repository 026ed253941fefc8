"""What a live run says of a change of settings, beside timings of the same settings in turn; and a monitor's cost."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from uavlab.benchmarks import Option, Record, suite
from uavlab.experiment.config import Device, configure
from uavlab.experiment.instruments import Instruments
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import RunState
from uavlab.profiling.timing import median, ratio, time_in_turn
from uavlab.runtime.runtime import Runtime
from uavlab_lab.live.trainer import Trainer
from uavlab_lab.measure.compare import compare

PRESET = "leader_follower_quick"
CHANGES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"precision": "fp32"}, {"precision": "bf16"}),
    ({"acting": "loop"}, {"acting": "batched"}),
    ({"compile": "off"}, {"compile": "default"}),
)
BLOCK = 50  # cycles, about as long as a slice of a live run
WARM = 50  # updates before a change
WATCHED = ("leader_follower_quick", "spread_quick")
ENOUGH_S = 240.0  # seconds for a preset, after which only the rounds that an interval needs are run
ALONE = {"evaluate_every": 10**9, "checkpoint_every": 10**9, "updates": 10**9}


@suite("live", about="a change within a run, and the same settings timed in turn")
def live_suite(rounds: int, device: Device) -> Record:
    """Measure changes within a run, to and fro, and cycles under both settings in turn.

    Returns:
        A row for each change: ``before``, ``after``, times as fast after as before with 95 % intervals, ``live`` in the
        run, ``bench`` in blocks of ``BLOCK`` cycles in turn, and ``one_by_one`` by single cycles in turn, which find
        the caches as the other setting left them; ``warm_up_s`` of the change, and ``agree``: whether the intervals of
        ``live`` and ``bench`` share a value.
    """
    rows = []
    for before, after in CHANGES:
        measured = change_in_a_run(before, after, rounds, device)
        live = {"mean": measured["ratio"], "low": measured["low"], "high": measured["high"]}
        bench, single = (timed_in_turn(before, after, rounds, device, at_once) for at_once in (BLOCK, 1))
        rows.append(
            {
                "before": _text(before),
                "after": _text(after),
                "live": live,
                "bench": bench,
                "one_by_one": single,
                "warm_up_s": measured["warm_up_s"],
                "agree": live["low"] <= bench["high"] and bench["low"] <= live["high"],
            }
        )
    return {"preset": PRESET, "rows": rows}


def timed_in_turn(
    before: dict[str, Any], after: dict[str, Any], rounds: int, device: Device, at_once: int
) -> dict[str, float]:
    """Return how many times as fast cycles are under the second settings, with the ends of the interval."""
    settings = {"before": before, "after": after}
    row = compare(PRESET, settings, {"device": device}, call="cycle", rounds=rounds, at_once=at_once)[1]
    return {"mean": row["over_first"], "low": row["low"], "high": row["high"]}


def change_in_a_run(before: dict[str, Any], after: dict[str, Any], pairs: int, device: Device) -> dict[str, Any]:
    """Train a run on a thread, change it after some updates, and return what the comparison measured."""
    run = Run(configure(PRESET, ALONE, {"device": device, "monitor": True}, before))
    trainer = Trainer(run, pairs)
    trainer.play([(WARM, after)])
    trainer.join()
    return dict(next(each for each in run.changes if each.by == "script").measured)


def _text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


class Unwatched(Instruments):
    """Instruments that measure nothing."""

    def next_update(self, run: RunState, steps: Iterator[Any]) -> Any:
        """Make the next update, and time none of its stages."""
        run.rt.monitor.active = False  # type: ignore[union-attr]
        return next(steps)

    def read(self, rt: Runtime) -> dict[str, float]:
        """Return no readings."""
        return {}


@suite(
    "monitor",
    about="what a monitor costs a run",
    options=[Option("presets", "other presets", kind=str)],
)
def monitor_suite(rounds: int, device: Device, presets: Sequence[str] = WATCHED) -> Record:
    """Time training with a monitor and without, in turn: one run, in blocks of an interval of its log.

    It is one run, because two that are equal may differ by a percent, by where their memory lies.

    Returns:
        A row for each preset: ``updates`` of a block, ``off_ms`` and ``on_ms`` of an update (medians), and
        ``on_over_off`` with its 95 % interval from ``low`` to ``high``.
    """
    rows = []
    for preset in presets:
        run = Run(configure(preset, ALONE, {"device": device, "monitor": True}))
        size, steps = run.config.run.log_every, run.train()
        calls = {"off": _block(run, Unwatched(), steps, size), "on": _block(run, Instruments(), steps, size)}
        seconds = time_in_turn(calls, rounds, run.rt.device, enough_s=ENOUGH_S)
        steps.close()
        each_ms = {f"{name}_ms": round(1e3 * median(each) / size, 3) for name, each in seconds.items()}
        compared = ratio(seconds["on"], seconds["off"], "on_over_off")
        rows.append({"preset": preset, "updates": size, **each_ms, **compared, "rounds": len(seconds["on"])})
    return {"rows": rows}


def _block(run: Run, instruments: Instruments, steps: Iterator[Any], size: int) -> Callable[[], None]:
    def call() -> None:
        run.instruments = instruments
        for _ in range(size):
            next(steps)

    return call
