"""Stages as widgets: what they hold is the table of a run, and what a run would refuse is said at once."""

import pytest

from uavlab.core.errors import ConfigError
from uavlab_lab.explore.stages import COLUMN, GAP, NUMBER, StageEditor, names_of, preset_stages, summary
from uavlab_lab.lessons.landing import CURRICULUM, Landing


@pytest.mark.parametrize("preset", ["leader_follower_curriculum", "assignment_curriculum"])
def test_untouched_it_is_the_table_of_the_preset(preset: str) -> None:
    env, table = preset_stages(preset)
    editor = StageEditor(env, table)
    as_lists = [{n: list(v) if isinstance(v, tuple) else v for n, v in stage.items()} for stage in table["stages"]]
    assert editor.table() == {**table, "stages": as_lists}
    assert "stages, judged by" in editor.status.value


def test_a_change_is_checked_at_once() -> None:
    editor = StageEditor(Landing(), CURRICULUM)
    editor.fields[1]["far"].value = "1.5"
    assert editor.plan().stages[1].settings == {"far": 1.5}
    editor.fields[1]["mark"].value = "1.2"
    assert "stage 2: mark 1.2: expected a value of landed, from 0 to 1" in editor.status.value
    with pytest.raises(ConfigError, match=r"mark 1\.2"):
        editor.plan()
    editor.fields[1]["mark"].value = "0.9"
    assert "alert" not in editor.status.value
    assert editor.plan().stages[1].mark == 0.9


def test_text_that_is_no_value_and_an_empty_field() -> None:
    editor = StageEditor(Landing(), CURRICULUM)
    editor.fields[0]["far"].value = "[0.3"
    assert "stage 1: far" in editor.status.value
    editor.fields[0]["far"].value = " "
    assert "far" not in editor.table()["stages"][0]
    assert CURRICULUM["stages"][0]["far"] == 0.3  # the table that was shown is as it was


def test_the_summary_has_a_row_for_each_stage() -> None:
    table = summary(preset_stages("leader_follower_curriculum")[1])
    assert len(table.rows) == 3
    assert table.heads[:2] == ["stage", "present"]
    assert table.rows[2][1] == "-"
    assert names_of({"stages": [{"a": 1}, {"b": 2, "a": 3}]}) == ["a", "b"]


def test_a_narrow_page_scrolls_all_columns() -> None:
    """The grid is as wide as its columns at their narrowest, inside a box that scrolls; it was cut before."""
    editor = StageEditor(*preset_stages("assignment_curriculum"))
    box, _ = editor.children
    [grid] = box.children
    columns = len(editor.fields[0])
    assert box.layout.overflow == "auto"
    assert grid.layout.overflow is None
    assert grid.layout.grid_template_columns == f"{NUMBER}px repeat({columns}, minmax({COLUMN}px, 150px))"
    assert grid.layout.min_width == f"{NUMBER + columns * (COLUMN + GAP)}px"


def test_each_field_says_what_it_is() -> None:
    editor = StageEditor(Landing(), CURRICULUM)
    assert editor.fields[1]["far"].tooltip.startswith("stage 2: ")


def test_a_preset_without_stages_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no curriculum"):
        preset_stages("leader_follower_quick")
