"""Tables show labels and dashes, and their text is never markup."""

from typing import Any

from uavlab_lab.plots.tables import table


def test_a_table_formats_its_cells() -> None:
    columns: dict[str, Any] = {"setting": "setting", "ms": ("time (ms)", ".1f")}
    whole = table([{"setting": "loop", "ms": 10.0}, {"setting": "unknown", "ms": None}], columns)
    assert (whole.heads, whole.rows) == (["setting", "time (ms)"], [["loop", "10.0"], ["unknown", "-"]])
    assert repr(whole) == "setting | time (ms)\nloop | 10.0\nunknown | -"


def test_a_table_shows_labels_of_raw_names() -> None:
    whole = table([{"a": "formation_strict", "b": "leader_follower_quick"}], {"a": "metric", "b": "preset"})
    assert whole.rows == [["strict formation", "leader_follower_quick"]]  # a preset is what one types


def test_a_table_is_text_that_can_be_copied_and_never_markup() -> None:
    page = table([{"a": "<img src=x onerror=alert(1)>"}], {"a": "<b>head</b>"})._repr_html_()
    assert page.count("<tr>") == 2
    assert "&lt;img src=x onerror=alert(1)&gt;</td>" in page
    assert "<img" not in page
    assert "<b>" not in page
