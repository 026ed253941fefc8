"""The series: notebooks are executed with their own values, linked in order, and listed in the index."""

from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import notebooks
from uavlab.core.errors import ConfigError
from uavlab_lab.headless.strip_outputs import read_notebook

NAMES = ("00_first", "01_second", "02_last")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A series of three notebooks without figures."""
    (tmp_path / "notebooks").mkdir()
    for name in NAMES:
        title = new_markdown_cell(f"# {name[3:].capitalize()}: a question?\n\n**The answer.** More.")
        nbformat.write(new_notebook(cells=[title, new_code_cell("1 + 1")]), tmp_path / "notebooks" / f"{name}.ipynb")
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(notebooks, "INDEX", tmp_path / "notebooks" / "index.ipynb")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "notebooks"


def texts(path: Path) -> list[str]:
    return [cell.source for cell in read_notebook(path).cells]


def test_links_lead_forward_and_back_once_and_the_index_has_titles_and_answers(folder: Path) -> None:
    assert notebooks.main([]) == notebooks.main([]) == 0
    ends = [texts(folder / f"{name}.ipynb")[-1] for name in NAMES]
    assert ends == [
        "[All notebooks](index.ipynb) · **Next**: [Second](01_second.ipynb)",
        "**Before**: [First](00_first.ipynb) · [All notebooks](index.ipynb) · **Next**: [Last](02_last.ipynb)",
        "**Before**: [Second](01_second.ipynb) · [All notebooks](index.ipynb)",
    ]
    assert [len(texts(folder / f"{name}.ipynb")) for name in NAMES] == [3, 3, 3]
    head, *cells = texts(notebooks.INDEX)
    assert head == notebooks.HEAD
    assert cells[0] == "## [First: a question?](00_first.ipynb)\n\nThe answer."
    assert len(cells) == len(NAMES)


def test_a_run_stores_outputs_and_the_index_its_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(path: Path, values: dict, out: Path, timeout: int, progress: bool) -> SimpleNamespace:
        nb = read_notebook(path)
        nb.cells[1].update(execution_count=7, outputs=[nbformat.v4.new_output("stream", text="2")])
        out.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nb, out)
        return SimpleNamespace(exit_code=int("last" in path.name), reason="cell 1 failed", tail="")

    monkeypatch.setattr(notebooks, "run_notebook", run)
    assert notebooks.main(["second", "last"]) == 1
    assert read_notebook(folder / "01_second.ipynb").cells[1].outputs[0].text == "2"
    assert read_notebook(folder / "02_last.ipynb").cells[1].outputs == []  # a failed run changes nothing
    timed = ["Takes 0.0 minutes on" in text for text in texts(notebooks.INDEX)]
    assert timed == [False, False, True, False]
    assert notebooks.main(["first"]) == 0
    timed = ["Takes 0.0 minutes on" in text for text in texts(notebooks.INDEX)]
    assert timed == [False, True, True, False]  # what the index told of others stays
    assert notebooks.main(["--all"]) == notebooks.main(["00_first"]) + 1 == 1  # with or without the number


def test_a_notebook_without_an_answer_is_refused(folder: Path) -> None:
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Title\n\nWords.")]), folder / "01_second.ipynb")
    with pytest.raises(ConfigError, match=r"01_second\.ipynb: .*expected '# Title', then '\*\*Answer\*\*'"):
        notebooks.main([])
