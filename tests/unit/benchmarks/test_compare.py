"""Rows of a comparison hold what was timed; trainings side by side give curves that belong to their settings."""

from typing import Any

import pytest
import torch

from tests.support.fixtures_config import TINY, sizes
from uavlab.core.errors import ConfigError
from uavlab.experiment import build
from uavlab.experiment.config import configure, toggle_layer
from uavlab.profiling.timing import WARM_UP
from uavlab.runtime.runtime import Runtime
from uavlab_lab.measure import compare as module
from uavlab_lab.measure.compare import Call, build_call, compare, compare_calls, learning, prepare_pieces

SETTINGS: dict[str, Any] = {"plain": toggle_layer("plain"), "eager": {}}
COLUMNS = {"setting", "ms", "over_first", "low", "high", "over_below", "rounds", "ops", "first_call_s", "fell_back"}


@pytest.mark.parametrize("env", ["leader_follower", "mapping"])
@pytest.mark.parametrize("call", ["load", "update", "cycle", "acting", "environment"])
def test_rows_are_in_order_and_complete(call: str, env: str) -> None:
    rows = compare(env, SETTINGS, sizes(env), call=call, rounds=3)
    assert [row["setting"] for row in rows] == ["plain", "eager"]
    assert all(set(row) == COLUMNS and row["ms"] > 0 and row["ops"] > 0 and row["rounds"] == 3 for row in rows)
    assert rows[0]["over_first"] == rows[0]["over_below"] == rows[0]["low"] == 1
    if call == "update" and env == "leader_follower":
        assert rows[0]["ops"] > rows[1]["ops"]  # agent after agent, against all at once


def test_ratios_are_of_the_row_above_and_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"a": [8.0, 8.0], "b": [4.0, 4.0], "c": [1.0, 1.0]}
    monkeypatch.setattr(module, "time_in_turn", lambda calls, rounds, device, **_: times)
    rows = compare("leader_follower", {key: {} for key in "abc"}, TINY, rounds=2)
    assert [(row["ms"], row["over_first"], row["over_below"]) for row in rows] == [
        (8000, 1, 1),
        (4000, 2, 2),
        (1000, 8, 4),
    ]


def test_blocks_of_calls_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    calls = {name: Call(lambda name=name: order.append(name), Runtime()) for name in ("a", "b")}
    monkeypatch.setattr(module, "count_operators", lambda call: 0)
    rows = compare_calls(calls, 3, at_once=2)
    assert "".join(order) == "aabbbbaa" * ((3 + WARM_UP) // 2)  # each round begins with another
    assert [row["rounds"] for row in rows] == [3, 3]


def test_a_cycle_steps_and_learns() -> None:
    config = configure("leader_follower", TINY)
    one = build_call(config, "cycle")
    with one.rt.scope():
        first, second = one.call(), one.call()
    assert first.metrics.keys() == second.metrics.keys()
    assert not first.metrics["q"].equal(second.metrics["q"])


def test_pieces_of_one_run_share_its_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is built once, and not where a piece is unknown."""
    built = []
    assemble = build.assemble
    monkeypatch.setattr(build, "assemble", lambda *args: built.append(1) or assemble(*args))
    config = configure("leader_follower", TINY)
    with pytest.raises(ConfigError, match="no piece 'nope' to time"):
        prepare_pieces(config, ("cycle", "nope"))
    assert built == []
    calls = prepare_pieces(config, ("cycle", "update", "acting"))
    assert list(calls) == ["cycle", "update", "acting"]
    assert built == [1]
    assert all(one.first_s > 0 for one in calls.values())
    first = calls["update"].call().metrics["q"].clone()
    calls["cycle"].call()
    assert not calls["update"].call().metrics["q"].equal(first)


def test_a_compilation_can_be_refused() -> None:
    """Nothing is compiled, and the error arrives as it is."""
    names: list[str] = []

    def refuse(name: str) -> None:
        names.append(name)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        prepare_pieces(configure("leader_follower", TINY, {"compile": "default"}), ("cycle",), refuse)
    assert len(names) == 1


@pytest.mark.parametrize("env", ["mapping", "pursuit", "leader_follower"])
def test_what_a_cycle_compiles_its_pieces_find_compiled(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, plain = list[str](), torch.compile

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(piece)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda fn, **options: plain(fn, **options | {"mode": None}, backend=backend))
    config, piece = configure(env, sizes(env), {"compile": "default"}), "cycle"
    rt, *parts = build.assemble(config)
    for piece in ("cycle", *config.task.collector.calls):
        with rt.scope():
            module._piece(config, piece, rt, *parts)()
    assert set(graphs) == {"cycle"}


def test_curves_hold_the_scores_of_each_run() -> None:
    rows = learning("leader_follower", SETTINGS, TINY, {"runs": 2}, say=(lines := []).append)
    assert [row["setting"] for row in rows] == ["plain", "eager"]
    for row in rows:
        assert row["seeds"] == [0, 1]
        assert [at["update"] for at in row["curve"]] == [2, 4, 6, 8]
        assert all(len(at["each"]["completion"]) == 2 for at in row["curve"])
        seconds = [at["seconds"] for at in row["curve"]]
        assert seconds == sorted(seconds)
        assert (row["fell_back"], row["updates_per_s"] > 0) == ({}, True)
    assert [line.partition(",")[0] for line in lines] == ["plain", "eager"]


def test_settings_that_are_not_valid_are_refused_before_anything_is_timed() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'upd'"):
        compare("leader_follower", {"a": {}, "b": {"upd": 1}}, TINY)


def test_a_piece_that_the_run_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="no piece 'updat' to time; expected one of cycle, load, update, "):
        compare("leader_follower", {"a": {}}, TINY, call="updat")
    with pytest.raises(ConfigError, match="no piece 'acting' to time; expected one of cycle, load, update"):
        compare("telemetry", {"a": {}}, call="acting")
