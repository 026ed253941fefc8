"""Each outermost stage is recorded once, with its thread."""

import threading

import pytest

from uavlab.experiment.config import configure
from uavlab_lab.lessons.timeline import MAIN, SpanRecorder, record_spans

TINY = {"hidden": 8, "batch": 8, "worlds": 4, "learning_starts": 16, "capacity": 64, "device": "cpu", "step_ms": 1.0}


def test_only_the_outermost_stage_of_each_thread_is_kept() -> None:
    recorder = SpanRecorder("cpu")

    def fly() -> None:
        with recorder.scope("acting"):
            pass

    with recorder.scope("update"):
        thread = threading.Thread(target=fly, name="collect_0")
        thread.start()
        thread.join()
        with recorder.scope("forward"):
            pass
    with pytest.raises(ZeroDivisionError), recorder.scope("store"):
        raise ZeroDivisionError
    spans = [(span["lane"], span["name"]) for span in recorder.spans]
    assert spans == [("thread of the worlds", "acting"), (MAIN, "update"), (MAIN, "store")]
    acting, update, _ = recorder.spans
    assert 0 <= update["start"] <= acting["start"] <= acting["end"] <= update["end"]
    recorder.reset()
    assert recorder.spans == []


@pytest.mark.parametrize(
    ("prefetch", "elsewhere"),
    [
        ("off", {}),
        ("on", {"thread of the draws": {"draw"}}),
        ("overlap", {"thread of the worlds": {"acting", "environment"}}),
    ],
)
def test_spans(prefetch: str, elsewhere: dict[str, set[str]]) -> None:
    recorded = record_spans(configure("slow_leader_follower", TINY, {"prefetch": prefetch}), cycles=3)
    lanes: dict[str, set[str]] = {}
    for span in recorded:
        assert span["end"] >= span["start"] >= 0
        lanes.setdefault(span["lane"], set()).add(span["name"])
    here = lanes.pop(MAIN)
    assert lanes == elsewhere
    assert {"update", "store"} <= here
    assert ("environment" in here) == (prefetch != "overlap")
    updates = [span for span in recorded if span["name"] == "update"]
    assert len(updates) == 3
    steps = [span["end"] - span["start"] for span in recorded if span["name"] == "environment"]
    assert min(steps) >= 1.0  # each waits so long (ms)
    assert next(iter(recorded))["lane"] == MAIN
