"""A profile watches, weighs and measures; where cycles are long, a part of one."""

import json
import math
import time
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.support.card_parts import facts, tables, title
from tests.support.fixtures_config import TINY
from uavlab.core.errors import ConfigError
from uavlab.experiment.config import configure
from uavlab_lab.measure import profile_run
from uavlab_lab.measure.profile_run import Profile, profile_preset, shorten

STEPS = {"rollout_steps": 12, "minibatches": 8, "spares": 3}


@pytest.mark.parametrize(
    ("cycle_ms", "every", "untried", "limit", "left"),
    [
        (10.0, False, ["recompute=on", "deterministic=on"], None, profile_run.LIMIT_S),
        (400.0, False, ["recompute=on", "deterministic=on", "acting=loop"], 300.0, 300.0),
        (400.0, True, [], None, math.inf),
        (400.0, True, [], 20.0, 20.0),
    ],
)
def test_what_saves_no_time_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, cycle_ms: float, every: bool, untried: list[str], limit: float | None, left: float
) -> None:
    """Of slow cycles, neither are the values of the plain reference; the text says so."""
    changes = {"recompute=on": {"recompute": "on"}, "deterministic=on": {"deterministic": "on"}}
    changes |= {"acting=loop": {"acting": "loop"}, "precision=bf16": {"precision": "bf16"}}

    def measure(base: Any, changed: Any, cycle_ms: float, rounds: int, most: int | None, until: float) -> Any:
        assert most == (None if every else profile_run.WORTH)
        assert until == 1e9 + left
        gain = {"predicted": 1.0, "measured": 1.0, "low": 1.0, "high": 1.0, "first_call_s": 0.0}
        return [{"toggle": name, **gain} for name in changed], {"compile=default": "fell back: why"}

    monkeypatch.setattr(time, "monotonic", lambda: 1e9)
    monkeypatch.setattr(profile_run, "measure_changes", measure)
    monkeypatch.setattr(profile_run, "candidates", lambda config: changes)
    monkeypatch.setattr(profile_run, "_watch", lambda config, trace: record(cycle_ms=cycle_ms))
    measured = profile_preset("leader_follower", TINY, every=every, limit=limit)
    assert measured["untried"] == untried
    assert {row["toggle"] for row in measured["candidates"]} == changes.keys() - set(untried)
    assert "\ncompile=default: fell back: why" in repr(measured)
    assert "<p>compile=default: fell back: why</p>" in measured._repr_html_()
    assert (f"not tried: {', '.join(untried)}; --all" in repr(measured)) == bool(untried)


def test_sizes_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run that is compared has the sizes that were measured first."""
    chosen, seen = count(4), list[int]()

    def configure_once(preset: str, *layers: dict[str, Any]) -> Any:
        auto = not any("worlds" in layer for layer in layers)
        config = configure(preset, *layers, {"worlds": next(chosen)} if auto else {})
        return replace(config, chosen={"worlds": "measured"}) if auto else config

    def measure(base: Any, changed: Any, *_: Any) -> Any:
        seen.extend(one.source.worlds for one in (base, *changed.values()))
        return [], {}

    monkeypatch.setattr(profile_run, "configure", configure_once)
    monkeypatch.setattr(profile_run, "measure_changes", measure)
    monkeypatch.setattr(profile_run, "_watch", lambda config, trace: record(cycle_ms=1.0))
    monkeypatch.setattr(profile_run, "_time_cycle", lambda config: seen.append(config.source.worlds) or 1.0)
    profile_preset("pursuit", {"rollout_steps": 4, "minibatches": 4})
    assert set(seen) == {4}
    assert len(seen) > 3


@pytest.mark.parametrize("limit", [-1.0, math.nan])
def test_a_limit_below_0_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match=f"^limit: got {limit} s; expected at least 0.$"):
        profile_preset("leader_follower", TINY, limit=limit)


@pytest.mark.parametrize(
    ("preset", "settings", "quarter", "expected"),
    [
        ("pursuit", STEPS, 0.2, (6, 4, 2)),  # halves suffice
        ("pursuit", STEPS, 0.3, (3, 2, 1)),
        ("pursuit", STEPS, 2.0, (3, 2, 1)),  # quarters are the least with whole minibatches
        ("pursuit", STEPS, 5.0, (1, 1, 1)),
        ("pursuit", STEPS, 0.1, None),
        ("pursuit", {**STEPS, "spares": 1, "memory": 4}, 50.0, None),  # minibatches are of worlds
        ("mapping", {"worlds": 8, "minibatches": 4}, 2.0, (2, 1)),  # batches are of whole episodes
        ("mapping", {"worlds": 24, "minibatches": 4}, 4.0, (3, 1)),  # half a minibatch of 6 worlds suffices
        ("mapping", {"worlds": 24, "minibatches": 4}, 5.0, (2, 1)),
        ("mapping", {"worlds": 24, "minibatches": 4}, 50.0, (1, 1)),
        ("mapping", {"worlds": 6, "minibatches": 4}, 1.5, (3, 2)),
        ("mapping", {"worlds": 6, "minibatches": 4}, 50.0, (1, 1)),  # smaller minibatches, too
        ("leader_follower", TINY, 50.0, None),
    ],
)
def test_a_long_cycle_is_shortened(
    monkeypatch: pytest.MonkeyPatch,
    preset: str,
    settings: dict[str, Any],
    quarter: float,
    expected: tuple[int, ...] | None,
) -> None:
    """The time of its shortest part, mostly a quarter, predicts that of the whole."""
    monkeypatch.setattr(profile_run, "_time_cycle", lambda config: quarter)
    config = configure(preset, settings)
    shortened = shorten(config, settings)
    assert (shortened and tuple(shortened["settings"].values())) == expected
    if shortened:
        configure(preset, settings, shortened["settings"])  # is valid
        assert shortened["whole"] == {name: config.values[name] for name in shortened["settings"]}
        text = repr(Profile({**record(), "shortened": shortened}))
        assert text.startswith(f"part of a cycle, which takes about {shortened['cycle_ms'] / 1e3:.1f} s: ")
        assert shortened["cycle_ms"] == 1e3 * quarter * math.gcd(*list(shortened["whole"].values())[:2])


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
