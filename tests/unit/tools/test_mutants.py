"""Mutants are drawn alike under a seed, change what decides, and are found again in a tree whose lines moved."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tools import mutants

SOURCE = '''"""A module."""

LIMIT: Annotated[int, Ge(3)] = 4


def choose(values, start=0.5):
    if len(values) > LIMIT and not start:
        raise ValueError(f"{LIMIT + 1} values")
    start += sum(values, start=1)
    values.sort(reverse=True)
    return -start if start in values else LIMIT - start
'''
CHANGED = {
    "LIMIT: Annotated[int, Ge(3)] = 5",
    "def choose(values, start=1.0):",
    "    if (len(values) > LIMIT or not start):",
    "    if True:",
    "    if (len(values) >= LIMIT) and not start:",
    "    if len(values) > LIMIT and (start):",
    "    pass",
    "    start += (sum(values))",
    "    start += sum(values, start=2)",
    "    values.sort(reverse=False)",
    "    (values.sort())",
    "    return (LIMIT - start if start in values else -start)",
    "    return (start) if start in values else LIMIT - start",
    "    return -start if (start not in values) else LIMIT - start",
    "    return -start if start in values else (LIMIT + start)",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one file of one area."""
    (tmp_path / "uavlab").mkdir()
    (tmp_path / "uavlab" / "choose.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "LIST", tmp_path / "tests" / "mutants.json")
    monkeypatch.setattr(mutants, "AREAS", {"all": (["choose.py"], [])})
    return tmp_path


def test_numbers_and_control_are_changed_but_no_annotation_and_no_message(tree: Path) -> None:
    rows = list(mutants.mutants_of(tree / "uavlab" / "choose.py"))
    assert {row["after"] for row in rows} == CHANGED
    lines = SOURCE.splitlines()
    assert all(lines[row["line"] - 1] == row["before"] for row in rows)


def test_a_seed_makes_the_list(tree: Path) -> None:
    def draw(seed: int) -> Any:
        assert mutants.main(["draw", "--seed", str(seed), "--count", "4"]) == 0
        return json.loads(mutants.LIST.read_text())

    record = draw(3)
    assert (record, record["seed"]) == (draw(3), 3)
    assert record != draw(4)
    assert max(Counter(row["line"] for row in record["mutants"]).values()) == 1


def test_a_line_that_moved_is_changed_and_one_that_went_is_not() -> None:
    row = {"line": 2, "before": "x = 1", "after": "x = 2"}
    assert mutants.mutate("x = 1\ny\n\nx = 1\n", row) == "x = 2\ny\n\nx = 1\n"
    assert mutants.mutate("z\nz\nx = 1\n", row) == "z\nz\nx = 2\n"
    assert mutants.mutate("x = 3\n", row) is None


def test_the_list_is_of_this_tool_and_each_mutant_is_caught_or_argued() -> None:
    record = json.loads(mutants.LIST.read_text())
    assert len(record["mutants"]) == record["count"]
    assert {row["area"] for row in record["mutants"]} == set(mutants.AREAS)
    assert [row for row in record["mutants"] if bool(row["caught_by"]) is bool(row.get("equivalent"))] == []
