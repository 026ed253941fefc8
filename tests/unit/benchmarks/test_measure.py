"""Comparisons hold what was timed, a profile predicts and measures, and the doctor names what is missing.

Whole profiles, and every rung of the ladder, are in the proofs.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from tests.support.card_parts import facts, tables, title
from tests.support.fixtures_config import TINY, sizes
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.experiment.config import Config, configure
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import TOGGLES
from uavlab_lab.measure import compare as comparison
from uavlab_lab.measure import doctor, profile_run
from uavlab_lab.measure.compare import IN_A_ROW, Call, compare, compare_calls, rates
from uavlab_lab.measure.profile_run import GRAPHS, PYTHON, Profile, measure_changes, profile, shorten


class TestCompare:
    @pytest.mark.parametrize(
        ("call", "env"), [("cycle", "mapping"), ("acting", "leader_follower"), ("load", "telemetry")]
    )
    def test_rows_are_in_order_and_complete(self, call: str, env: str) -> None:
        rows = compare(env, {"first": {}, "second": {}}, sizes(env), call=call, rounds=3)
        assert [row["setting"] for row in rows] == ["first", "second"]
        assert all(row["ms"] > 0 and row["rounds"] == 3 and row["fell_back"] == {} for row in rows)

    def test_ratios_are_of_the_row_above_and_of_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        times = {"a": [8.0, 8.0], "b": [4.0, 4.0], "c": [1.0, 1.0]}
        monkeypatch.setattr(comparison, "time_in_turn", lambda *_, **__: times)
        calls = {name: Call(lambda: None, Runtime()) for name in times}
        rows = compare_calls(calls, 2, over=["b"])
        keys = ("ms", "over_first", "over_below", "over_b")
        assert [[row[key] for key in keys] for row in rows] == [[8000, 1, 1, 0.5], [4000, 2, 2, 1], [1000, 8, 4, 4]]

    def test_mistakes_are_refused_before_anything_is_timed(self) -> None:
        with pytest.raises(ConfigError, match="unknown setting 'upd'"):
            compare("leader_follower", {"a": {}, "b": {"upd": 1}}, TINY)
        with pytest.raises(ConfigError, match="no piece 'acting' to time; expected one of cycle, load, update"):
            compare("telemetry", {"a": {}}, call="acting")

    def test_windows_per_second_by_hand(self) -> None:
        paces = rates({"loader": [2.0] * 3, "model": [4.0] * 3, "both": [5.0] * 3}, windows=20)
        assert (paces["loader"], paces["model"], paces["both"]) == (20 * IN_A_ROW / 2, 5, 4)
        assert paces["of_model"] == paces["low"] == paces["high"] == 0.8


class TestDoctor:
    def test_every_row_says_what_to_do_exactly_when_something_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(doctor, "matrix_rate", lambda device, precision: {"fp32": 1e11, "bf16": 5e10}[precision])
        monkeypatch.setattr(doctor, "cpu_flags", lambda: ["avx2"])
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("BROWSER_PATH", raising=False)
        monkeypatch.setattr(doctor, "MAC_BROWSERS", ())
        monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: SimpleNamespace(available=3e9, total=8e9))
        rows = {row.what: row for row in doctor.examine(tmp_path / "not" / "yet", "cpu")}
        assert [row.what for row in rows.values() if row.usable == bool(row.advice)] == []
        assert str(tmp_path) in rows["disk"].value  # the nearest folder that is there
        assert "g++" in rows["C++ compiler"].advice
        assert "BROWSER_PATH" in rows["browser"].advice
        assert "Below 4 GB, choose a smaller replay capacity." in str(rows["memory"])
        assert rows["bfloat16 rate"].value == "50 GFLOP/s, 0.5 times float32; instructions: none"

    @pytest.mark.parametrize(
        ("built", "visible", "why"),
        [
            (None, "7", "This build of torch has no CUDA"),
            ("12.9", None, "built for CUDA 12.9 but finds no NVIDIA"),
            ("12.9", "-1", "CUDA_VISIBLE_DEVICES='-1' shows none to torch; unset it"),
        ],
    )
    def test_no_gpu_says_why(self, monkeypatch: pytest.MonkeyPatch, built: str, visible: str, why: str) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", built)
        [row] = doctor._gpus()
        assert (row.usable, why in row.advice) == (False, True)

    def test_a_row_for_each_toggle(self) -> None:
        rows = {row["name"]: row for row in doctor.toggle_rows("cpu")}
        assert list(rows) == list(TOGGLES)
        assert (rows["update"]["sets"]["plain"], rows["update"]["sets"]["eager"]) == ("loop", "batched")
        assert list(rows["graph"]["unusable"]) == ["update", "cycle"]
        text = doctor.format_toggles("cpu")
        assert "not here: tf32: tf32 needs a CUDA device" in text
        assert "  plain: every toggle at its first value\n  eager: update=batched optimizers=one" in text


STEPS = {"rollout_steps": 12, "minibatches": 8, "spares": 3}
UPDATE = {
    **{"ms": 6.125, "operators": 1217, "launch_us": 1.25, "flop_per_s": 6e9, "flop_per_s_ceiling": 24e9},
    **{"bytes_per_s": 75e7, "bytes_per_s_ceiling": 15e9},
}
CHANGES = {"a": {"acting": "batched"}, "b": {"adam": "foreach"}, "c": {"compile": "default"}}
MS = {  # of a cycle of 10 ms, an update takes 6, acting 2 and stepping 1 ms
    "update": {"": 6.0, "a": 3.0, "b": 6.0, "c": 3.0},
    "acting": {"": 2.0, "a": 1.0, "b": 2.0, "c": 1.0},
    "environment": {"": 1.0, "a": 1.0, "b": 2.0, "c": 1.0},
    "cycle": {"": 10.0, "a": 5.0, "b": 12.5, "c": 4.0},
}


class TestProfile:
    @pytest.mark.parametrize(
        ("preset", "settings", "quarter", "expected"),
        [
            ("pursuit", STEPS, 0.2, (6, 4, 2)),  # halves suffice
            ("pursuit", STEPS, 2.0, (3, 2, 1)),  # quarters are the least with whole minibatches
            ("pursuit", STEPS, 5.0, (1, 1, 1)),
            ("pursuit", STEPS, 0.1, None),
            ("pursuit", {**STEPS, "spares": 1, "memory": 4}, 50.0, None),  # minibatches are of worlds
            ("mapping", {"worlds": 8, "minibatches": 4}, 2.0, (2, 1)),  # batches are of whole episodes
            ("mapping", {"worlds": 6, "minibatches": 4}, 50.0, (1, 1)),  # smaller minibatches, too
            ("leader_follower", TINY, 50.0, None),
        ],
    )
    def test_a_long_cycle_is_shortened(
        self, monkeypatch: pytest.MonkeyPatch, preset: str, settings: Any, quarter: float, expected: Any
    ) -> None:
        """The time of its shortest part, mostly a quarter, predicts that of the whole."""
        monkeypatch.setattr(profile_run, "_time_cycle", lambda config: quarter)
        shortened = shorten(configure(preset, settings), settings)
        assert (shortened and tuple(shortened["settings"].values())) == expected
        if shortened:
            configure(preset, settings, shortened["settings"])  # is valid
            assert shortened["cycle_ms"] == 1e3 * quarter * math.gcd(*list(shortened["whole"].values())[:2])

    def test_its_text_and_its_card(self) -> None:
        gain = {"toggle": "adam=fused", "predicted": 1.5, "measured": 1.25, "low": 1.125, "high": 1.5}
        record = Profile(
            **{"preset": "pursuit", "kind": "launch", "verdict": "launch-bound: 62%", "update": UPDATE, "trace": None},
            **{
                "machine": {"device": "a GPU", "threads": 2},
                "memory": {"peak": 3 * 2**20},
                "untried": ["recompute=on"],
            },
            stages=[{"name": "acting", "mean_ms": 1.25, "p95_ms": 2.5, "share": 0.375}],
            candidates=[{**gain, "first_call_s": 2.0}],
            operators=[{"operator": "aten::bmm", "calls": 6.0, "cpu_ms": 0.5, "share": 0.25}],
        )
        assert json.loads(json.dumps(record)) == record
        lines = repr(record).splitlines()
        assert "acting             1.250     2.500   37.5%" in lines
        assert "launch-bound: 62%" in lines
        assert "adam=fused                   1.50x     1.25x  1.12 to 1.50         2.0 s" in lines
        assert lines[-1] == "not tried: recompute=on; --all measures them"
        page = record._repr_html_()
        assert (title(page), facts(page)["update"]) == ("Profile of pursuit", "6.125 ms, 1,217 operators")
        assert tables(page)[1][1] == ["adam=fused", "1.50x", "1.25x", "1.12 to 1.50", "2.0 s"]

    @pytest.mark.parametrize(("until", "failed"), [(math.inf, {}), (40.5, {"c": profile_run.LATE})])
    def test_the_prediction_is_amdahls_of_the_parts(
        self, monkeypatch: pytest.MonkeyPatch, until: float, failed: dict[str, str]
    ) -> None:
        """Instead of 10 ms a cycle takes 6, 11 and 6 ms; what is not compiled in time is not measured."""
        clock = [0.0]

        def prepare(
            config: Config, pieces: Sequence[str], before_compile: Callable[[str], Any] = lambda name: None
        ) -> dict[str, Call]:
            clock[0] += 20.0
            if config.toggles.compile != "off":
                before_compile("update")
            return {piece: Call(lambda piece=piece: piece, Runtime()) for piece in pieces}  # type: ignore[misc]

        def time_calls(calls: Mapping[str, Call], *_: Any, **__: Any) -> list[dict[str, Any]]:
            ms = MS[next(iter(calls.values())).call()]
            more = {"low": 1.0, "high": 2.0, "first_call_s": 0.5}
            return [{"setting": name, "ms": ms[name], "over_first": ms[""] / ms[name], **more} for name in calls]

        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(profile_run, "prepare_pieces", prepare)
        monkeypatch.setattr(profile_run, "compare_calls", time_calls)
        base = configure("leader_follower", TINY, {"acting": "loop", "adam": "single", "compile": "off"})
        changed = {name: configure(base.preset, base.values, change) for name, change in CHANGES.items()}
        rows, why = measure_changes(base, changed, 10.0, 3, until=until)
        expected = [("c", round(10 / 6, 3), 2.5), ("a", round(10 / 6, 3), 2.0), ("b", round(10 / 11, 3), 0.8)]
        assert [(row["toggle"], row["predicted"], row["measured"]) for row in rows] == expected[len(failed) :]
        assert why == failed


class TestTorchProfile:
    def test_rows_are_per_step_and_a_trace_is_whole_or_none(self, tmp_path: Path) -> None:
        x, steps = torch.ones(64, 64), list[int]()

        def step() -> None:
            steps.append(1)
            (x @ x @ x).sum()

        rows = {row["operator"]: row for row in profile(step, "cpu", tmp_path / "trace.json", top=100)}
        assert len(steps) == 10
        assert [rows[name]["calls"] for name in ("aten::mm", "aten::sum", PYTHON)] == [2.0, 1.0, 0.0]
        assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        assert "aten::mm" in {event["name"] for event in events}
        with pytest.raises(ResourceError, match=r"none/trace\.json: cannot be written \(No such file or directory\)"):
            profile(step, "cpu", tmp_path / "none" / "trace.json")
        assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]

    def test_rows_of_a_gpu(self) -> None:
        """6 recorded steps: kernels took 36 ms, of which operators launched 24 and a graph the rest."""

        def event(key: str, cpu_us: float, device_us: float, count: int = 6, kernel: bool = False) -> Any:
            kind = DeviceType.CUDA if kernel else DeviceType.CPU
            times = {"self_cpu_time_total": cpu_us, "self_device_time_total": device_us}
            return SimpleNamespace(key=key, count=count, device_type=kind, is_user_annotation=False, **times)

        launched = [event("aten::mm", 1000, 18_000, count=12), event("aten::sum", 2000, 6_000)]
        launched += [event("ProfilerStep*", 600, 36_000), event("uavlab.forward", 1200, 30_000)]
        kernels = [
            event(name, 0, us, kernel=True) for name, us in (("gemm", 18_000), ("reduce", 6_000), ("fused", 12_000))
        ]
        rows = profile_run._rows([*launched, *kernels], cuda=True)
        assert [[row["operator"], row["calls"], row["device_ms"], round(row["share"], 6)] for row in rows] == [
            ["aten::mm", 2.0, 3.0, 0.5],
            [GRAPHS, 0.0, 2.0, 0.333333],
            ["aten::sum", 1.0, 1.0, 0.166667],
            [PYTHON, 0.0, 0.0, 0.0],
        ]
