"""The other commands, the errors common to all, and signals, which leave a run that goes on."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.typed import SETTINGS, Ended, uavlab
from uavlab import __version__, cli
from uavlab.app import bench, doctor
from uavlab.core.errors import FileError
from uavlab.lab import notebook, report
from uavlab.runtime import checkpoint

TOUR = Path(__file__).parents[1] / "notebooks" / "00_tour.ipynb"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


class TestCommands:
    def test_presets(self) -> None:
        ended = uavlab("presets", "--json")
        assert ended.code == 0
        assert {"leader_follower", "leader_follower_quick", "leader_follower_published"} == set(ended.told)
        assert ended.out.count("\n") == 4

    def test_bench(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def suite(rounds: int, device: str) -> dict[str, Any]:
            return {"suite": "env", "rounds": rounds, "rows": [{"agents": 5, "device": device}]}

        monkeypatch.setitem(bench.SUITES, "env", suite)
        ended = uavlab("bench", "env", "--rounds", "3", "--out", "env.json", "--json")
        assert ended.code == 0
        assert json.loads((tmp_path / "env.json").read_text()) == ended.told
        assert ended.told["command"] == "uavlab bench env --rounds 3 --out env.json --json"
        assert ended.told["rows"] == [{"agents": 5, "device": "auto"}]
        for wrong in (["all"], ["env", "--rounds", "2"], ["env", "--device", "tpu"]):
            assert uavlab("bench", *wrong).code == 2

    def test_doctor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "SIDE", dict.fromkeys(doctor.SIDE, 8))
        ended = uavlab("doctor", "--json")
        assert ended.code == 0
        assert all({"what", "value", "usable", "advice"} == set(row) for row in ended.told["rows"])
        assert len(ended.out.splitlines()) == len(ended.told["rows"]) + 1

    def test_lab(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        started: list[Any] = []
        monkeypatch.setattr(os, "execv", lambda *given: started.append(given))
        assert uavlab("lab").code == 0
        assert started == [(sys.executable, notebook.lab_command(tmp_path))]

    @pytest.mark.parametrize(("code", "reason"), [(0, ""), (1, "cell 3 failed"), (124, "too slow"), (138, "dead")])
    def test_notebook(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, reason: str) -> None:
        given: list[Any] = []

        def run(source: Path, values: dict[str, Any], out: Path, timeout: int, progress: bool) -> Any:
            given.append((source.name, values, timeout, progress))
            return notebook.NotebookRun(code, reason, out)

        monkeypatch.setattr(notebook, "run_notebook", run)
        monkeypatch.setattr(report, "report", lambda source, page: 0)
        monkeypatch.setattr(report, "closing_words", lambda source: "it flew\n")
        (tmp_path / "p.yaml").write_text("updates: 7\nseed: 4\n")
        ended = uavlab("notebook", TOUR, "-p", "seed", "5", "-f", "p.yaml", "--timeout", "60", "--json")
        assert given == [("00_tour.ipynb", {"updates": 7, "seed": 5}, 60, False)]
        out = "runs/00_tour.ipynb"
        told = {"exit_code": code, "reason": reason, "notebook": out, "html": "runs/00_tour.html"}
        assert (ended.code, ended.told) == (code, told)
        assert ended.out.startswith(f"it flew\nexecuted notebook: {out}\n")
        assert ended.err.strip() == reason

    @pytest.mark.parametrize(
        ("name", "given", "told"),
        [("no_such", [], "no_such"), (TOUR, ["-p", "sed", "1"], "sed"), (TOUR, ["-p", "seed", "x"], "seed")],
    )
    def test_a_notebook_is_checked_before_a_kernel_starts(
        self, tmp_path: Path, name: str | Path, given: list[str], told: str
    ) -> None:
        ended = uavlab("notebook", name, *given)
        assert ended.code == 2
        assert told in ended.err
        assert os.listdir(tmp_path) == []

    def test_help_and_version(self) -> None:
        assert uavlab("--version").out.endswith(f", version {__version__}\n")
        shown = uavlab("-h")
        assert shown.code == 0
        assert all(name in shown.out for name in cli.cli.commands)
        for name, command in cli.cli.commands.items():
            assert uavlab(name, "--help").code == 0
            assert uavlab(name, "--no-such-option").code == 2
            assert command.help, name

    def test_every_command_can_answer_in_json(self) -> None:
        for name, command in cli.cli.commands.items():
            options = {option for parameter in command.params for option in parameter.opts}
            assert ("--json" in options) is (name != "lab"), name  # `lab` becomes another program

    def test_a_command_that_is_none(self) -> None:
        ended = uavlab("trian")
        assert (ended.code, "Traceback" in ended.err) == (2, False)

    def test_each_error_has_its_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for error, code in ((FileError("f"), 3), (OSError(28, "full"), 5), (KeyboardInterrupt(), 130)):

            def fail(*given: Any, error: BaseException = error, **named: Any) -> NoReturn:
                raise error

            monkeypatch.setattr(cli, "cli", fail)
            assert uavlab().code == code


class TestSignals:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_signal_leaves_a_run_that_goes_on(self, tmp_path: Path, number: signal.Signals, code: int) -> None:
        command = [sys.executable, "-m", "uavlab", "train", "leader_follower", *SETTINGS, "--set", "updates=1000000"]
        process = subprocess.Popen(
            [*command, "--set", "evaluate_every=1000000", "--out", "run", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for _ in itertools.count():
                if (tmp_path / "run" / "metrics.jsonl").exists():
                    break
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            process.send_signal(number)
            ended = Ended(0, *process.communicate(timeout=60))
        finally:
            process.kill()
        assert process.returncode == code
        assert (ended.told["status"], ended.told["score"]) == ("interrupted", [None])
        reached = ended.told["updates"]
        assert checkpoint.newest(tmp_path / "run" / "checkpoints").step == reached
        assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
        assert uavlab("evaluate", "run", "--episodes", "2").code == 0
        resumed = uavlab("resume", "run", "--updates", str(reached + 3), "--json")
        assert (resumed.code, resumed.told["status"], resumed.told["updates"]) == (0, "complete", reached + 3)
