"""The command line in processes of its own: signals, odd machines, and an environment in one file."""

import ast
import itertools
import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli_runner import SETTINGS, Result, uavlab
from uavlab.experiment.signals import ENDING
from uavlab.storage import checkpoint


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
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
        ended = Result(0, *process.communicate(timeout=60))
    finally:
        process.kill()
    assert process.returncode == code
    assert (ended.json["status"], ended.json["highest_scores_in_training"]) == ("interrupted", [None])
    reached = ended.json["updates"]
    assert checkpoint.newest(tmp_path / "run" / "checkpoints").step == reached
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
    assert uavlab("evaluate", "run", "--episodes", "2").code == 0
    resumed = uavlab("resume", "run", "--updates", str(reached + 3), "--json")
    assert (resumed.code, resumed.json["status"], resumed.json["updates"]) == (0, "complete", reached + 3)


def test_environment_in_one_file(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "environment.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]  # others are fragments
    file = tmp_path / "chase.py"
    file.write_text(code, encoding="utf-8")
    run = tmp_path / "run"
    small = ["--set", "hidden=8", "--set", "worlds=4", "--set", "learning_starts=32", "--set", "evaluate_episodes=4"]
    for command, text in (
        (["check", "chase"], "keeps the contract of an environment"),
        (["train", "chase", "--updates", "20", "--out", str(run), *small], "complete: 20 updates"),
        (["evaluate", str(run), "--episodes", "4"], "caught"),
        (["fly", str(run), "--out", str(tmp_path / "chase.html")], "chase.html"),
    ):
        done = subprocess.run([sys.executable, str(file), *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert text in done.stdout
    file.write_text(code.replace("agents=2", "agents=3").replace("(0, 0)", "(0, 0, 0)"), encoding="utf-8")
    broken = subprocess.run([sys.executable, str(file), "check", "chase"], capture_output=True, text=True, timeout=120)
    assert (broken.returncode, broken.stderr.count("\n")) == (2, 1), broken.stderr
    assert broken.stderr.startswith("ConfigError: Chase.")


def test_libraries_of_formats_are_imported_late() -> None:
    look = "import sys, uavlab.telemetry.logs.draft; print({'pyulog', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_checking_parameters_does_not_import_the_runner() -> None:
    code = (
        "import sys, uavlab_lab.headless.parameters as _; "
        "print({'papermill', 'nbformat', 'ruamel', 'torch'} & set(sys.modules))"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(got.replace("set()", "()")) == ()


@pytest.mark.parametrize("number", ENDING)
def test_where_there_is_nothing_to_finish_a_signal_ends_the_process(number: signal.Signals) -> None:
    code = "import os\nfrom uavlab.experiment.signals import exit_immediately\nwith exit_immediately():\n"
    code += f"    os.kill(os.getpid(), {int(number)})"
    swallowed = "\n    try: [None for _ in range(10**6)]\n    except KeyboardInterrupt: pass\nprint('went on')"
    done = subprocess.run([sys.executable, "-c", code + swallowed], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"\nended by {number.name}\n")


def cpu_seconds(*command: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a Python process and return its processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


def test_the_time_of_an_import_and_of_a_refusal(proof: Callable[[str, str], None]) -> None:
    """The figures are recorded; what must not be loaded is asserted in ``tests/unit/experiment/test_names.py``."""
    _, imported = cpu_seconds("-X", "importtime", "-c", "import uavlab")
    spent, refused = cpu_seconds("-m", "uavlab", "train", "leader_folower_quick")
    assert (refused.returncode, "did you mean 'leader_follower_quick'" in refused.stderr) == (2, True)
    microseconds = int(imported.stderr.splitlines()[-1].split("|")[1])
    proof("import uavlab", f"{microseconds / 1000:.1f} ms, without torch")
    proof("a mistyped preset is refused", f"after {spent:.2f} s of processor time, without torch")
