"""docs/telemetry.md: its mapping reads its log, and its lists are complete."""

import re
from pathlib import Path

import numpy as np
import pytest

from uavlab.telemetry.logs.columns import COLUMNS, INPUTS, UNITS, read_column_map
from uavlab.telemetry.logs.log import read_log

PAGE = (Path(__file__).parents[4] / "docs" / "telemetry.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


def test_the_example_of_a_mapping_reads_the_example_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(block("text"))
    (tmp_path / "m.yaml").write_text(block("yaml"))
    log = read_log(tmp_path / "a.csv", read_column_map(tmp_path / "m.yaml"))
    assert list(log.columns) == ["x", "y", "p", "motor_1", "current"]
    assert log.columns["x"].time == pytest.approx([0, 0.02, 0.04])
    assert log.columns["p"].values == pytest.approx([0, np.pi / 20, np.pi / 10])
    assert log.columns["motor_1"].values == pytest.approx([0, 0.5, 0.6])
    np.testing.assert_allclose(log.columns["current"].values, [np.nan, 4.0, 4.2])


def test_columns_and_units_are_complete() -> None:
    names = {name for cell in re.findall(r"`([^`]*)`", PAGE) for name in cell.split()}
    assert {name for name in INPUTS if not name.startswith("motor_")} <= names
    units = re.split("[,;] ", re.findall(r"Known units: (.*?)\. ", PAGE)[0])
    assert {unit for column in INPUTS for unit in UNITS[COLUMNS[column].unit]} - {"1"} <= {*units}
