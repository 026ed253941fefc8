"""Sweeps on the command line: their table, their files and their exit codes."""

import signal
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest

import uavlab as ul
from tests.support.cli_runner import uavlab
from tests.support.sweeps import SETTINGS, result, scripted
from uavlab.cli import runs
from uavlab.sweeps import driver
from uavlab.sweeps.spec import Trial

FILE = "presets: [leader_follower]\ngrid: {lr: [0.1, 0.2]}\nseeds: 2\nepisodes: 3\n"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own that holds a file."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(FILE)


def work(folder: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    lr, seed = request["settings"]["lr"], request["seed"]
    return result(None, "diverged", reason="nan") if (lr, seed) == (0.2, 1) else result(lr + seed)


def test_a_sweep_writes_its_table_and_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, work)
    ended = uavlab("sweep", "mine.yaml", "--json")
    assert ended.code == 0
    assert "leader_follower              lr=0.1       2/2  0.600 [-5.753, 6.953]\n" in ended.out
    assert "leader_follower-2e" not in ended.err
    assert ": diverged: nan" in ended.err
    record = ended.json
    assert [row["score"] for row in record["rows"][:3]] == [0.1, 1.1, 0.2]
    assert (record["complete"], record["rows"][3]["status"]) == (False, "diverged")
    folder = Path("sweeps/mine").resolve()
    assert (record["folder"], record["page"]) == (str(folder), str(folder / "report.html"))
    files = {path.name for path in folder.iterdir()} - {".lock"}
    assert files == {"sweep.json", "trials", "table.json", "table.csv", "report.html"}


def test_a_sweep_without_a_score_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda folder, request: result(None, "failed", reason="why"))
    ended = uavlab("sweep", "mine.yaml", "--json")
    assert ended.code == 1
    assert ended.err.endswith("sweep: no trial of 4 has a score: failed, why\n")
    assert [row["status"] for row in ended.json["rows"]] == ["failed"] * 4
    with pytest.warns(UserWarning, match=r"^sweep: no trial of 4 has a score: failed, why$"):
        assert len(ul.sweep("mine.yaml", "sweeps/mine", progress=False).rows) == 4
    scripted(monkeypatch, work)
    assert uavlab("sweep", "mine.yaml", "--json").code == 0


def test_a_damaged_result_is_an_error_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    log = scripted(monkeypatch, work)
    (place, *_) = [row["trial"] for row in uavlab("sweep", "mine.yaml", "--json").json["rows"]]
    path = Path("sweeps/mine/trials", place, "trial.json").resolve()
    path.write_text(path.read_text().replace("0.1", "0.9"))
    log.clear()
    ended = uavlab("sweep", "mine.yaml", "--json")
    assert (ended.code, ended.json["error"], log) == (3, "FileError", [])
    assert ended.err.startswith(
        f"FileError: {path}: damaged or edited: it does not match its own digest; delete {path}, "
    )
    path.unlink()
    ended = uavlab("sweep", "mine.yaml", "--json")
    assert (ended.code, ended.json["rows"][0]["score"], log) == (0, 0.1, [place])


def test_combinations_that_do_not_fit_are_refused_before_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    log = scripted(monkeypatch, work)
    for grid, words in (
        ("{updates: [null], minutes: [null]}", "(with updates=None, minutes=None)"),
        ("{capacity: [8, 64], batch: [4, 16]}", "batch 16 > capacity 8"),
        ("{curriculum: [{a: 1}]}", "curriculum: "),
    ):
        Path("bad.yaml").write_text(f"presets: [leader_follower]\nsettings: {{lr: 0.1}}\ngrid: {grid}\n")
        ended = uavlab("sweep", "bad.yaml", "--json")
        assert (ended.code, ended.json["error"], log) == (2, "ConfigError", [])
        assert words in ended.err
        assert "with seed" not in ended.err
        assert not Path("sweeps/bad").exists()


def test_a_search_with_a_value_that_never_fits_is_refused_before_the_first_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = scripted(monkeypatch, work)
    for settings, capacity, code in (
        ("{curriculum: {a: 1}}", "", 2),
        ("{capacity: 4096}", "", 2),
        ("{}", "capacity: {values: [4096, 10000]}, ", 0),  # some proposals will be refused
    ):
        search = f"{{trials: 4, ranges: {{{capacity}batch: {{values: [8, 5000]}}, lr: {{values: [0.1]}}}}}}"
        Path("s.yaml").write_text(f"presets: [leader_follower]\nsettings: {settings}\nsearch: {search}\n")
        ended = uavlab("sweep", "s.yaml", "--json")
        assert (ended.code, bool(log)) == (code, code == 0)


def test_a_signal_ends_it_with_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(folder: Path, request: dict[str, Any]) -> dict[str, Any] | None:
        if request["settings"]["lr"] == 0.1:
            return work(folder, request)
        if not sent:
            sent.append(1)
            signal.pthread_kill(get_ident(), signal.SIGTERM)  # to a thread other than the main one, as may happen
        return None

    sent: list[int] = []
    monkeypatch.setattr(driver, "MOST_KILLS", 10**9)  # the signal may take a moment
    scripted(monkeypatch, stopped, workers=1)
    ended = uavlab("sweep", "mine.yaml", "--out", "s", "--json")
    assert ended.code == 128 + signal.SIGTERM
    states = [row["status"] for row in ended.json["rows"]]
    assert states == ["complete", "complete", "interrupted", "interrupted"]
    scripted(monkeypatch, work)
    assert uavlab("sweep", "mine.yaml", "--out", "s", "--json").json["rows"][2]["status"] == "complete"


def test_the_process_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Trial("leader_follower", SETTINGS, 1).request(3)
    watched: list[object] = []
    monkeypatch.setattr(driver, "watch_input", watched.append)
    ended = uavlab("sweep-trial", "trials/t", request, "--json")
    assert (ended.code, ended.out.splitlines()[0]) == (0, "trials/t: complete")
    assert ended.json == driver.read_result(Path("trials/t"), 3)
    assert len(watched) == 1
    monkeypatch.setattr(driver, "watch_input", lambda stop: stop())
    ended = uavlab("sweep-trial", "trials/u", request, "--json")
    assert (ended.code, ended.json) == (0, {"status": "interrupted"})
    assert runs.trial.help
