"""Suites are registered where they are written, discovered in their folder, and run into whole records."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from uavlab import benchmarks as registry
from uavlab.benchmarks import Option, format_rows, suite, suites
from uavlab.core.errors import ConfigError
from uavlab_lab import suites as folder_of_suites

SOURCE = '''
"""A suite of one row."""

from uavlab.benchmarks import suite


@suite("dropped", about="a file in the folder")
def dropped_suite(rounds, device):
    return {"rows": [{"rounds": rounds, "device": device}]}
'''


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget afterwards what a test registers."""
    monkeypatch.setattr(registry, "REGISTRY", dict(suites()))


def test_every_module_of_the_folder_registers_suites_with_a_few_words() -> None:
    folder = Path(folder_of_suites.__file__).parent
    modules = {f"uavlab_lab.suites.{path.stem}" for path in folder.glob("[!_]*.py")}
    assert {each.function.__module__ for each in suites().values()} == modules
    assert all(each.about and each.name == name for name, each in suites().items())
    assert list(suites()) == sorted(suites())


def test_a_file_in_the_folder_is_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = ModuleType("copied_suites")
    copy.__path__ = [str(tmp_path)]
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.setattr(registry, "entry_points", lambda group: [SimpleNamespace(value="copied_suites")])
    monkeypatch.setitem(sys.modules, "copied_suites", copy)
    record = suites()["dropped"].run(3, "cpu")
    assert record["rows"] == [{"rounds": 3, "device": "cpu"}]
    monkeypatch.delitem(sys.modules, "copied_suites.mine")


def test_a_record_names_suite_rounds_and_machine_and_holds_what_the_suite_returns() -> None:
    @suite("mine", about="of a test", options=[Option("full", "more")])
    def mine(rounds: int, device: str, full: bool = False) -> dict[str, Any]:
        return {"goal": 0.5, "rows": [{"full": full}]}

    record = suites()["mine"].run(7, "cpu", full=True)
    assert list(record) == ["suite", "rounds", "machine", "goal", "rows"]
    assert (record["suite"], record["rounds"], record["rows"]) == ("mine", 7, [{"full": True}])
    assert record["machine"]["threads"] == 1
    assert mine(3, "cpu")["rows"] == [{"full": False}]  # the function itself is unchanged


def test_a_name_belongs_to_one_function() -> None:
    for _ in range(2):  # a cell of a notebook may run twice

        @suite("mine", about="first")
        def mine(rounds: int, device: str) -> dict[str, Any]:
            return {"rows": []}

    with pytest.raises(ConfigError, match=r"suite 'mine' is already registered, by tests\.unit\.bench"):

        @suite("mine", about="second")
        def other(rounds: int, device: str) -> dict[str, Any]:
            return {"rows": []}


def test_rows_as_text() -> None:
    rows = [{"agents": 2, "worlds": 1024, "setting": "a"}, {"agents": 4, "worlds": 64, "setting": "long"}]
    assert format_rows(rows).splitlines() == [
        "agents  worlds  setting",
        "     2   1,024        a",
        "     4      64     long",
    ]


def test_rows_as_text_show_intervals_and_leave_out_lists() -> None:
    figure = {"mean": 0.123456, "low": -1.0, "high": 2.5, "each": [0.1, 0.2]}
    rows = [
        {"setting": "a", "best": figure, "curve": [1, 2], "weights": {}, "seeds": []},
        {"setting": "b", "best": None, "curve": [], "weights": {"a": 1.0}, "seeds": 2},
    ]
    assert format_rows(rows).splitlines() == [
        "setting             best",
        "      a  0.123 [-1, 2.5]",
        "      b             None",
    ]
