"""What a live run says of a change of settings, beside interleaved timings of the same settings."""

from typing import Any

from uavlab.benchmarks.compare import compare
from uavlab.benchmarks.registry import Record, suite
from uavlab.experiment.config import Device, configure
from uavlab.experiment.run import Run
from uavlab.live.trainer import Trainer

PRESET = "leader_follower_quick"
CHANGES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"precision": "fp32"}, {"precision": "bf16"}),
    ({"acting": "loop"}, {"acting": "batched"}),
    ({"compile": "off"}, {"compile": "default"}),
)
BLOCK = 50  # cycles, about as long as a slice of a live run
WARM = 50  # updates before a change
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
    """Train a run on a thread, change it after some updates, and return what the comparison measured.

    Raises:
        UavlabError: The change is refused, or training fails.
    """
    run = Run(configure(PRESET, ALONE, {"device": device, "monitor": True}, before))
    trainer = Trainer(run, pairs)
    trainer.play([(WARM, after)])
    trainer.join()
    return dict(next(each for each in run.changes if each.by == "script").measured)


def _text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
