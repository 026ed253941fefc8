"""The metadata and the data of the package."""

import importlib.util
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import setuptools

import uavlab

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return setup.py as a module; it builds nothing."""
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: None)
    spec = importlib.util.spec_from_file_location("packaging_script", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "uavlab.core.installation.VERSION"}
    line = f'VERSION = "{uavlab.__version__}"'
    assert (ROOT / "uavlab" / "core" / "installation.py").read_text().count(line) == 1


def test_the_extension_of_jupyterlab_has_the_version_of_the_package() -> None:
    package = ROOT / "notebooks" / "uavlab_lab" / "labextensions" / "uavlab" / "package.json"
    assert json.loads(package.read_text())["version"] == uavlab.__version__


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("![a](figures/x.png)\n\nb", "b"),
        ("see [notes](NOTES.md).", "see notes."),
        (
            "![a](https://x.org/x.png) [b](https://x.org) [c](#d)",
            "![a](https://x.org/x.png) [b](https://x.org) [c](#d)",
        ),
    ],
)
def test_relative_links_are_left_out_of_the_description(setup: ModuleType, text: str, expected: str) -> None:
    assert setup.description(text) == expected
    assert "](" not in setup.description("".join(line for line in README.splitlines(True) if "https:" not in line))


def test_notebooks_lose_their_outputs_alone(setup: ModuleType) -> None:
    source = next((ROOT / "notebooks").glob("*_claims.ipynb")).read_text(encoding="utf-8")
    before, after = json.loads(source), json.loads(setup.without_outputs(source))
    assert len(setup.without_outputs(source)) < len(source) / 2
    for one, other in zip(before["cells"], after["cells"], strict=True):
        assert (one["source"], one["metadata"]) == (other["source"], other["metadata"])
        if one["cell_type"] == "code":
            assert (other["outputs"], other["execution_count"]) == ([], None)


def test_everything_that_the_package_reads_is_among_its_data(setup: ModuleType) -> None:
    brought = {str(path.relative_to(ROOT)) for each in setup.DATA for path in ROOT.glob(each)}
    wanted: list[Callable[[Path], bool]] = [lambda path: path.suffix == ".ipynb", lambda path: "figures" in path.parts]
    files = [*ROOT.glob("notebooks/*"), *(path for path in ROOT.glob("figures/*/**/*") if path.is_file())]
    missing = [str(path.relative_to(ROOT)) for path in files if any(want(path) for want in wanted)]
    assert sorted(set(missing) - brought) == []
    assert not any(name.endswith(".png") for name in brought)
