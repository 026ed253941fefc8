"""Stages are kept once, with their threads, and none twice."""

import threading

import pytest

from uavlab.experiment.config import configure
from uavlab_notebooks.timeline import MAIN, Spans, spans

TINY = {"hidden": 8, "batch": 8, "worlds": 4, "learning_starts": 16, "capacity": 64, "device": "cpu", "step_ms": 1.0}


def test_only_the_outermost_stage_of_each_thread_is_kept() -> None:
    watch = Spans("cpu")

    def fly() -> None:
        with watch.scope("acting"):
            pass

    with watch.scope("update"):
        thread = threading.Thread(target=fly, name="fly_0")
        thread.start()
        thread.join()
        with watch.scope("forward"):
            pass
    with pytest.raises(ZeroDivisionError), watch.scope("store"):
        raise ZeroDivisionError
    kept = [(span["lane"], span["name"]) for span in watch.seen]
    assert kept == [("thread that flies", "acting"), (MAIN, "update"), (MAIN, "store")]
    acting, update, _ = watch.seen
    assert 0 <= update["start"] <= acting["start"] <= acting["end"] <= update["end"]
    watch.reset()
    assert watch.seen == []


@pytest.mark.parametrize(
    ("prefetch", "elsewhere"),
    [
        ("off", {}),
        ("on", {"thread that draws": {"draw"}}),
        ("overlap", {"thread that flies": {"acting", "environment"}}),
    ],
)
def test_spans(prefetch: str, elsewhere: dict[str, set[str]]) -> None:
    found = spans(configure("slow_leader_follower", TINY, {"prefetch": prefetch}), cycles=3)
    lanes: dict[str, set[str]] = {}
    for span in found:
        assert span["end"] >= span["start"] >= 0
        lanes.setdefault(span["lane"], set()).add(span["name"])
    here = lanes.pop(MAIN)
    assert lanes == elsewhere
    assert {"update", "store"} <= here
    assert ("environment" in here) == (prefetch != "overlap")
    updates = [span for span in found if span["name"] == "update"]
    assert len(updates) == 3
    steps = [span["end"] - span["start"] for span in found if span["name"] == "environment"]
    assert min(steps) >= 1.0  # each waits so long (ms)
    assert next(iter(found))["lane"] == MAIN
