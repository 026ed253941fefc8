"""Changes of toggles are listed, predicted from the parts of a cycle, and measured; what compiles too long is not."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.support.fixtures_config import TINY, tiny
from uavlab.experiment.config import Config, configure
from uavlab.runtime.runtime import Runtime
from uavlab_lab.measure import profile_run
from uavlab_lab.measure.compare import Call
from uavlab_lab.measure.profile_run import candidates, measure_changes

CHANGES = {"a": {"acting": "batched"}, "b": {"adam": "foreach"}, "c": {"compile": "default"}}
MS = {  # of a cycle of 10 ms, an update takes 6, acting 2 and stepping 1 ms
    "update": {"": 6.0, "a": 3.0, "b": 6.0, "c": 3.0},
    "acting": {"": 2.0, "a": 1.0, "b": 2.0, "c": 1.0},
    "environment": {"": 1.0, "a": 1.0, "b": 2.0, "c": 1.0},
    "cycle": {"": 10.0, "a": 5.0, "b": 12.5, "c": 4.0},
}
AMDAHL = {"a": 10 / 6, "b": 10 / 11, "c": 10 / 6}


def test_candidates_are_usable_and_keep_the_algorithm() -> None:
    changes = candidates(tiny())
    assert {"compile=default", "precision=bf16", "acting=loop", "update=vmap", "recompute=on"} <= set(changes)
    names = {name.partition("=")[0] for name in changes}
    assert names.isdisjoint({"graph", "interval", "ratio", "priorities", "prefetch", "scaler", "memory_fraction"})
    assert "update=batched" not in changes  # is on already
    assert changes["precision=bf16"] == {"precision": "bf16"}


def test_what_is_hopeless_on_a_cpu_is_not_tried() -> None:
    changes = candidates(configure("leader_follower_quick", {"device": "cpu"}))
    assert "precision=bf16" in changes
    assert "precision=fp16" not in changes


class Bench:
    """Pieces without content, whose rows have times made by hand; ``order`` lists what was done."""

    def __init__(self, fell_back: Sequence[str] = (), seconds: Mapping[str, float] | None = None) -> None:
        self.fell_back, self.seconds = fell_back, seconds or {}
        self.order: list[str] = []
        self.time = 0.0

    def prepare(
        self, config: Config, pieces: Sequence[str], before_compile: Callable[[str], Any] = lambda name: None
    ) -> dict[str, Call]:
        toggles = config.toggles
        name = next((key for key, change in CHANGES.items() if change.items() <= vars(toggles).items()), "")
        if toggles.compile != "off":
            before_compile("acting")
        self.time += self.seconds.get(name, 0.0)
        if toggles.compile != "off":
            before_compile("update")
        self.order.append(f"prepare {name}")
        rt = Runtime(fell_back={"adam": "why"} if name in self.fell_back else {})
        return {piece: Call(lambda piece=piece: piece, rt) for piece in pieces}  # type: ignore[misc]

    def compare(self, calls: Mapping[str, Call], *_: Any, **__: Any) -> list[dict[str, Any]]:
        piece = next(iter(calls.values())).call()
        self.order.append(f"{piece} {','.join(calls)}")
        ms = MS[piece]
        other = {"low": 1.0, "high": 2.0, "first_call_s": 0.5}
        return [{"setting": name, "ms": ms[name], "over_first": ms[""] / ms[name], **other} for name in calls]

    def measure(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
        monkeypatch.setattr(time, "monotonic", lambda: self.time)
        monkeypatch.setattr(profile_run, "prepare_pieces", self.prepare)
        monkeypatch.setattr(profile_run, "compare_calls", self.compare)
        base = configure("leader_follower", TINY, {"acting": "loop", "adam": "single", "compile": "off"})
        changed = {name: configure(base.preset, base.values, change) for name, change in CHANGES.items()}
        return measure_changes(base, changed, 10.0, 3, **options)


def test_the_prediction_is_amdahls_of_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of 10 ms a cycle takes 6, 11 and 6 ms."""
    rows, failed = Bench().measure(monkeypatch)
    assert {row["toggle"]: row["predicted"] for row in rows} == {name: round(x, 3) for name, x in AMDAHL.items()}
    assert [(row["toggle"], row["measured"]) for row in rows] == [("c", 2.5), ("a", 2.0), ("b", 0.8)]
    assert failed == {}


def test_what_compiles_is_measured_last(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.measure(monkeypatch, most=1)
    assert bench.order == [
        *("prepare ", "prepare a", "prepare b", "update ,a,b", "acting ,a,b", "environment ,a,b", "cycle ,a"),
        *("prepare c", "update ,c", "acting ,c", "environment ,c", "cycle ,c"),
    ]


def test_what_fell_back_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, failed = Bench(fell_back=["a", "c"]).measure(monkeypatch)
    assert [row["toggle"] for row in rows] == ["b"]
    assert failed == dict.fromkeys("ac", "without effect: why")


def test_what_has_no_effect_in_either_run_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, failed = Bench(fell_back=["", "a"]).measure(monkeypatch)
    assert ({row["toggle"] for row in rows}, failed) == (set("abc"), {})


def test_what_is_not_compiled_in_time_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second function would be compiled at 11 s; what does not compile has no limit."""
    bench = Bench(seconds={"a": 30.0, "c": 11.0})
    rows, failed = bench.measure(monkeypatch, until=40.5)
    assert ([row["toggle"] for row in rows], failed) == (["a", "b"], {"c": profile_run.LATE})
    assert bench.order[-1] == "cycle ,a,b"
    rows, failed = Bench(seconds={"a": 30.0, "c": 10.0}).measure(monkeypatch, until=40.5)
    assert ([row["toggle"] for row in rows], failed) == (["c", "a", "b"], {})
