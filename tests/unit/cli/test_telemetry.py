"""Every command on a run or a preset that learns from logs: it works, or one line says why it cannot."""

import shutil
from pathlib import Path

import pytest

from tests.support.cli_runner import uavlab
from tests.support.fixtures_config import sizes
from tests.support.fixtures_telemetry import write_logs
from uavlab.cli import cli
from uavlab_lab.measure import profile_run

SMALL = {**sizes("telemetry"), "updates": 4}
SET = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
FLIES = "fly: telemetry has no team that flies; see `uavlab evaluate`."
TAKES_NEITHER = {"bench", "claims", "doctor", "flights", "lab", "notebook", "presets", "sweep"} | {
    "sweep-trial",
    "toggles",
}
COMMANDS: tuple[tuple[list[str], str, str], ...] = (
    (["train", "telemetry_quick", *SET], "flights take ", ""),
    (["train", "telemetry_quick", *SET, "--dry-run"], "flight_bytes ", ""),
    (["train", "run"], "", "'run' is a run, expected a preset; continue it by `uavlab resume run`"),
    (["resume", "run"], "nothing to do: the target was reached before", ""),
    (["resume", "run", "--updates", "6"], "complete: 6 updates in ", ""),
    (
        ["resume", "run", "--updates", "6", "--fresh-replay"],
        "",
        "run: a run of telemetry keeps no replay; leave out --fresh-replay.",
    ),
    (["resume", "run", "--set", "flights=9"], "", "run: cannot go on with flights 6 -> 9; "),
    (["resume", "telemetry_quick"], "", "'telemetry_quick' is a preset, expected a run; "),
    (["evaluate", "run", "--episodes", "7"], "run: policy of update 2, at most 7 flights x 1 run(s)\nmean_r2 ", ""),
    (["evaluate", "run", "--mean-action"], "rmse/wind_north ", ""),
    (["evaluate", "telemetry", "--policy", "sweep"], "", "policy 'sweep' for telemetry: unknown. Known: ridge."),
    (["evaluate", "telemetry"], "", "'telemetry' is a preset, expected a run; "),
    (["fly", "run"], "", FLIES),
    (["fly", "run", "--out", "flight.png", "--mean-action"], "", FLIES),
    (["report", "run", "--episodes", "7"], "1 run(s); open run/report.html", ""),
    (["cross-play", "run"], "", "cross_play: got 1 player(s) of telemetry; expected at least one, and "),
    (["transfer", "run", "--sizes", "2"], "", "transfer: Telemetry"),
    (["report", "telemetry"], "", "'telemetry' is a preset, expected a run; "),
    (["fly", "telemetry"], "", "'telemetry' is a preset, expected a run; "),
    (["export", "run", "copy"], "copy", ""),
    (["settings", "telemetry_quick"], "horizon ", ""),
    (["settings", "run"], "", "'run' is a run, expected a preset; continue it by `uavlab resume run`"),
    (["check", "telemetry_quick", *SET], " can be learned from.", ""),
    (["check", "run"], "", "'run' is a run, expected a preset; continue it by `uavlab resume run`"),
    (
        ["profile", "telemetry_quick", *SET, "--rounds", "3", "--trace", "t.json.gz"],
        "ms    p95 ms   share\n",
        "",
    ),
    (["profile", "run"], "", "'run' is a run, expected a preset; continue it by `uavlab resume run`"),
    (["fit", "telemetry_quick", *SET, "--most", "2", "--memory", "1GB"], "--set batch=2\n", ""),
    (["fit", "run"], "", "'run' is a run, expected a preset; continue it by `uavlab resume run`"),
    (["flights", "predict", "telemetry", "run"], "", "'telemetry' is a preset, expected a run; "),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert uavlab("train", "telemetry", *SET, "--out", folder).code == 0
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, finished: Path) -> None:
    """Work in a folder that holds the run, and try no compiler."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile_run, "TRIED", {**profile_run.TRIED, "compile": ()})
    monkeypatch.setattr(profile_run, "CYCLES", 4)
    shutil.copytree(finished, "run")


def run(words: list[str]) -> tuple[int, str, str]:
    ended = uavlab(*words)
    errors = [line for line in ended.err.splitlines() if line.strip() and "update/s" not in line]  # of a progress bar
    return ended.code, ended.out, "\n".join(errors)


@pytest.mark.parametrize(("words", "out", "error"), COMMANDS, ids=[" ".join(row[0][:2]) for row in COMMANDS])
def test_it_works_or_one_line_says_why_not(words: list[str], out: str, error: str) -> None:
    before = sorted(Path().rglob("*"))
    code, output, complaint = run(words)
    if error:
        assert (code, output) == (2, "")
        assert complaint.startswith(f"ConfigError: {error}")
        assert "\n" not in complaint
        assert sorted(Path().rglob("*")) == before
    else:
        assert (code, complaint) == (0, "")
        assert out in output
        assert "--trace" not in words or Path(words[-1]).stat().st_size > 1000


def test_no_command_is_left_out() -> None:
    assert {words[0] for words, _, _ in COMMANDS} | TAKES_NEITHER == set(cli.commands)


def test_logs_are_counted_and_their_rows_are_not_guessed() -> None:
    Path("logs").mkdir()
    write_logs(Path("logs"), 4)
    given = [*SET, "--set", "logs=logs"]
    planned = uavlab("train", "telemetry", *given, "--dry-run", "--json").json
    assert (planned["flights"], planned["flight_bytes"], planned["passes_per_run"]) == (4, None, None)
    ended = uavlab("train", "telemetry", *given, "--out", "mine")
    assert (ended.code, ended.out.splitlines()[0]) == (0, "4 logs to read; the run is kept in mine")
    shutil.rmtree("logs")
    for command in (["train", "telemetry", *given, "--dry-run"], ["evaluate", "mine"], ["resume", "mine"]):
        code, output, complaint = run(command)
        assert (code, output) == (3, "")
        assert complaint.startswith("FileError: logs: no logs there; expected files that end in .csv, ")
