"""A case that raises, hangs, falls back or ends its process is one row of the record, and the rest goes on."""

import json
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import rank_runs
from tools import gpu_page
from tools.gpu_check import __main__ as tool
from tools.gpu_check import groups, worker
from tools.gpu_check.measured import claims_in_order, write
from tools.gpu_check.registry import Group
from tools.gpu_check.relations import contradictions
from tools.gpu_check.worker import Case, NotTried, try_case
from uavlab.core.errors import MissingPackageError
from uavlab.runtime.runtime import Runtime
from uavlab.storage.machine import describe
from uavlab_lab.claims.report import slug

CASES = """
    import json, os, sys, time
    from pathlib import Path
    from tools.gpu_check.worker import Case, run_cases

    def broken():
        raise ValueError("first line\\nsecond line")

    cases = [
        Case("fine", lambda: "3 rows"),
        Case("broken", broken),
        Case("hangs", lambda: time.sleep(60), seconds=0.3),
        Case("slow", lambda: time.sleep(60), seconds=0.3, slow=True),
        Case("fell", lambda: ("4 rows", {"graph": "no CUDA device"})),
        Case("dies", lambda: os._exit(7)),
        Case("last", lambda: ""),
    ]
    name, *_, events, skip = sys.argv[1:]
    print("a line of", name, flush=True)
    run_cases(cases, Path(events), json.loads(skip))
"""


def run(tmp_path: Path, script: str, seconds: float = 20, known: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Run a script as the process of a group."""
    file = tmp_path / "cases.py"
    file.write_text(textwrap.dedent(script))
    return tool.run_group("group", ["cpu"], seconds, [sys.executable, str(file)], lambda row: None, known)


def test_each_end_of_a_case_is_a_row(tmp_path: Path) -> None:
    rows = run(tmp_path, CASES)
    assert [(row["name"], row["status"], row["figure"]) for row in rows] == [
        ("fine", "ok", "3 rows"),
        ("broken", "failed", ""),
        ("hangs", "failed", ""),
        ("slow", "not tried", ""),
        ("fell", "fell back", "4 rows"),
        ("dies", "failed", ""),
        ("last", "ok", ""),
    ]
    messages = {row["name"]: row["message"] for row in rows}
    assert messages["broken"] == "ValueError: first line"
    assert messages["hangs"] == "no end after 0 s: a line of group"
    assert messages["fell"] == "graph: no CUDA device"
    assert messages["dies"] == "the process ended with 7: a line of group"
    assert all(row["seconds"] >= 0 for row in rows)


def test_the_time_of_a_group_ends_it(tmp_path: Path) -> None:
    rows = run(tmp_path, CASES.replace("seconds=0.3", "seconds=50"), 4)
    assert [row["status"] for row in rows] == ["ok", "failed", *["not tried"] * 5]
    assert rows[2]["message"].startswith("cut off with its group after ")
    assert rows[3]["message"] == "no time left, or too many processes died"


def test_a_process_without_cases_is_a_failure_of_its_group(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "raise SystemExit('no torch here')")
    assert (row["name"], row["status"], row["message"]) == (
        "group",
        "failed",
        "the process ended with 1: no torch here",
    )


def test_an_event_that_is_read_half_written_is_read_again(tmp_path: Path) -> None:
    script = """
        import json, sys, time
        row = {"name": "one", "status": "ok", "seconds": 0.0, "figure": "", "message": ""}
        events = [{"cases": ["one"]}, {"begin": "one", "seconds": 9, "slow": False}, {"end": row}]
        with open(sys.argv[3], "a") as file:
            for event in events:
                line = json.dumps(event) + "\\n"
                for part in (line[:7], line[7:]):
                    file.write(part)
                    file.flush()
                    time.sleep(0.3)
    """
    (row,) = run(tmp_path, script)
    assert (row["name"], row["status"]) == ("one", "ok")


def test_what_a_case_started_ends_with_it(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    script = f"""
        import json, subprocess, sys, time
        from pathlib import Path
        from tools.gpu_check.worker import Case, run_cases

        def call():
            child = subprocess.Popen(["sleep", "60"])
            Path({str(started)!r}).write_text(str(child.pid))
            time.sleep(60)

        run_cases([Case("starts", call, seconds=3)], Path(sys.argv[3]), json.loads(sys.argv[4]))
    """
    (row,) = run(tmp_path, script)
    assert row["status"] == "failed"
    assert ended(int(started.read_text()), within_s=30)  # a signal takes effect a moment after it was sent


def ended(pid: int, within_s: float) -> bool:
    """Return whether a process ends within a time, which is shorter than its own life."""
    for _ in range(int(within_s / 0.05)):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotTried("no team flies"), "not tried"),
        (MissingPackageError("fly: needs plotly"), "not tried"),
        (ModuleNotFoundError("No module named 'cv2'", name="cv2"), "not tried"),
        (ModuleNotFoundError("No module named 'uavlab.x'", name="uavlab.x"), "failed"),
        (ModuleNotFoundError("No module named 'uavlab_lab.x'", name="uavlab_lab.x"), "failed"),
        (ImportError("cannot import name 'x'"), "failed"),
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
    def call() -> str:
        return Runtime().toggles.absent

    assert try_case(Case("name", call))["message"].startswith("AttributeError: absent @ runtime/toggles.py:")


def test_a_group_that_cannot_be_imported_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cases(device: str, folder: Path) -> Any:
        raise ModuleNotFoundError("No module named 'pydantic'", name="pydantic")

    monkeypatch.setitem(groups.GROUPS, "runs", Group(cases, 1, "", 3, timed=False, anew=False))
    worker.main(["runs", "cpu", str(tmp_path), "0/1", str(tmp_path / "events"), "[]"])
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [next(iter(event)) for event in events] == ["cases", "begin", "end"]
    assert events[-1]["end"]["status"] == "not tried"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces the description of the machine, and the groups by one with these rows."""

    def replace(rows: list[dict[str, Any]], reason: str = "") -> None:
        facts = {
            "device": "NVIDIA H200",
            "cpu": "x",
            "torch": "2.11.0",
            "python": "3.12.3",
            "commit": "c" * 40,
            "code": "c0de",
        }
        monkeypatch.setattr(tool, "machine", lambda device: ({**facts, "dirty": False}, "nvidia-h200", 1, reason))

        def run_group(name: str, *_: Any, say: Callable, known: Sequence[str]) -> list[dict[str, Any]]:
            tried = [{**row, "figure": f"{name}; sizes: 2 agents"} for row in rows if row["name"] not in known]
            for row in tried:
                say(row)
            return tried

        monkeypatch.setattr(tool, "run_group", run_group)

    return replace


def outcome(status: str) -> dict[str, Any]:
    return {"name": "a, b", "status": status, "seconds": 1.0, "figure": "", "message": "why | <b>"}


def test_the_record_is_named_by_the_device_and_parts_are_made_again(machine: Callable, tmp_path: Path) -> None:
    machine([outcome("ok"), outcome("fell back")])
    assert tool.main(["--out", str(tmp_path)]) == 0
    path = tmp_path / "gpu_check_nvidia-h200.json"
    first = json.loads(path.read_text())
    assert (first["dry_run"], list(first["groups"]), first["machine"]["torch"]) == (False, list(tool.GROUPS), "2.11.0")
    machine([outcome("failed")])
    assert tool.main(["--out", str(tmp_path), "--only", "waits"]) == 1
    second = json.loads(path.read_text())
    assert [case["status"] for case in second["groups"]["waits"]["cases"]] == ["failed"]
    assert second["groups"]["runs"] == first["groups"]["runs"]
    assert second["groups"]["waits"]["commit"] == "c" * 40


def test_without_a_gpu_nothing_is_recorded(machine: Callable, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    machine([outcome("ok")], "torch.cuda.is_available() is False")
    assert tool.main(["--out", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []
    assert "no record: torch.cuda.is_available() is False" in capsys.readouterr().out


def test_the_time_is_shared_by_weight_and_what_is_left_passes_on(
    machine: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine([])
    seconds: list[float] = []
    monkeypatch.setattr(tool, "run_group", lambda name, given, limit, **_: seconds.append(limit) or [])
    assert tool.main(["--out", str(tmp_path), "--minutes", "2", "--only", "bench", "--only", "claims"]) == 0
    weights = [tool.GROUPS[name].weight for name in ("bench", "claims")]
    assert seconds == pytest.approx([120 * weights[0] / sum(weights), 120], abs=1)


THIRD = [name for name in tool.GROUPS if tool.GROUPS[name].part == 3]
UNTIMED, TIMED = ([name for name in THIRD if tool.GROUPS[name].timed is which] for which in (False, True))


def test_the_parts_and_their_order() -> None:
    parts = {part: [name for name, each in tool.GROUPS.items() if each.part == part] for part in (1, 2, 3)}
    assert parts[1] == ["compile_claims", "ladder", "claims"]
    assert parts[2] == ["compile_runs", "env_and_replay", "ppo", "team"]
    assert [tool.plan(parts[part], 15)[0] for part in (1, 2)] == [{"compile_claims": 15}, {"compile_runs": 15}]
    assert tool.MINUTES <= 8.5  # of nine
    assert [name for name, each in tool.GROUPS.items() if each.anew] == ["compile_claims", "compile_runs"]


@pytest.mark.parametrize("jobs", [9, 10, 15, 31])
def test_groups_without_times_run_first_and_side_by_side(jobs: int) -> None:
    assert TIMED == ["bench", "waits"]
    first, *rest = tool.plan(THIRD, jobs)
    assert list(first) == UNTIMED
    assert sum(first.values()) == jobs
    assert min(first.values()) >= 1
    assert max(first.values()) == first[max(UNTIMED, key=lambda name: tool.GROUPS[name].weight)]
    assert rest == [{name: 1} for name in TIMED]


def test_few_processes_take_one_group_after_the_other() -> None:
    assert tool.plan(THIRD, 2) == [*({name: 2} for name in UNTIMED), *({name: 1} for name in TIMED)]
    assert tool.plan(["bench", "runs"], 1) == [{"runs": 1}, {"bench": 1}]
    assert tool.plan(["bench"], 15) == [{"bench": 1}]


def test_what_there_was_no_time_for_is_as_it_was(machine: Callable, tmp_path: Path) -> None:
    def repeat(*rows: dict[str, Any]) -> list[str]:
        machine(list(rows))
        tool.main(["--out", str(tmp_path), "--only", "waits"])
        record = json.loads((tmp_path / "gpu_check_nvidia-h200.json").read_text())
        return [case["status"] for case in record["groups"]["waits"]["cases"]]

    one, two = {**outcome("ok"), "name": "one"}, {**outcome("not tried"), "name": "two"}
    assert repeat(one, two) == ["ok", "not tried"]
    assert repeat(two | {"name": "one"}, one | {"name": "two"}) == ["ok", "ok"]
    assert repeat(one | {"status": "failed"}, two) == ["failed", "ok"]


@pytest.mark.parametrize("code", ["other", None])
def test_rows_of_other_code_do_not_stay(code: str | None, tmp_path: Path) -> None:
    path, one = tmp_path / "record.json", {**outcome("ok"), "name": "one"}
    old = {"waits": {"code": code, "torch": "2", "cases": [one]}}
    path.write_text(json.dumps({"groups": old}))
    record = tool.Record(path, {"machine": {"code": "c" if code else None, "torch": "2"}}, keep=True)
    record.begin("waits")
    assert record.known("waits") == []
    record.add("waits", {**one, "name": "waits", "status": "not tried"})  # it stands for all of a group
    record.add("waits", {**one, "name": "two"})
    assert [each["name"] for each in json.loads(path.read_text())["groups"]["waits"]["cases"]] == ["two"]


def test_each_row_is_in_the_record_at_once_and_a_second_call_goes_on(
    machine: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call is cut off in its second case; the second tries what is missing, and compiles anew."""
    rows, tried = [{**outcome("ok"), "name": name} for name in ("one", "two", "three")], list[tuple[str, str]]()
    machine([])

    def run_group(name: str, *_: Any, say: Callable, known: Sequence[str]) -> list[dict[str, Any]]:
        for row in rows:
            if row["name"] not in known:
                if (row["name"], name, len(tried)) == ("two", "ladder", 4):
                    raise KeyboardInterrupt
                tried.append((name, row["name"]))
                say(row)
        return []

    monkeypatch.setattr(tool, "run_group", run_group)
    with pytest.raises(KeyboardInterrupt):
        tool.main(["1", "--out", str(tmp_path)])
    path = tmp_path / "gpu_check_nvidia-h200.json"
    names = {name: [each["name"] for each in group["cases"]] for name, group in recorded(path).items()}
    assert names == {"compile_claims": ["one", "two", "three"], "ladder": ["one"]}
    tried.clear()
    tool.main(["1", "--out", str(tmp_path)])
    assert [name for group, name in tried if group == "ladder"] == ["two", "three"]
    assert [name for group, name in tried if group == "compile_claims"] == ["one", "two", "three"]
    assert {group for group, _ in tried} == {"compile_claims", "ladder", "claims"}  # of part 1 alone
    assert [each["name"] for each in recorded(path)["ladder"]["cases"]] == ["one", "two", "three"]


def recorded(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["groups"]


def test_cases_that_are_known_are_left_out_also_after_a_crash(tmp_path: Path) -> None:
    rows = run(tmp_path, CASES, known=["broken", "hangs", "slow"])
    assert [(row["name"], row["status"]) for row in rows] == [
        *(("fine", "ok"), ("fell", "fell back"), ("dies", "failed"), ("last", "ok")),
    ]


def test_an_interruption_ends_every_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "cases.py"
    script.write_text(textwrap.dedent(CASES.replace("seconds=0.3", "seconds=50")))
    monkeypatch.setattr(tool, "WORKER", (sys.executable, str(script)))
    monkeypatch.setattr(tool, "run_group", partial(tool.run_group, command=tool.WORKER))

    def interrupt(name: str, row: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "print_row", interrupt)
    known: dict[str, list[str]] = {"runs": [], "tests": []}
    with pytest.raises(KeyboardInterrupt):
        list(tool.run_step({"runs": 1, "tests": 1}, ["cpu", str(tmp_path)], 40, known, lambda name, row: None))
    assert tool.STOPPED.is_set()
    tool.STOPPED.clear()


def test_parts_of_a_group_are_its_cases_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cases(device: str, folder: Path) -> list[Case]:
        return [Case(str(number), lambda number=number: f"case {number}") for number in range(7)]

    def in_this_process(name: str, given: list[str], *_: Any, **__: Any) -> list[dict[str, Any]]:
        events = tmp_path / given[-1].replace("/", "of")
        events.touch()
        worker.main([name, *given, str(events), "[]"])
        return [json.loads(line)["end"] for line in events.read_text().splitlines() if '"end"' in line]

    monkeypatch.setitem(groups.GROUPS, "runs", Group(cases, 1, "", 3, timed=False, anew=False))
    monkeypatch.setattr(tool, "run_group", in_this_process)
    rows = tool.run_parts("runs", ["cpu", str(tmp_path)], 9, 3, print)
    assert [row["figure"] for row in rows] == [f"case {number}" for number in range(7)]


def test_a_dry_run_of_one_group_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; tests/proofs has one with processes of its own."""

    def in_this_process(name: str, given: list[str], *_: Any, say: Callable, **__: Any) -> list[dict[str, Any]]:
        cases = groups.GROUPS[name].cases(given[0], Path(given[1]))
        rows = [try_case(case) for case in cases if not case.name.startswith("import")]
        for row in rows:
            say(row)
        return rows

    monkeypatch.setattr(tool, "run_group", in_this_process)
    monkeypatch.setattr(tool, "machine", lambda device: (*groups.machine(device), 1, ""))
    assert tool.main(["--device", "cpu", "--only", "environment", "--out", str(tmp_path)]) == 0
    path = tmp_path / f"gpu_check_{slug(describe('cpu'))}.json"
    record = json.loads(path.read_text())
    assert record["dry_run"] is True
    cases = {case["name"]: case["status"] for case in record["groups"]["environment"]["cases"]}
    assert set(cases.values()) <= {"ok", "not tried"}
    assert cases["device cpu"] == "ok"
    assert any(name.startswith("package torch") for name in cases)
    assert gpu_page.read(tmp_path) == []


@pytest.mark.parametrize("name", groups.GROUPS)
def test_every_group_has_cases_of_different_names(name: str, tmp_path: Path) -> None:
    names = [case.name for case in groups.GROUPS[name].cases("cpu", tmp_path)]
    assert len(names) > 1
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("import pytest\npytestmark = pytest.mark.gpu\ndef test_a(): pass", "ok", ""),
        (
            "import pytest\n@pytest.mark.gpu\ndef test_a(): assert 1 + 1 == 3",
            "failed",
            "AssertionError: 1 of 1: test_a: ",
        ),
        ("import pytest\n@pytest.mark.gpu\n@pytest.mark.skip\ndef test_a(): pass", "not tried", "NotTried: 1 skipped"),
        (
            "import no_such_package\nfrom devices import GPU",
            "not tried",
            "NotTried: E   ModuleNotFoundError: No module named",
        ),
    ],
)
def test_a_file_of_tests_is_a_case(
    text: str, status: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tests" / "test_one.py"
    file.parent.mkdir()
    file.write_text(text)
    (tmp_path / "tests" / "test_two.py").write_text("def test_b(): assert False")
    monkeypatch.setattr(groups, "ROOT", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n    soak: x\n")
    monkeypatch.delitem(sys.modules, "test_one", raising=False)
    (case,) = groups.tests("cpu", tmp_path)
    row = try_case(case)
    assert row["name"] == "tests/test_one.py"
    assert (row["status"], row["message"][: len(message)]) == (status, message)


@pytest.fixture
def rank_cases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, dict[str, Any]]]:
    """Return a function that tries the cases of ranks; each launch ends with a code and records that are given."""

    def try_all(code: int, *records: dict[str, Any], err: str = "") -> dict[str, dict[str, Any]]:
        def train(folder: Path, settings: dict[str, Any], fault: str) -> rank_runs.Ended:
            assert settings["device"] == "cuda"
            return rank_runs.Ended(code, "", err, 0.0)

        monkeypatch.setattr(rank_runs, "train", train)
        monkeypatch.setattr(rank_runs, "record", lambda folder, rank: records[rank])
        return {case.name: try_case(case) for case in groups.GROUPS["ranks"].cases("cuda", tmp_path)}

    return try_all


def test_ranks_by_nccl_need_two_gpus(rank_cases: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    done = {"learner_digest": "a", "update": 8}
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    rows = rank_cases(0, done, done)
    assert rows["gloo, equal learners"]["figure"] == "8 updates, equal learners"
    assert rows["nccl, equal learners"]["message"] == "NotTried: needs 2 GPUs, got 1"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert rank_cases(0, done, done)["nccl, equal learners"]["status"] == "ok"


@pytest.mark.parametrize(
    ("code", "err", "other", "ok"),
    [
        (1, "Signal 9 (SIGKILL)", {"reason": "another rank ended (Connection closed)"}, ["gloo, a rank is killed"]),
        (1, "training: reward is nan", {"reason": "another rank ended (Connection closed)"}, ["gloo, a NaN"]),
        (1, "training: reward is nan", {"reason": "ValueError: no wind"}, []),
        (1, "no reason", {"reason": "another rank ended (Connection closed)"}, []),
        (0, "is nan", {"reason": "another rank ended (Connection closed)"}, []),  # torchrun ended as if nothing failed
        (0, "", {"learner_digest": "b"}, []),
        (0, "", {}, []),
    ],
)
def test_ranks_that_end_otherwise_are_failures(
    code: int, err: str, other: dict[str, Any], ok: list[str], rank_cases: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    rows = rank_cases(code, {"status": "failed", "update": 5, **other}, {"learner_digest": "a"}, err=err)
    assert [name for name, row in rows.items() if row["status"] == "ok"] == ok
    assert {row["status"] for name, row in rows.items() if name.startswith("gloo") and name not in ok} == {"failed"}


def test_without_the_package_the_machine_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uavlab_lab.claims.report", None)
    facts, name = groups.machine("cpu")
    assert (set(facts), name) == ({"device", "torch", "python"}, "unknown")


def test_a_required_package_that_is_missing_is_a_failure() -> None:
    rows = [
        try_case(Case("package", lambda extra=extra: groups.package("no-such-package", extra))) for extra in ("", "lab")
    ]
    assert [row["status"] for row in rows] == ["failed", "not tried"]
    assert rows[1]["message"] == "NotTried: not installed; the extra 'lab' brings it"


def test_the_page_is_the_records() -> None:
    text = gpu_page.PAGE.read_text(encoding="utf-8")
    assert gpu_page.block(gpu_page.read()) in text
    assert [line for line in text.splitlines() if line.startswith("| ") and line[2:5] in ("1 |", "2 |", "3 |")] != []
    assert all(f"| {group.part} | `{name}` | " in text for name, group in groups.GROUPS.items())
    readme = (gpu_page.ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/gpu.md)" in readme
    assert ("No GPU has run this code" in readme) is not bool(gpu_page.read())


def test_the_page_of_a_gpu_counts_its_cases(machine: Callable, tmp_path: Path) -> None:
    assert gpu_page.NONE in gpu_page.block(gpu_page.read(tmp_path))
    states = ("ok", "failed", "fell back", "not tried", "ok")
    machine([{**outcome(state), "name": f"a, b, {number}"} for number, state in enumerate(states)])
    tool.main(["--out", str(tmp_path), "--only", "waits"])
    text = gpu_page.block(gpu_page.read(tmp_path))
    assert gpu_page.NONE not in text
    assert "**NVIDIA H200**, torch 2.11.0, Python 3.12.3:" in text
    assert f"| waits | {groups.GROUPS['waits'].about} | 2 | 1 | 1 | 1 | c0de |" in text
    assert "| waits | a, b, 1 | failed | why \\| &lt;b> |" in text
    assert text.count("| waits | a, b, ") == 2
    assert "| a, b, 0 | 2 agents | waits |" in text  # sizes and figure of a cycle
    assert "Not tried, with the number of cases:\n\n- waits: a, b 1\n" in text
    assert "uavlab bench" not in text.replace("`uavlab bench` writes", "")
    rows = [{"setting": "plain", "ms": 1.5, "original_ms": 3.0, "fell_back": {"maps": "why"}}]
    how = {"machine": {"load": 0.5, "cores": 16, "code": "c0de"}, "rounds": 3, "sizes": {"batch": 8, "hidden": 4}}
    bench = {"suite": "env", "rows": rows, "command": "uavlab bench env", **how}
    (tmp_path / "bench_env_nvidia-h200.json").write_text(json.dumps(bench))
    (tmp_path / "bench_env.json").write_text(json.dumps(bench | {"suite": "other"}))  # of another machine
    text = gpu_page.block(gpu_page.read(tmp_path))
    head = "Suite env, 3 rounds: `uavlab bench env`, load 0.5 before, 16 cores, code c0de; sizes: batch 8, hidden 4"
    head += "; fell back: plain: maps:"
    assert f"{head}\n\n```\nsetting   ms\n  plain  1.5\n```" in text
    assert "other" not in text


RATES = ("agent_steps_per_s", "compiled_agent_steps_per_s")


def env_rows(*rates: tuple[int, int]) -> list[dict[str, Any]]:
    """Return rows of the suite env: of each number of worlds, the second does more than the first."""
    names = [(worlds, setting) for worlds in (64, 1024) for setting in ("plain", "obstacles")]
    return [
        {"agents": 5, "worlds": worlds, "setting": setting, **dict(zip(RATES, pair, strict=True))}
        for (worlds, setting), pair in zip(names, rates, strict=True)
    ]


def test_more_work_that_is_faster_contradicts() -> None:
    assert contradictions("env", env_rows((100, 300), (80, 299), (1000, 3000), (990, 2500))) == []
    assert contradictions("env", env_rows((100, 300), (104, 300), (1000, 3000), (990, 2500))) == []  # by chance
    wrong = contradictions("env", env_rows((100, 300), (80, 290), (1970, 7150), (2850, 7200)))
    assert wrong == [{"key": "agent_steps_per_s", "less": 2, "more": 3}]
    teams = [{"setting": name, "threads": 1, "agents": n, "ms": ms} for name, n, ms in (("a", 2, 9), ("b", 4, 5))]
    assert contradictions("ladder", teams) == []  # of different settings
    teams.append({"setting": "a", "threads": 1, "agents": 8, "ms": 8.0})
    assert contradictions("ladder", teams) == [{"key": "ms", "less": 0, "more": 2}]
    assert contradictions("missions", teams) == []


def test_only_the_known_record_contradicts_itself() -> None:
    records = {path.name: json.loads(path.read_text()) for path in gpu_page.RECORDS.glob("bench_*.json")}
    wrong = {name for name, each in records.items() if contradictions(each["suite"], each["rows"])}
    assert wrong == {"bench_env_nvidia-h100-80gb-hbm3.json"}
    page = gpu_page.PAGE.read_text(encoding="utf-8")
    assert page.count("**This record contradicts itself**") == 1
    assert all(
        "contradicts" in line for line in page.splitlines() if line.startswith("leader_follower       5   1,024")
    )


def test_a_record_that_is_written_says_what_contradicts_and_keeps_other_rows(tmp_path: Path) -> None:
    path = tmp_path / "bench_ladder_x.json"

    def measured(code: str, agents: int, ms: float) -> dict[str, Any]:
        rows = [{"setting": "loop", "threads": 1, "agents": agents, "ms": ms}]
        return {"suite": "ladder", "machine": {"code": code}, "rows": rows}

    assert write(path, measured("a", 8, 4.0), "agents") == "1 rows in bench_ladder_x.json"
    assert write(path, measured("a", 2, 5.0), "agents") == "2 rows in bench_ladder_x.json, 1 contradictions"
    record = json.loads(path.read_text())
    assert [row["agents"] for row in record["rows"]] == [2, 8]
    assert record["contradictions"] == [{"key": "ms", "less": 0, "more": 1}]
    write(path, measured("a", 8, 9.0), "agents")  # measured anew
    assert [row["ms"] for row in json.loads(path.read_text())["rows"]] == [5.0, 9.0]
    write(path, measured("b", 8, 9.0), "agents")  # by other code
    assert [row["agents"] for row in json.loads(path.read_text())["rows"]] == [8]


def test_the_page_has_the_sizes_of_each_cycle() -> None:
    old = gpu_page.sized({"name": "leader_follower, mappo, graph=off", "figure": "65.15 ms"})
    assert old == "3 agents, 64 worlds, 5 steps, 2 passes, 2 minibatches, hidden 256 † | 65.15 ms"
    new = gpu_page.sized({"name": "x, y, graph=off", "figure": "1 ms; waits: none; sizes: 2 agents, 8 worlds"})
    assert new == "2 agents, 8 worlds | 1 ms; waits: none"
    assert groups.sizes_of(groups.cycle_config(("leader_follower", "masac"), "cuda")) == (
        "sizes: 3 agents, 64 worlds, batch 128, hidden 256"
    )


def test_the_page_says_which_priorities_are_the_fastest() -> None:
    def page(wide: float, cumsum: float) -> list[str]:
        rows = [{"structure": "wide", "total_ms": wide}, {"structure": "cumsum", "total_ms": cumsum}]
        return gpu_page.replay_in_words({"suite": "replay", "rows": rows})

    assert page(0.3, 0.5) == []
    assert "(`cumsum`, 0.20 ms) are 4.0x as fast here as the tree that runs have (`wide`, 0.80 ms)" in page(0.8, 0.2)[0]
    assert gpu_page.replay_in_words({"suite": "env", "rows": []}) == []


def test_claims_that_a_gpu_decides_are_first_and_a_cpus_last() -> None:
    claims = claims_in_order()
    first = claims[:30]
    assert all(claim.device != "cpu" and claim.standing == "judged" and not claim.only for claim in first)
    assert {"stage-3", "amp-memory", "final-utilisation"} <= {claim.claim for claim in first}
    assert [claim.device for claim in claims[-3:]] == ["cpu"] * 3


def test_compiled_code_is_kept_for_the_calls_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert tool.variables()["TORCHINDUCTOR_CACHE_DIR"] == str(tool.ROOT / "build" / "gpu_check" / "compiled")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert tool.variables()["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"
