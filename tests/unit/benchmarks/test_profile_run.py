"""A profile watches, weighs, predicts and measures; its text shows the toggle that measured best first."""

import json
from typing import Any

import pytest

from tests.support.card_parts import facts, tables, title
from tests.support.fixtures_config import TINY, tiny
from uavlab.benchmarks import profile_run
from uavlab.benchmarks.compare import Call
from uavlab.benchmarks.profile_run import Profile, candidates, profile_preset, shorten
from uavlab.experiment import build
from uavlab.experiment.config import configure

CHANGES = {"a": {"acting": "batched"}, "b": {"adam": "foreach"}}


def test_candidates_are_usable_and_keep_the_algorithm() -> None:
    changes = candidates(tiny())
    assert {"compile=default", "precision=bf16", "acting=loop", "update=vmap", "recompute=on"} <= set(changes)
    names = {name.partition("=")[0] for name in changes}
    assert names.isdisjoint({"graph", "interval", "ratio", "priorities", "prefetch", "scaler", "memory_fraction"})
    assert "update=batched" not in changes  # is on already
    assert changes["precision=bf16"] == {"precision": "bf16"}


@pytest.mark.parametrize(
    ("cycle_ms", "every", "untried"),
    [
        (10.0, False, ["recompute=on", "deterministic=on"]),
        (400.0, False, ["recompute=on", "deterministic=on", "acting=loop"]),
        (400.0, True, []),
    ],
)
def test_what_saves_no_time_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, cycle_ms: float, every: bool, untried: list[str]
) -> None:
    """Of slow cycles, neither are the values of the plain reference; the text says so."""
    changes = {"recompute=on": {"recompute": "on"}, "deterministic=on": {"deterministic": "on"}}
    changes |= {"acting=loop": {"acting": "loop"}, "precision=bf16": {"precision": "bf16"}}

    def compare(preset: str, settings: Any, *layers: Any, **_: Any) -> list[dict[str, Any]]:
        other = {"ms": 1.0, "over_first": 1.0, "low": 1.0, "high": 1.0, "first_call_s": 0.0, "fell_back": {}}
        return [{"setting": name, **other} for name in settings]

    monkeypatch.setattr(profile_run, "compare", compare)
    monkeypatch.setattr(profile_run, "candidates", lambda config: changes)
    monkeypatch.setattr(profile_run, "_watch", lambda config, trace, stacks: record(cycle_ms=cycle_ms))
    measured = profile_preset("leader_follower", TINY, every=every)
    assert measured["untried"] == untried
    rows = {row["toggle"] for row in measured["candidates"]}
    assert rows <= changes.keys() - set(untried)
    assert len(rows) == min(len(changes) - len(untried), len(changes) if every else profile_run.WORTH)
    assert (f"not tried: {', '.join(untried)}; --all" in repr(measured)) == bool(untried)


@pytest.mark.parametrize(
    ("preset", "settings", "seconds", "expected"),
    [
        ("pursuit", {"rollout_steps": 12, "minibatches": 8, "spares": 3}, 0.9, (6, 4, 2)),  # halves suffice
        ("pursuit", {"rollout_steps": 12, "minibatches": 8, "spares": 3}, 50.0, (3, 2, 1)),  # quarters are the least
        ("pursuit", {"rollout_steps": 12, "minibatches": 8, "spares": 3}, 0.4, None),
        ("pursuit", {"rollout_steps": 12, "minibatches": 8, "memory": 4}, 50.0, None),  # minibatches are of worlds
        ("mapping", {"worlds": 6, "minibatches": 4}, 50.0, (3, 2)),  # batches are of whole episodes
        ("leader_follower", TINY, 50.0, None),
    ],
)
def test_a_long_cycle_is_shortened(
    monkeypatch: pytest.MonkeyPatch,
    preset: str,
    settings: dict[str, Any],
    seconds: float,
    expected: tuple[int, ...] | None,
) -> None:
    monkeypatch.setattr(profile_run, "build_call", lambda config, piece: Call(lambda: None, build.runtime(config.run)))
    monkeypatch.setattr(profile_run, "time_call", lambda call, device: seconds)
    config = configure(preset, settings)
    shortened = shorten(config)
    assert (shortened and tuple(shortened["settings"].values())) == expected
    if shortened:
        configure(preset, settings, shortened["settings"])  # is valid
        assert shortened["whole"] == {name: config.values[name] for name in shortened["settings"]}
        text = repr(Profile({**record(), "shortened": shortened}))
        assert text.startswith(f"part of a cycle, which takes {seconds:.1f} s: ")


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
    monkeypatch.setattr(profile_run, "candidates", lambda config: CHANGES)
    monkeypatch.setattr(profile_run, "_watch", lambda config, trace, stacks: {"cycle_ms": 10.0})
    rows = profile_preset("leader_follower", TINY)["candidates"]
    assert {row["toggle"]: row["predicted"] for row in rows} == {"a": round(10 / 6, 3), "b": round(10 / 11, 3)}


def test_what_fell_back_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(preset: str, settings: Any, *layers: Any, call: str, **_: Any) -> list[dict[str, Any]]:
        other = {"ms": 1.0, "over_first": 1.0, "low": 1.0, "high": 1.0, "first_call_s": 0.0}
        return [{"setting": n, **other, "fell_back": {"compile": "why"} if n == "a" else {}} for n in settings]

    monkeypatch.setattr(profile_run, "compare", compare)
    monkeypatch.setattr(profile_run, "candidates", lambda config: CHANGES)
    monkeypatch.setattr(profile_run, "_watch", lambda config, trace, stacks: {"cycle_ms": 10.0})
    assert [row["toggle"] for row in profile_preset("leader_follower", TINY)["candidates"]] == ["b"]


def test_what_is_hopeless_on_a_cpu_is_not_tried() -> None:
    changes = candidates(configure("leader_follower_quick", {"device": "cpu"}))
    assert "precision=bf16" in changes
    assert "precision=fp16" not in changes


UPDATE = {
    **{"ms": 6.125, "operators": 1217, "launch_us": 1.25, "flop_per_s": 6e9, "flop_per_s_ceiling": 24e9},
    **{"bytes_per_s": 75e7, "bytes_per_s_ceiling": 15e9},
}


def record(**changes: Any) -> Profile:
    """Return a record of a profile with numbers made by hand."""
    stage = {"name": "acting", "mean_ms": 1.25, "p95_ms": 2.5, "share": 0.375}
    gain = {"toggle": "adam=fused", "predicted": 1.5, "measured": 1.25, "low": 1.125, "high": 1.5, "first_call_s": 2.0}
    whole = {
        **{"preset": "pursuit", "kind": "launch", "verdict": "launch-bound: starting 217 operators 62%"},
        **{"machine": {"device": "a GPU", "threads": 2}, "memory": {"peak": 3 * 2**20}, "trace": None},
        **{"update": UPDATE, "stages": [stage], "candidates": [gain], "untried": []},
        "operators": [{"operator": "aten::bmm", "calls": 6.0, "cpu_ms": 0.5, "share": 0.25}],
    }
    return Profile(whole | changes)


class TestProfile:
    def test_its_text_has_the_verdict_and_the_tables(self) -> None:
        assert repr(record()).splitlines() == [
            "stage                 ms    p95 ms   share",
            "acting             1.250     2.500   37.5%",
            "",
            "operator                                           calls    cpu ms     share",
            "aten::bmm                                              6     0.500     25.0%",
            "",
            "launch-bound: starting 217 operators 62%",
            "achieved: matrix products 6 of at most 24 GFLOP/s (25%), memory 0.75 of at most 15 GB/s (5%); 1,217 "
            "operators of at least 1.25 us each",
            "memory: peak 3 MiB",
            "",
            "toggle                   predicted  measured  95 % interval   first call",
            "adam=fused                   1.50x     1.25x  1.12 to 1.50         2.0 s",
        ]

    def test_the_source_of_an_operator_comes_last(self) -> None:
        row = {"operator": "aten::bmm" * 9, "calls": 6.0, "cpu_ms": 0.5, "share": 0.25, "source": "mine.py:3 loss"}
        lines = repr(record(operators=[row])).splitlines()
        assert lines[3:5] == [
            "operator                                           calls    cpu ms     share  source",
            f"{('aten::bmm' * 9)[:45]}      6     0.500     25.0%  mine.py:3 loss".replace("      6", "          6"),
        ]

    def test_it_is_a_dict(self) -> None:
        assert json.loads(json.dumps(record())) == record() == dict(record())

    def test_its_card(self) -> None:
        page = record()._repr_html_()
        assert title(page) == "Profile of pursuit"
        assert facts(page) == {
            **{"bound by": "launch", "update": "6.125 ms, 1,217 operators", "memory, peak": "3 MiB"},
            **{"device": "a GPU", "threads": "2"},
        }
        assert "<p>launch-bound: starting 217 operators 62%</p>" in page
        stages, gains, operators = tables(page)
        assert stages == [["stage", "ms", "p95 ms", "share"], ["acting", "1.250", "2.500", "37.5%"]]
        assert gains[1] == ["adam=fused", "1.50x", "1.25x", "1.12 to 1.50", "2.0 s"]
        assert operators == [["operator", "calls", "cpu ms", "share"], ["aten::bmm", "6", "0.500", "25.0%"]]

    def test_a_task_of_logs_has_its_throughput(self) -> None:
        pace = {"loader": 900, "model": 400, "both": 300, "of_model": 0.75, "low": 0.7, "high": 0.8, "intervals": [300]}
        page = record(pipeline={**pace, "disk_mib_per_s": None}, operators=[])._repr_html_()
        assert "<p>windows/s: loader alone 900, model alone 400, both 300 (75% of the model" in page
        assert len(tables(page)) == 2
