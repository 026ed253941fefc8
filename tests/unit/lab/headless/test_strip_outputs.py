import copy
import json
import platform
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.support.tiny_notebook import Write
from uavlab.core.errors import FileError
from uavlab_lab.headless.strip_outputs import FIGURE, MAX_BYTES, WIDGET, find_faults, main, strip

VIEW = {WIDGET: {"model_id": "m"}}


@pytest.fixture
def executed(tmp_path: Path) -> Path:
    """A notebook as papermill leaves it: a live figure's state, an injected cell, error marks, timings, odd counts."""
    result = new_output("execute_result", {**VIEW, "text/plain": "label"}, execution_count=9)
    cells = [
        new_markdown_cell("# Title", id="title", metadata={"papermill": {"status": "completed"}}),
        new_code_cell(
            "seed: int = 0",
            id="par",
            metadata={"tags": ["parameters", "hide-input"], "trusted": True},
            execution_count=3,
        ),
        new_code_cell("seed = 4", id="inj", metadata={"tags": ["injected-parameters"]}, execution_count=4),
        new_markdown_cell("!", id="err", metadata={"tags": ["papermill-error-cell-tag"]}),
        new_code_cell("x", id="use", execution_count=9, outputs=[result, new_output("display_data", VIEW)]),
        new_code_cell("", id="blank"),
    ]
    widgets = {"application/vnd.jupyter.widget-state+json": {"state": "s" * 1000}}
    nb = new_notebook(cells=cells, metadata={"widgets": widgets, "papermill": {"duration": 1.5}})
    nb.metadata.kernelspec = {"name": "my-env", "display_name": "My env", "language": "python"}
    nbformat.write(nb, tmp_path / "executed.ipynb")
    return tmp_path / "executed.ipynb"


def test_slim_drops_what_varies_and_keeps_what_is_read(executed: Path) -> None:
    before, after = strip(executed)
    assert before - after > 1000
    assert after == executed.stat().st_size
    nb = json.loads(executed.read_text())
    assert [cell["id"] for cell in nb["cells"]] == ["title", "par", "use", "blank"]
    assert [cell["metadata"] for cell in nb["cells"]] == [
        {},
        {"jupyter": {"source_hidden": True}, "tags": ["parameters", "hide-input"]},
        {},
        {},
    ]
    assert [cell["execution_count"] for cell in nb["cells"][1:]] == [1, 2, None]  # 3 and 9 become 1 and 2
    result, alone = nb["cells"][2]["outputs"]
    assert result["execution_count"] == 2
    assert result["data"] == {"text/plain": ["label"]}
    assert alone["data"] == VIEW  # nothing else could be shown in its place
    assert set(nb["metadata"]) == {"kernelspec", "language_info"}
    assert nb["metadata"]["kernelspec"] == {
        "name": "python3",
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    assert nb["metadata"]["language_info"]["version"] == platform.python_version()
    assert find_faults(executed) == []


def test_slimming_twice_changes_nothing(executed: Path) -> None:
    strip(executed)
    once = executed.read_bytes()
    assert strip(executed) == (len(once), len(once))
    assert executed.read_bytes() == once


def cell(source: str, count: int | None, *tags: str, **more: Any) -> dict[str, Any]:
    outputs = more.pop("outputs", [])
    return new_code_cell(source, execution_count=count, metadata={"tags": list(tags)}, outputs=outputs)


ERROR = new_output("error", ename="E", evalue="", traceback=[])
GOOD = [cell("a: int = 1", 1, "parameters"), cell("\n".join("x" * 25), 2)]


@pytest.mark.parametrize(
    ("cells", "metadata", "fault"),
    [
        (GOOD, {}, None),
        ([*GOOD, cell("", None)], {}, None),
        ([*GOOD, cell("1 / 0", 3, "raises-exception", outputs=[ERROR])], {}, None),
        (GOOD, {"widgets": {}}, "saved widget state"),
        (GOOD, {"papermill": {}}, "saved widget state"),
        ([cell("x", 1)], {}, "not exactly one cell tagged 'parameters'"),
        ([*GOOD, cell("b = 1", 3, "parameters")], {}, "not exactly one cell"),
        ([*GOOD, cell("a", 4)], {}, r"execution counts [1, 2, 4], expected 1 to 3"),
        ([*GOOD, cell("a", None)], {}, r"execution counts [1, 2, None]"),
        ([*GOOD[::-1]], {}, r"execution counts [2, 1]"),
        ([*GOOD, cell("1 / 0", 3, outputs=[ERROR])], {}, "code cell 3 shows an error"),
        ([*GOOD, cell("a = 2", 3, "injected-parameters")], {}, "code cell 3 was put in by papermill"),
        ([*GOOD, cell("\n".join("x" * 26), 3)], {}, "code cell 3 has 26 lines, more than 25"),
        ([*GOOD, cell("open('/home/ann/x')", 3)], {}, "home folder: /home/a"),
        ([*GOOD, cell("open('/Users/ann/x')", 3)], {}, "home folder: /Users/a"),
        ([*GOOD, cell("open('/root/x')", 3)], {}, "home folder: /root/"),
        ([*GOOD, cell(r"open('C:\Users\ann')", 3)], {}, "home folder: C:"),
        ([*GOOD, cell("see https://x.org/home/a and a/root/b", 3)], {}, None),
        ([*GOOD, cell("f", 3, outputs=[new_output("display_data", {FIGURE: {}})])], {}, "1 figures without a picture"),
        ([*GOOD, new_markdown_cell("x" * MAX_BYTES)], {}, "bytes, more than 1,500,000"),
    ],
)
def test_faults(tmp_path: Path, cells: list[Any], metadata: dict[str, Any], fault: str | None) -> None:
    cells = copy.deepcopy(cells)
    for number, one in enumerate(cells):
        one["id"] = f"c{number}"
    nbformat.write(new_notebook(cells=cells, metadata=metadata), tmp_path / "x.ipynb")
    faults = find_faults(tmp_path / "x.ipynb")
    assert len(faults) == (fault is not None)
    assert fault is None or fault in faults[0]


def test_main_slims_all_and_reports_what_remains(
    write: Write, executed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(executed)]) == 0
    assert main([str(executed), str(write("never_run"))]) == 1
    printed = capsys.readouterr().out
    assert "executed.ipynb: " in printed
    assert "tiny.ipynb: " in printed
    assert "  execution counts [None], expected 1 to 1: run it whole, then strip it" in printed


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").write_text("not json")
    for check in (strip, find_faults):
        with pytest.raises(FileError, match="is not a readable notebook"):
            check(tmp_path / "x.ipynb")


def test_the_copy_of_a_live_panel_is_left_out(tmp_path: Path) -> None:
    nb = nbformat.v4.new_notebook()
    shown = [{"text/plain": "the panel"}, {"text/html": "<p class='uavlab-last'>"}, {"text/html": "<p>table</p>"}]
    outputs = [nbformat.v4.new_output("display_data", each) for each in shown]
    nb.cells = [nbformat.v4.new_code_cell("panel(run)", outputs=outputs, execution_count=1)]
    path = tmp_path / "live.ipynb"
    nbformat.write(nb, path)
    strip(path)
    assert [dict(each.data) for each in nbformat.read(path, 4).cells[0].outputs] == [shown[0], shown[2]]
