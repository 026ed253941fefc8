"""The table of toggles is made of the records, for the device asked."""

from uavlab.bench.toggle_table import rows, table
from uavlab.runtime.toggles import TOGGLES


def test_a_row_for_each_record() -> None:
    found = {row["name"]: row for row in rows("cpu")}
    assert list(found) == [toggle.name for toggle in TOGGLES]
    assert found["update"]["sets"]["plain"] == found["update"]["default"] == "loop"
    assert found["update"]["sets"]["eager"] == "batched"
    assert list(found["graph"]["unusable"]) == ["update", "cycle"]
    assert found["compile"]["unusable"] == {}


def test_the_text_names_values_reasons_and_sets() -> None:
    text = table("cpu")
    assert "loop, cached, merged, vmap, batched" in text
    assert "not here: tf32: tf32 needs a CUDA device" in text
    assert "  plain: every toggle at its first value\n  eager: update=batched optimizers=one" in text
