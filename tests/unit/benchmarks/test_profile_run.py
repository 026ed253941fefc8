"""A profile watches, weighs, predicts and measures; its text shows the toggle that measured best first."""

from typing import Any

import pytest

from tests.support.fixtures_config import TINY, tiny
from uavlab.benchmarks import profile_run
from uavlab.benchmarks.profile_run import candidates, profile_preset
from uavlab.experiment.config import configure


def test_candidates_are_usable_and_keep_the_algorithm() -> None:
    changes = candidates(tiny())
    assert {"compile=default", "precision=bf16", "acting=loop", "update=vmap", "recompute=on"} <= set(changes)
    names = {name.partition("=")[0] for name in changes}
    assert names.isdisjoint({"graph", "interval", "ratio", "priorities", "prefetch", "scaler", "memory_fraction"})
    assert "update=batched" not in changes  # is on already
    assert changes["precision=bf16"] == {"precision": "bf16"}


def test_the_prediction_is_amdahls_of_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle of 10 ms holds an update of 6, acting of 2 and stepping of 1 ms: with 3, 1 and 1 it takes 6 ms."""
    times: dict[str, dict[str, float]] = {
        "update": {"": 6.0, "a": 3.0, "b": 6.0},
        "acting": {"": 2.0, "a": 1.0, "b": 2.0},
        "environment": {"": 1.0, "a": 1.0, "b": 2.0},
    }

    def compare(preset: str, settings: Any, *layers: Any, call: str, **_: Any) -> list[dict[str, Any]]:
        ms = times.get(call, dict.fromkeys(settings, 10.0))
        other = {"over_first": 1.5, "low": 1.4, "high": 1.6, "first_call_s": 0.0, "fell_back": {}}
        return [{"setting": name, "ms": ms[name], **other} for name in settings]

    monkeypatch.setattr(profile_run, "compare", compare)
    monkeypatch.setattr(profile_run, "candidates", lambda config: {"a": {}, "b": {}})
    monkeypatch.setattr(profile_run, "_watch", lambda config, trace: {})
    rows = profile_preset("leader_follower", TINY)["candidates"]
    assert {row["toggle"]: row["predicted"] for row in rows} == {"a": round(10 / 6, 3), "b": round(10 / 11, 3)}


def test_what_fell_back_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(preset: str, settings: Any, *layers: Any, call: str, **_: Any) -> list[dict[str, Any]]:
        other = {"ms": 1.0, "over_first": 1.0, "low": 1.0, "high": 1.0, "first_call_s": 0.0}
        return [{"setting": n, **other, "fell_back": {"compile": "why"} if n == "a" else {}} for n in settings]

    monkeypatch.setattr(profile_run, "compare", compare)
    monkeypatch.setattr(profile_run, "candidates", lambda config: {"a": {}, "b": {}})
    monkeypatch.setattr(profile_run, "_watch", lambda config, trace: {})
    assert [row["toggle"] for row in profile_preset("leader_follower", TINY)["candidates"]] == ["b"]


def test_what_is_hopeless_on_a_cpu_is_not_tried() -> None:
    changes = candidates(configure("leader_follower_quick", {"device": "cpu"}))
    assert "precision=bf16" in changes
    assert "precision=fp16" not in changes
