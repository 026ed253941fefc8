"""The closing check of the live notebook counts a change as measured where it has a ratio, and names the others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from uavlab.experiment.run_state import Change
from uavlab_lab.live.trainer import unmeasured

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "01_live.ipynb"
RATIO = {"how": "interleaved", "ratio": 1.2, "low": 1.1, "high": 1.3}
FORMER = 'print("every change of the script is measured:", all(c.measured for c in run.changes if c.by == "script"))'


def closing_cell() -> str:
    cells = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    return next(source for source in cells if "every change of the script is measured" in source)


def printed(source: str, capsys: pytest.CaptureFixture[str], *measured: dict[str, Any]) -> list[str]:
    """Return what a cell prints of a run with changes of which this was measured, and slices between them."""
    changes = [Change(9 * n, {"batch": (64, 512)}, "script", measured=each) for n, each in enumerate(measured)]
    changes.append(Change(99, {"batch": (64, 512)}, "comparison"))
    run = SimpleNamespace(changes=changes, config=SimpleNamespace(values={"batch": 512}))
    exec(source, {"run": run, "unmeasured": unmeasured})
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "reason", [{"how": "before and after", "stopped": "too few slices before it", "slices": 6}, {"stopped": "x"}, {}]
)
def test_a_change_without_a_ratio_is_not_measured(reason: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(closing_cell(), capsys, RATIO, reason)
    assert "every change of the script is measured: False" in lines
    assert lines[-1] == f"not measured: update 9: batch 64 -> 512: {reason.get('stopped', 'no comparison')}"


def test_changes_with_ratios_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(closing_cell(), capsys, RATIO, RATIO)[-1] == "every change of the script is measured: True"


def test_a_check_of_anything_at_all_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(FORMER, capsys, RATIO, {"stopped": "x"}) == ["every change of the script is measured: True"]
