"""Mistyped names are refused before torch is imported, in the words of the registries."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import uavlab as ul
from tests.support.cli_runner import uavlab
from uavlab.core.errors import ConfigError, FileError
from uavlab.core.registry import ENVIRONMENTS
from uavlab.experiment import names
from uavlab.experiment.names import is_external

ROOT = Path(__file__).parents[3]
TEAM = str(ROOT / "figures" / "tour")
QUICK = "leader_follower_quick"
REFUSALS = (
    ["trian"],
    ["train", "--no-such-option"],
    ["train", "leader_folower_quick"],
    ["settings", "mapping_quik"],
    ["profile", "no_such"],
    ["check", "no_such"],
    ["train", "--env", "pettingzoo:no_such_module"],
    ["evaluate", "gymnasium:NoSuch-v1", "--policy", "random"],
    ["resume", "runs/no_such"],
    ["evaluate", "no_such"],
    ["evaluate", TEAM, "runs/no_such"],
    ["evaluate", "leader_folower", "--policy", "random"],
    ["evaluate", "other"],
    ["fly", "mapping_quick"],
    ["export", ".", "out"],
    ["flights", "predict", "no_such", "log.csv"],
    ["flights", "describe", "no_such.csv"],
)
ANSWERS = (
    ["--help"],
    ["presets"],
    *([name, "--help"] for name in ("train", "resume", "evaluate", "profile", "flights")),
)
PROGRAM = """
import contextlib, io, json, sys
from uavlab.cli import main
results = []
for arguments in json.loads(sys.argv[1]):
    sys.argv, error = ["/bin/uavlab", *arguments], io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
            main()
        code = 0
    except SystemExit as end:
        code = end.code
    results.append([code or 0, error.getvalue(), "torch" in sys.modules])
print(json.dumps(results))
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Work in a folder with a run of an environment that is not registered."""
    monkeypatch.chdir(tmp_path)
    for name in filter(is_external, list(ENVIRONMENTS)):  # of other tests, which a new process does not know
        monkeypatch.delitem(ENVIRONMENTS, name)
    (tmp_path / "other").mkdir()
    store(tmp_path / "other", "elsewhere_made")
    return tmp_path


def store(folder: Path, preset: str) -> None:
    """Write the settings of a run, all of them defaults, with their digest."""
    stored = {"preset": preset, "values": {}}
    (folder / "config.json").write_text(json.dumps({**stored, "sha256": names.own_digest(stored)}))


def in_a_new_process(commands: Any) -> list[list[Any]]:
    """Return exit code, errors, and whether torch was imported, after each command of one process."""
    process = [sys.executable, "-c", PROGRAM, json.dumps(list(commands))]
    return json.loads(subprocess.run(process, capture_output=True, text=True, check=True).stdout)


def test_refusals_do_not_import_torch(here: Path) -> None:
    results = in_a_new_process(REFUSALS)
    assert [arguments for arguments, (_, _, torch) in zip(REFUSALS, results, strict=True) if torch] == []
    for arguments, (code, error, _) in zip(REFUSALS, results, strict=True):
        slow = uavlab(*arguments)
        assert (code, error) == (slow.code, slow.err), arguments
        assert code in (2, 3), arguments
        assert error.count("\n") == 1, arguments
    assert sorted(path.name for path in here.iterdir()) == ["other"]


def test_a_run_of_an_unregistered_environment_says_how_to_register_it(here: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ul.load("other")
    assert str(caught.value) == (
        "other: trained on 'elsewhere_made', which is not registered here; import the file that registers the "
        "environment 'elsewhere_made' first, or run this command with it: python FILE.py COMMAND ..."
    )


def test_help_and_presets_do_not_import_torch(here: Path) -> None:
    results = in_a_new_process(ANSWERS)
    assert [(code, torch) for code, _, torch in results] == [(0, False)] * len(ANSWERS)


def test_what_is_right_is_left_to_the_command(here: Path) -> None:
    ((code, error, torch),) = in_a_new_process([["train", QUICK, "--set", "gama=2"]])
    assert (code, torch) == (2, True)
    assert "did you mean 'gamma'" in error


def test_other_parameters_are_ignored() -> None:
    names.require_names({"preset": QUICK, "runs": 3, "seed": 1, "out": Path("x"), "config_file": None})
    names.require_names({"runs": (QUICK,), "plan": "random"})
    with pytest.raises(ConfigError, match="is a preset, expected a run"):
        names.require_names({"runs": (QUICK,), "plan": None})


def test_a_folder_of_runs_lists_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(FileError) as caught:
        names.read_settings(tmp_path)
    assert str(caught.value).endswith(f"is no run; runs in it: {tmp_path / 'a'}, {tmp_path / 'b'}.")


def test_a_folder_starts_no_code_that_it_names(here: Path) -> None:
    for preset in ("os:system,command=touch harm", "harm.py:make", "pettingzoo:harm"):
        (here / "harm.py").write_text("open('harm', 'w')\n")
        store(here / "other", preset)
        for command in (["resume", "other"], ["evaluate", "other"], ["fly", "other"]):
            result = uavlab(*command)
            assert result.code == 2
            assert "must not start by itself; if you trust it, run `uavlab --env " in result.err
    assert not (here / "harm").exists()


def test_a_damaged_name_starts_nothing_either(here: Path) -> None:
    stored = {"preset": "gymnasium:CartPole-v1", "values": {}, "sha256": "0"}
    (here / "other" / "config.json").write_text(json.dumps(stored))
    with pytest.raises(FileError, match="damaged"):
        names.read_settings(Path("other"))
