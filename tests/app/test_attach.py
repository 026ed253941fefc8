"""Commands for a running process can be pasted as they are, whatever its arguments, and say what is installed."""

import json
import os
import pstats
import shlex
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from uavlab.app import attach
from uavlab.app.attach import CAUTION, Command, commands
from uavlab.core.errors import ConfigError

HOSTILE = ["a b", "it's", '"', "$(touch stolen)", "; touch stolen", "`touch stolen`", "*", "&& false", "-m", "é"]


def lines(monkeypatch: pytest.MonkeyPatch, argv: list[str], folder: str = "/tmp") -> list[str]:
    monkeypatch.setattr(attach, "_process", lambda pid: (argv, folder))
    return [command.line for command in commands(7)]


def test_the_tools_are_all_there() -> None:
    pid = os.getpid()
    found = "\n".join(map(str, commands(pid)))
    assert all(
        line in found
        for line in (
            "watch -n 1 nvidia-smi\n",
            "nvidia-smi dmon -s",
            "nvidia-smi pmon -s um -d 1 -c 10\n",
            "nvidia-smi --query-gpu=timestamp,utilization.gpu,",
            "nvtop\n",
            f"htop -p {pid}\n",
            f"py-spy top --pid {pid}\n",
            f"py-spy record --pid {pid} ",
            f"py-spy dump --pid {pid}\n",
            f"cd {shlex.quote(str(Path.cwd()))} && nsys profile ",
            f"--output=uavlab-{pid} ",
            f"uavlab-{pid}.nsys-rep",
            "--capture-range=cudaProfilerApi",
        )
    )
    assert all(command.look for command in commands(pid))
    assert "residency, not throughput" in CAUTION


def test_what_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("nvidia-smi", "htop"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(attach, "_process", lambda pid: (["python", "train.py"], "/tmp"))
    installed = {command.line.split(" --query")[0]: command.installed for command in commands(7)}
    assert not installed["watch -n 1 nvidia-smi"]  # watch itself is missing
    assert installed["nvidia-smi"]
    assert installed["htop -p 7"]
    assert not installed["nvtop"]
    assert installed["cd /tmp && python -m cProfile -o uavlab-7.pstats train.py"]  # as Python is running


def test_a_command_says_itself_in_two_lines() -> None:
    assert str(Command("nvtop", "gaps", True)) == "ok  nvtop\n    gaps"
    assert str(Command("nvtop", "gaps", False)) == "--  nvtop\n    gaps"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("/v/bin/python /v/bin/uavlab train p", "/v/bin/python -m cProfile -o uavlab-7.pstats /v/bin/uavlab train p"),
        (
            "python3.12 -u -X dev -m uavlab train p",
            "python3.12 -u -X dev -m cProfile -o uavlab-7.pstats -m uavlab train p",
        ),
        ("python -W ignore x.py -c 1", "python -W ignore -m cProfile -o uavlab-7.pstats x.py -c 1"),
        ("python -c pass", None),
        ("python -", None),
        ("python", None),
        ("python -X dev", None),
        ("sleep 60", None),
    ],
)
def test_cprofile_goes_between_python_and_the_program(
    monkeypatch: pytest.MonkeyPatch, argv: str, expected: str | None
) -> None:
    found = [line for line in lines(monkeypatch, shlex.split(argv)) if "stats" in line and "nsys" not in line]
    if expected is None:
        assert found == []
    else:
        traced, shown = found
        assert traced == f"cd /tmp && {expected}"
        assert shown.startswith(f"cd /tmp && {shlex.split(argv)[0]} -c ")


def test_hostile_arguments_arrive_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(folder)"
    folder.mkdir()
    (folder / "say.py").write_text("import json, sys\njson.dump(sys.argv[1:], open('said.json', 'w'))\n")
    found = lines(monkeypatch, [sys.executable, "say.py", *HOSTILE], str(folder))
    traced, shown = (line for line in found if "stats" in line and "nsys" not in line)
    for line in (traced, shown):
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (folder / "said.json").read_text(encoding="utf-8") == json.dumps(HOSTILE)
    assert "tottime" in done.stdout
    assert pstats.Stats(str(folder / "uavlab-7.pstats")).total_calls > 0
    assert {path.name for path in folder.iterdir()} == {"say.py", "said.json", "uavlab-7.pstats"}
    (nsys,) = (line for line in found if " nsys profile " in line)
    assert shlex.split(nsys)[-len(HOSTILE) :] == HOSTILE


@pytest.mark.parametrize("argv", [[], ["python", "x.py", "\x1b[2J"], ["python", "x.py", "a\nb"]])
def test_no_fresh_start_from_what_is_unknown_or_moves_the_terminal(
    monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    found = lines(monkeypatch, argv)
    assert len(found) == 9
    assert "".join(found).isprintable()


def test_another_users_process_can_still_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(process: psutil.Process) -> list[str]:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "cmdline", refused)
    assert len(commands(os.getpid())) == 9


@pytest.mark.parametrize("pid", [-1, 2**22 + 1, 10**30])
def test_no_such_process(pid: int) -> None:
    with pytest.raises(ConfigError, match=f"--pid: there is no process {pid}; expected the number of a running one"):
        commands(pid)
