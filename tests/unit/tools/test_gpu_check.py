"""A case that raises, hangs, falls back or ends its process is one row of the record, and the rest goes on."""

import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import check_cases, rank_runs
from tools import gpu_page
from tools.gpu_check import __main__ as tool
from tools.gpu_check import groups
from tools.gpu_check.measured import claims_in_order, write
from tools.gpu_check.relations import contradictions
from tools.gpu_check.worker import Case, NotTried, try_case
from uavlab.core.errors import MissingPackageError
from uavlab.runtime.runtime import Runtime

FACTS = {"device": "NVIDIA H200", "cpu": "x", "torch": "2.11.0", "python": "3.12.3", "commit": "c" * 40, "code": "c0de"}
Rows = dict[str, dict[str, Any]]


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, known: tuple[str, ...] = ()) -> Rows:
    """Run the cases in processes of their own; return the rows by name, in their order."""
    monkeypatch.setattr(tool.worker, "main", check_cases.main)
    rows: list[dict[str, Any]] = []
    tool.run_group("group", [str(folder)], time.monotonic() + seconds, 1, known, rows.append)
    return {row["name"]: row for row in rows}


def test_each_end_of_a_case_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run(tmp_path, monkeypatch, 500, known=("last",))
    assert [(row["name"], row["status"], row["figure"]) for row in rows.values()] == [
        ("fine", "ok", "3 rows"),
        ("broken", "failed", ""),
        ("hangs", "failed", ""),
        ("slow", "not tried", ""),
        ("fell", "fell back", "4 rows"),
        ("dies", "failed", ""),
    ]
    assert rows["broken"]["message"] == "ValueError: first line"
    assert rows["hangs"]["message"].endswith("s: a line of group")
    assert rows["fell"]["message"] == "graph: no CUDA device"
    assert rows["dies"]["message"] == "the process ended with 7: a line of group"
    for _ in range(600):  # what a case started ends with it, a moment after the signal
        started = int((tmp_path / "pid").read_text())
        if not psutil.pid_exists(started) or psutil.Process(started).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    pytest.fail("a process outlived its case")


def test_the_time_of_a_group_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(row["name"], row["status"]) for row in run(tmp_path, monkeypatch, 0).values()] == [("group", "not tried")]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotTried("no team flies"), "not tried"),
        (MissingPackageError("fly: needs plotly"), "not tried"),
        (ModuleNotFoundError("No module named 'cv2'", name="cv2"), "not tried"),
        (ModuleNotFoundError("No module named 'uavlab_lab.x'", name="uavlab_lab.x"), "failed"),
        (RuntimeError("device-side assert"), "failed"),
        (SystemExit(1), "failed"),
    ],
)
def test_what_is_missing_is_no_failure(error: BaseException, status: str) -> None:
    def call() -> str:
        raise error

    row = try_case(Case("name", call))
    assert (row["status"], row["message"].partition(":")[0]) == (status, type(error).__name__)


def test_a_failure_names_the_line_of_the_package() -> None:
    row = try_case(Case("name", lambda: Runtime().toggles.absent))
    assert row["message"].startswith("AttributeError: absent @ runtime/toggles.py:")


def outcome(name: str, status: str, **more: str) -> dict[str, Any]:
    return {"name": name, "status": status, "seconds": 1.0, "figure": "", "message": "why | <b>", **more}


def test_a_record_keeps_rows_of_the_same_code(tmp_path: Path) -> None:
    def add(code: str | None, *rows: dict[str, Any]) -> tuple[list[str], list[str]]:
        record = tool.Record(tmp_path / "record.json", {"machine": {**FACTS, "code": code}}, keep=True)
        known = record.begin("waits")
        for row in rows:
            record.add("waits", row)
        stored = json.loads((tmp_path / "record.json").read_text())["groups"]["waits"]
        return known, [f"{row['name']} {row['status']}" for row in stored["cases"]]

    assert add("a", outcome("one", "ok"), outcome("two", "not tried")) == ([], ["one ok", "two not tried"])
    assert add("a", outcome("one", "not tried"), outcome("two", "ok")) == (["one"], ["one ok", "two ok"])
    assert add("a", outcome("one", "failed")) == (["one", "two"], ["one failed", "two ok"])
    assert add("b", outcome("waits", "not tried"), outcome("three", "ok")) == ([], ["three ok"])  # of all of a group
    assert add(None, outcome("one", "ok")) == ([], ["one ok"])


def test_time_is_shared_by_weight_and_timed_groups_are_last_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, float, int]] = []
    monkeypatch.setattr(
        tool, "run_group", lambda name, given, end, jobs, *_: ran.append((name, end - time.monotonic(), jobs))
    )
    record = tool.Record(tmp_path / "record.json", {"machine": FACTS}, keep=False)
    tool.run_part(["bench", "runs"], [], time.monotonic() + 120, 7, record, resume=True)
    first, second = (tool.GROUPS[name].weight for name in ("runs", "bench"))
    assert [(name, jobs) for name, _, jobs in ran] == [("runs", 7), ("bench", 1)]
    assert [seconds for _, seconds, _ in ran] == pytest.approx([120 * first / (first + second), 120], abs=2)


def test_every_group_has_cases_of_different_names_and_a_line_of_the_page(tmp_path: Path) -> None:
    page = gpu_page.PAGE.read_text(encoding="utf-8")
    for name, group in groups.GROUPS.items():
        assert f"| {group.part} | `{name}` | " in page
        names = [case.name for case in group.cases("cpu", tmp_path)]
        assert len(names) == len(set(names)) > 1, name
    order = {part: [name for name, each in tool.GROUPS.items() if each.part == part] for part in (1, 2)}
    assert order == {1: ["compile_claims", "ladder", "claims"], 2: ["compile_runs", "env_and_replay", "ppo", "team"]}
    first = claims_in_order()[:30]
    assert all(claim.device != "cpu" and claim.standing == "judged" and not claim.only for claim in first)


@pytest.mark.parametrize(
    ("code", "err", "other", "ok"),
    [
        (0, "", {"learner_digest": "a"}, "gloo, equal learners"),
        (1, "Signal 9 (SIGKILL)", {"reason": "another rank ended (Connection closed)"}, "gloo, a rank is killed"),
        (1, "training: reward is nan", {"reason": "another rank ended (Connection closed)"}, "gloo, a NaN"),
        (1, "training: reward is nan", {"reason": "ValueError: no wind"}, ""),
        (0, "is nan", {"reason": "another rank ended (Connection closed)"}, ""),  # as if nothing failed
        (0, "", {"learner_digest": "b"}, ""),
    ],
)
def test_ranks_that_end_otherwise_are_failures(
    code: int, err: str, other: dict[str, Any], ok: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records = [{"status": "failed", "update": 5, **other}, {"learner_digest": "a"}]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(rank_runs, "train", lambda *_, **__: rank_runs.Ended(code, "", err, 0.0))
    monkeypatch.setattr(rank_runs, "record", lambda folder, rank: records[rank])
    rows = {case.name: try_case(case) for case in groups.ranks("cpu", tmp_path) if case.name.startswith("gloo")}
    assert [name for name, row in rows.items() if row["status"] == "ok"] == [ok] * bool(ok)
    assert {row["status"] for row in rows.values()} <= {"ok", "failed"}


def test_the_page_is_the_records_and_counts_cases(tmp_path: Path) -> None:
    assert gpu_page.block(gpu_page.read()) in gpu_page.PAGE.read_text(encoding="utf-8")
    assert "**No GPU has run this code" in gpu_page.block(gpu_page.read(tmp_path))
    states = ("ok", "failed", "fell back", "not tried", "ok")
    cases = [outcome(f"a, b, {n}", state, figure="1 ms; sizes: 2 agents" * (n == 0)) for n, state in enumerate(states)]
    group = {"about": "about", "code": "c0de", "cases": cases}
    check = {"dry_run": False, "machine": FACTS, "groups": {"waits": group}}
    (tmp_path / "gpu_check_x.json").write_text(json.dumps(check))
    (tmp_path / "gpu_check_dry.json").write_text(json.dumps({**check, "dry_run": True}))
    rows = [{"setting": "plain", "ms": 1.5, "original_ms": 3.0, "fell_back": {"maps": "why"}}]
    how = {"machine": {"load": 0.5, "cores": 16, "code": "c0de"}, "rounds": 3, "sizes": {"batch": 8, "hidden": 4}}
    bench = {"suite": "env", "rows": rows, "command": "uavlab bench env", **how}
    (tmp_path / "bench_env_x.json").write_text(json.dumps(bench))
    text = gpu_page.block(gpu_page.read(tmp_path))
    assert text.count("**NVIDIA H200**, torch 2.11.0, Python 3.12.3:") == 1
    assert "| waits | about | 2 | 1 | 1 | 1 | c0de |" in text
    assert "| waits | a, b, 1 | failed | why \\| &lt;b> |" in text
    assert "| a, b, 0 | 2 agents | 1 ms |" in text  # sizes and figure of a cycle
    assert "Not tried, with the number of cases:\n\n- waits: a, b 1\n" in text
    head = "Suite env, 3 rounds: `uavlab bench env`, load 0.5 before, 16 cores, code c0de; sizes: batch 8, hidden 4"
    assert f"{head}; fell back: plain: maps:\n\n```\nsetting   ms\n  plain  1.5\n```" in text


def test_more_work_that_is_faster_contradicts(tmp_path: Path) -> None:
    names = ("agent_steps_per_s", "compiled_agent_steps_per_s")
    rows = [
        {"agents": 5, "worlds": worlds, "setting": setting, names[0]: plain, names[1]: compiled}
        for worlds, setting, plain, compiled in (
            *((64, "plain", 100, 300), (64, "obstacles", 104, 299)),  # by chance
            *((1024, "plain", 1970, 7150), (1024, "obstacles", 2850, 7200)),
        )
    ]
    assert contradictions("env", rows) == [{"key": names[0], "less": 2, "more": 3}]
    assert contradictions("missions", rows) == []

    def measured(code: str, agents: int, ms: float) -> list[list[Any]]:
        row = {"setting": "a", "threads": 1, "agents": agents, "ms": ms}
        own = {"suite": "ladder", "machine": {"code": code}, "rows": [row]}
        write(tmp_path / "bench.json", own, "agents")
        record = json.loads((tmp_path / "bench.json").read_text())
        return [[row["agents"] for row in record["rows"]], record["contradictions"]]

    assert measured("a", 8, 4.0) == [[8], []]
    assert measured("a", 2, 5.0) == [[2, 8], [{"key": "ms", "less": 0, "more": 1}]]
    assert measured("b", 8, 9.0) == [[8], []]  # by other code


def test_what_the_page_computes() -> None:
    cases = [
        {"name": "a, b, graph=off", "figure": "12.00 ms, 500 kernels, device busy 3.00 ms; waits: none"},
        {"name": "a, b, graph=cycle", "figure": "1.50 ms, 500 kernels, device busy 1.20 ms; waits: none"},
    ]
    rows = [{"setting": name, "over_loop": 2.5, "agents": 4} for name in ("loop", "batched")]
    assert gpu_page.summary(
        {"benches": [{"suite": "update", "rows": rows}], "groups": {"waits": {"cases": cases}}}
    ) == [
        "a batched update is 2.50x as fast as the loop, with 4 agents, eager",
        "a, b: graph=cycle is 8.00x as fast, and the device is busy in 25% of the time without and 80% with it",
    ]
    old = gpu_page.sized({"name": "leader_follower, masac, graph=off", "figure": "65.15 ms"})
    assert old == ("3 agents, 64 worlds, batch 128, hidden 256 †", "65.15 ms")
