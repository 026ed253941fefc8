"""Notebooks without a browser: parameters are refused before a kernel starts; pages, pictures and what is committed."""

import copy
import html
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import papermill
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from papermill.cli import _resolve_type
from plotly.offline import get_plotlyjs

from tests.support.tiny_notebook import PARAMETERS, Write
from tests.support.web_page import loaded_addresses
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.core.installation import ROOT
from uavlab_lab.headless import FIGURE, PICTURE, pictures
from uavlab_lab.headless.parameters import declared_parameters, parameters, read_parameters
from uavlab_lab.headless.report import draw_formulas, report
from uavlab_lab.headless.runner import notebook_path, run_notebook
from uavlab_lab.headless.strip_outputs import MAX_BYTES, WIDGET, find_faults, main, strip
from uavlab_lab.plots.flight import add_frames
from uavlab_lab.plots.views import views


def injected(**values: object) -> dict[str, object]:
    """Build the namespace that a kernel holds after papermill set these values."""
    source = "# Parameters\n" + "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return {"In": ["", source], **values}


WRONG = [
    *((int, True), (int, 2.5), (int, "2"), (bool, "perhaps"), (bool, 1), (list, "2, 4"), (str, 2.0), (str, None)),
    *((float, math.nan), (float, 10**400), (float, False), ((int, 0, 3), 4), ((float, 0, 1), math.nan)),
    *((("auto", "cpu"), "tpu"), ((1, 2), True)),
]


@pytest.mark.parametrize(("spec", "value"), WRONG)
def test_what_does_not_fit_a_declaration_is_refused(spec: object, value: object) -> None:
    with pytest.raises(ConfigError, match=r"this notebook: x = .*, expected .*\. Known: x\."):
        parameters({"x": value}, x=spec)


def test_values_are_gathered_and_all_problems_told_at_once() -> None:
    p = parameters({"seed": 3, "lr": 1, "fast": True}, lr=(float, 0, 1), fast=bool)
    assert (vars(p), type(p.lr)) == ({"seed": 3, "lr": 1.0, "fast": True}, float)
    with pytest.raises(ConfigError) as caught:
        parameters(injected(sede=1, followers=900), seed=int, followers=(int, 1, 16), device=("auto", "cpu"))
    assert str(caught.value) == (
        "Parameters of this notebook: unknown parameter 'sede' (did you mean 'seed'?); 'seed' is missing from the "
        "parameters cell; followers = 900, expected int in [1, 16]; 'device' is missing from the parameters cell. "
        "Known: seed, followers, device."
    )
    for kind, text, expected in ((list, "[2, 4]", [2, 4]), (bool, "true", True), (int, "1e3", 1000), (str, "1", "1")):
        assert vars(parameters(injected(x=_resolve_type(text) if kind is not str else text), x=kind))["x"] == expected


def test_the_parameters_cell_and_the_command_line_are_read(write: Write, tmp_path: Path) -> None:
    path = write("import os", ("seed: int = 0  # seed\n\nlr = 1e-3\nsizes: list = []", "parameters"))
    assert declared_parameters(path) == {"seed": int, "lr": float, "sizes": list}
    (tmp_path / "p.yaml").write_text("lr: 1e-3\nseed: 12\ndevice: yes\n")
    got = read_parameters(write(PARAMETERS), [("seed", "7"), ("sizes", "[1"), ("device", "1e-3")], tmp_path / "p.yaml")
    assert got == {"lr": 1e-3, "seed": 7, "device": "1e-3", "sizes": "[1"}
    for line in ("import os", "a = 2 ** 31", "a: Tensor = 1", "a ="):
        with pytest.raises(ConfigError, match=r"tiny\.ipynb: the parameters cell cannot be read"):
            declared_parameters(write((line, "parameters")))
    for text in ("", "{", "[]", '{"cells": 1}'):
        path.write_text(text)
        with pytest.raises(FileError, match="is not a readable notebook"):
            declared_parameters(path)
    cell = '{"cell_type": "code", "metadata": {}, "source": 1, "id": "a", "outputs": [], "execution_count": null}'
    path.write_text(f'{{"nbformat": 4, "nbformat_minor": 5, "metadata": {{}}, "cells": [{cell}]}}')
    with pytest.raises(FileError, match=r"is not a sound notebook: .*; open and save it"):
        declared_parameters(path)


class TestRefusedBeforeAKernelStarts:
    @pytest.fixture(autouse=True)
    def no_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("papermill was called")

        monkeypatch.setattr(papermill, "execute_notebook", refuse)

    def test_names_types_and_ranges_all_at_once(self, write: Write, tmp_path: Path) -> None:
        path = write(PARAMETERS, "%time\n!ls", "P = parameters(globals(), lr=(float, 0, 10**2), sizes=list, fast=bool)")
        with pytest.raises(ConfigError) as caught:
            run_notebook(path, {"sede": 3, "seed": -3, "lr": 200.0, "n=1;import os;lr": 5}, tmp_path / "o.ipynb")
        assert str(caught.value) == (
            "Parameters of tiny.ipynb: unknown parameter 'sede' (did you mean 'seed'?); seed = -3, expected int in "
            "[0, 2147483648]; lr = 200.0, expected float in [0, 100]; 'n=1;import os;lr' is no Python identifier. "
            "Known: seed, lr, fast, device, sizes."
        )
        assert not (tmp_path / "o.ipynb").exists()
        with pytest.raises(ConfigError, match="no cell tagged 'parameters'"):
            run_notebook(write("1"), {"seed": 1}, tmp_path / "o.ipynb")

    def test_outputs_that_cannot_be(self, write: Write, tmp_path: Path) -> None:
        path = write(PARAMETERS)
        before = path.read_bytes()
        (tmp_path / "hard.ipynb").hardlink_to(path)
        for out, message in (
            (path, "never overwritten"),
            (tmp_path / "hard.ipynb", "never overwritten"),
            (tmp_path, "is a folder"),
            (tmp_path / "o.html", r"is not named like a notebook; let it end in \.ipynb"),
        ):
            with pytest.raises(ConfigError, match=message):
                run_notebook(path, {}, out)
        with pytest.raises(ResourceError, match=r"cannot be run to .*; free some space, or name another file"):
            run_notebook(path, {}, path / "o.ipynb")
        assert path.read_bytes() == before


def test_notebooks_are_found_by_path_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert notebook_path("tour").parent == ROOT / "notebooks"  # without notebooks above, those beside the package
    (tmp_path / "notebooks" / "deep").mkdir(parents=True)
    for name in ("07_tour", "09_profile"):
        (tmp_path / "notebooks" / f"{name}.ipynb").write_text("{}")
    monkeypatch.chdir(tmp_path / "notebooks" / "deep")
    assert notebook_path("tour") == notebook_path("07_tour") == tmp_path / "notebooks" / "07_tour.ipynb"
    with pytest.raises(ConfigError, match=r"Unknown notebook 'profil' \(did you mean 'profile'\?\)"):
        notebook_path("profil")


# The page of an executed notebook


def test_a_page_needs_no_network_and_its_text_is_text(write: Write, tmp_path: Path) -> None:
    path = write("secret_source()")
    nb = nbformat.read(path, as_version=4)
    figure = go.Figure(go.Scatter(y=[1, 2]), {"title": "Curve </script><script>alert(1)</script>"})
    config = {"plotlyServerURL": "https://plot.ly"}
    bundle = {WIDGET: {"model_id": "m"}, FIGURE: {**figure.to_plotly_json(), "config": config}, "text/plain": "label"}
    nb.cells[0].outputs = [new_output("display_data", bundle)]
    nb.cells.insert(0, new_markdown_cell("The share $s_1 < 2$ and\n\n$$\\frac{a}{b} & c$$\n\n`$x$ of $y$`"))
    nbformat.write(nb, path)
    report(path, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    styles = re.findall(r"@import[^;]*|url\(\s*['\"]?(?:https?:)?//[^)]*", page.replace(get_plotlyjs(), ""))
    assert [each for each in [*loaded_addresses(page), *styles] if not each.startswith("data:")] == []
    assert page.count(get_plotlyjs()) == page.count('id="figure-0"') == 1
    assert not any(text in page for text in ("</script><script>alert(1)", WIDGET, "secret_source"))
    assert ["block" in tag for tag in re.findall("<math[^>]*>", page)] == [False, True]
    assert "<code>$x$ of $y$</code>" in page
    for text in ("<img src=x onerror=alert(1)>", "\\href{javascript:alert(1)}{x}", '\\color{red" onclick="a"}{y}'):
        drawn = draw_formulas(f"${html.escape(text)}$")
        assert not re.search(r"<(img|script)|<[^>]* (href|on\w+)=\"", drawn)


# Pictures, and what is committed


def test_each_figure_has_a_picture_of_a_moment_or_of_every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[go.Figure] = []

    def draw(some: Sequence[go.Figure]) -> list[str]:
        figures.extend(some)
        return [f'<svg class="main" width="900" height="{100 + n}"></svg>' for n in range(len(some))]

    monkeypatch.setattr(pictures, "draw", draw)
    flight = go.Figure(go.Scatter(x=[0], y=[0]))
    add_frames(flight, [[go.Scatter(x=[number], y=[0])] for number in range(5)], list("abcde"))
    two = views(lambda name: go.Figure(go.Bar(x=[1]), {"title": {"text": name}}), name=["one", "two"])
    bundles = [{FIGURE: json.loads(each.to_json()), "image/png": "old"} for each in (flight, two)]
    pictures.add_pictures(bundles)
    assert (figures[0].frames, figures[0].data[0].x) == ((), (2,))
    assert [figure.layout.title.text for figure in figures[1:]] == ["one", "two"]
    assert bundles[0][PICTURE] == '<svg class="main" width="900" height="100"></svg>'
    assert 'height="203"' in bundles[1][PICTURE].partition(">")[0]
    assert '<svg y="101" ' in bundles[1][PICTURE]
    assert all("image/png" not in bundle for bundle in bundles)


def cell(source: str, count: int | None, *tags: str, **more: Any) -> dict[str, Any]:
    return new_code_cell(source, execution_count=count, metadata={"tags": list(tags)}, **more)


def test_stripping_drops_what_varies_and_keeps_what_is_read(tmp_path: Path) -> None:
    view = {WIDGET: {"model_id": "m"}}
    result = new_output("execute_result", {**view, "text/plain": "label"}, execution_count=9)
    panel = new_output("display_data", {"text/html": "<p class='uavlab-last'>"})
    cells = [
        new_markdown_cell("# Title", metadata={"papermill": {"status": "completed"}}),
        cell("seed: int = 0", 3, "parameters", "hide-input"),
        cell("seed = 4", 4, "injected-parameters"),
        cell("x", 9, outputs=[result, new_output("display_data", view), panel]),
    ]
    path = tmp_path / "executed.ipynb"
    widgets = {"application/vnd.jupyter.widget-state+json": {"state": "s" * 1000}}
    nbformat.write(new_notebook(cells=cells, metadata={"widgets": widgets, "papermill": {"duration": 1.5}}), path)
    before, after = strip(path)
    assert (before - after > 1000, after) == (True, path.stat().st_size)
    nb = json.loads(path.read_text())
    assert [each.get("execution_count") for each in nb["cells"]] == [None, 1, 2]
    assert nb["cells"][1]["metadata"] == {"jupyter": {"source_hidden": True}, "tags": ["parameters", "hide-input"]}
    assert [each["data"] for each in nb["cells"][2]["outputs"]] == [{"text/plain": ["label"]}, view]
    assert set(nb["metadata"]) == {"kernelspec", "language_info"}
    assert (find_faults(path), strip(path)) == ([], (after, after))
    assert main([str(path)]) == 0


ERROR = new_output("error", ename="E", evalue="", traceback=[])
GOOD = [cell("a: int = 1", 1, "parameters"), cell("\n".join("x" * 25), 2)]


@pytest.mark.parametrize(
    ("cells", "metadata", "fault"),
    [
        ([*GOOD, cell("1 / 0", 3, "raises-exception", outputs=[ERROR])], {}, None),
        (GOOD, {"widgets": {}}, "saved widget state"),
        ([cell("x", 1)], {}, "not exactly one cell tagged 'parameters'"),
        ([*GOOD, cell("a", 4)], {}, r"execution counts [1, 2, 4], expected 1 to 3"),
        ([*GOOD, cell("1 / 0", 3, outputs=[ERROR])], {}, "code cell 3 shows an error"),
        ([*GOOD, cell("a = 2", 3, "injected-parameters")], {}, "code cell 3 was put in by papermill"),
        ([*GOOD, cell("\n".join("x" * 26), 3)], {}, "code cell 3 has 26 lines, more than 25"),
        ([*GOOD, cell("open('/home/ann/x')", 3)], {}, "home folder: /home/a"),
        ([*GOOD, cell("f", 3, outputs=[new_output("display_data", {FIGURE: {}})])], {}, "1 figures without a picture"),
        ([*GOOD, new_markdown_cell("x" * MAX_BYTES)], {}, "bytes, more than 1,500,000"),
    ],
)
def test_faults_of_a_notebook(tmp_path: Path, cells: list[Any], metadata: dict[str, Any], fault: str | None) -> None:
    cells = copy.deepcopy(cells)
    for number, one in enumerate(cells):
        one["id"] = f"c{number}"
    nbformat.write(new_notebook(cells=cells, metadata=metadata), tmp_path / "x.ipynb")
    faults = find_faults(tmp_path / "x.ipynb")
    assert len(faults) == (fault is not None)
    assert fault is None or fault in faults[0]
