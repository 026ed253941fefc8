"""Links between pages lead to files and headings, and the lines that the README shows are commands."""

import re
import shlex
from pathlib import Path

import click
import nbformat
import pytest

from uavlab.cli import cli
from uavlab.experiment.names import presets

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "figures" / "README.md"])
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
LINK = re.compile(r"\]\((?!https?:|attachment:)([^)\s]*)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(path: Path) -> str:
    """Return the text of a page, or of a notebook's cells of text, without code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return FENCED.sub("", text)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken(path: Path, text: str) -> list[str]:
    """Return the links of a page's text that lead nowhere."""
    links = []
    for link in LINK.findall(text):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            links.append(link)
    return links


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken(path, prose(path)) == []


def test_a_broken_link_is_caught() -> None:
    readme = ROOT / "README.md"
    text = "[a](docs/python.md#a-learner) [b](docs/none.md) [c](docs/python.md#none) [d](#none) ![e](x.png)"
    assert broken(readme, text) == ["docs/none.md", "docs/python.md#none", "#none", "x.png"]


def refused(line: str) -> bool:
    """Return whether a line of the README is no command: an unknown program, command, option, target or file."""
    program, *words = shlex.split(line, comments=True)
    if program == "make":
        return not re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if program == "pytest":
        return words != ["--nbval", "notebooks"]
    if program == "papermill":
        (notebook,) = ROOT.glob(words[0])
        names = [words[at + 1] for at, word in enumerate(words) if word == "-p"]
        cells = nbformat.read(notebook, as_version=4).cells
        (parameters,) = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
        return any(not re.search(rf"^{name}\b", parameters, re.MULTILINE) for name in names)
    if program != "uavlab":
        return line != "source .venv/bin/activate"
    command = cli.get_command(click.Context(cli), words[0])
    options = {text for each in (command.params if command else ()) for text in each.opts}
    named = words[0] != "train" or words[1] in presets()
    return command is None or not named or not options >= {word for word in words if word.startswith("--")}


def test_every_line_of_the_readme_is_a_command() -> None:
    fenced = FENCED.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    lines = [line for block in fenced if block.startswith("```\n") for line in block.splitlines()[1:-1]]
    assert {line.split()[0] for line in lines} >= {"make", "uavlab", "papermill", "pytest"}
    assert [line for line in lines if refused(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        *("make tours", "uavlab trains a", "uavlab train no_preset", "uavlab evaluate runs/a --episode 5", "rm a"),
        "papermill notebooks/*_tour.ipynb out.ipynb -p seeds 3",
    ],
)
def test_a_line_that_is_no_command_is_caught(line: str) -> None:
    assert refused(line)
