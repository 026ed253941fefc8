"""A wheel of this tree works outside a checkout, with the base alone and with all extras, and its types are checked."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.cli_runner import SETTINGS, Result
from tests.unit.test_repository import own_files

ROOT = Path(__file__).parents[2]
TYPED = ROOT / "tests" / "support" / "typed"
MYPY = """
[mypy]
[mypy-plotly.*,onnxruntime.*]
ignore_missing_imports = True
[mypy-chase,page]
disallow_untyped_defs = False
disallow_untyped_calls = False
"""
PYRIGHT = '{"reportMissingImports": false}'  # the base has no extras
PROGRAMS = ("chase.py", "page.py", "script.py", "mistakes.py", "outside.py")
BASE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy of the files in this tree."""
    if find_spec("setuptools") is None:
        pytest.skip("no setuptools here to build with")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for file in own_files():
        copy = source / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (built,) = target.glob("uavlab-*.whl")
    return built


def closure(requirements: list[str]) -> Iterator[str]:
    """Yield the distributions that requirements need, themselves included."""
    seen, waiting = set(), [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower()
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        yield name
        waiting += map(Requirement, distribution(name).requires or [])


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has the wheel and the base, by links to what is installed here."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in closure(BASE):
        files = distribution(name).files or []
        for entry in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not (site / entry).exists():  # a namespace package has several owners
                (site / entry).symlink_to(distribution(name).locate_file(entry))
    zipfile.ZipFile(wheel).extractall(site)
    return folder / "bin" / "python"


def run(python: Path | str, folder: Path, *arguments: str, path: Path | None = None) -> Result:
    """Run ``uavlab`` in a folder, without this tree's variables."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {} if path is None else {"PYTHONPATH": str(path)}
    command = [str(python), "-m", "uavlab", *arguments]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def test_the_base_trains_evaluates_and_resumes(clean: Path, tmp_path: Path) -> None:
    there = "import sys, importlib.util as u; print([n for n in sys.argv[1:] if u.find_spec(n)])"
    extras = ["plotly", "jupyterlab", "numba", "cv2", "pyarrow", "pyulog", "tensorboard", "av", "onnx"]
    listed = subprocess.run([clean, "-c", there, *extras], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert listed.stdout == "[]\n"
    target = ["--updates", "6", "--out", "run", "--json"]
    trained = run(clean, tmp_path, "train", "leader_follower_quick", *SETTINGS, *target)
    assert (trained.code, trained.json["updates"]) == (0, 6), trained.err
    assert 'pip install "uavlab[tensorboard]"' in trained.err
    resumed = run(clean, tmp_path, "resume", "run", "--updates", "9", "--json")
    assert (resumed.code, resumed.json["updates"]) == (0, 9), resumed.err
    evaluated = run(clean, tmp_path, "evaluate", "run", "--episodes", "2", "--json")
    assert (evaluated.code, evaluated.json["episodes"]) == (0, 2), evaluated.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["machine"]["commit"] is None


def test_the_base_says_what_else_is_needed(clean: Path, tmp_path: Path) -> None:
    for arguments, extra in (
        (["notebook", "tour"], "lab"),
        (["lab", "mine"], "lab"),
        (["train", "mapping_quick", "--toggle", "maps=host", "--set", "worlds=1", "--out", "run"], "mapping"),
    ):
        ended = run(clean, tmp_path, *arguments)
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
        assert f'pip install "uavlab[{extra}]"' in ended.err
    assert list(tmp_path.iterdir()) == []
    claims = run(clean, tmp_path, "claims", "--system", "leader_follower", "--json")
    assert claims.code == 0, claims.err
    assert any(row["measured"] for row in claims.json["rows"])


def test_jupyterlab_finds_our_extension(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    data = f"{wheel.name.removesuffix('-py3-none-any.whl')}.data/data"
    for folder in ("uavlab_lab/labextensions/uavlab", f"{data}/share/jupyter/labextensions/uavlab"):
        assert {f"{folder}/package.json", f"{folder}/static/remoteEntry.js"} <= names


def test_notebooks_run_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    package, folder = tmp_path / "package", tmp_path / "folder"
    folder.mkdir()
    zipfile.ZipFile(wheel).extractall(package)
    before = sorted(package.rglob("*.ipynb")), sorted(package.glob("uavlab_lab/data/**/*"))
    small = ["-p", "updates", "10", "-p", "episodes", "2", "-p", "out_dir", "runs/tour"]
    ended = run(sys.executable, folder, "notebook", "tour", *small, path=package)
    assert ended.code == 0, ended.err
    assert {path.name for path in (folder / "runs").iterdir()} >= {"tour.ipynb", "tour.html", "tour"}
    assert (sorted(package.rglob("*.ipynb")), sorted(package.glob("uavlab_lab/data/**/*"))) == before
    (tour,) = (package / "uavlab_lab" / "data" / "notebooks").glob("*_tour.ipynb")
    assert '"outputs": []' in tour.read_text()


def python_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "large", "small"),
    [
        ("README.md", '_quick", out', '_quick", updates=8, out'),
        pytest.param("docs/python.md", "", "", marks=pytest.mark.soak),
    ],
)
def test_the_python_of_a_page_runs_from_the_wheel(
    wheel: Path, tmp_path: Path, page: str, large: str, small: str
) -> None:
    package, folder = tmp_path / "package", tmp_path / "folder"
    folder.mkdir()
    zipfile.ZipFile(wheel).extractall(package)
    code = "\n\n".join(python_of(page))
    assert large in code
    (folder / "page.py").write_text(code.replace(large, small) if large else code, encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run([sys.executable, "page.py"], cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "flight.html").exists()
    assert (folder / "team.pt2").exists()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with programs of users: the code of the pages, one of each kind, and mistakes."""
    chase = python_of("docs/environment.md")[0]  # others are fragments
    (tmp_path / "chase.py").write_text(chase, encoding="utf-8")
    (tmp_path / "page.py").write_text("\n\n".join(python_of("docs/python.md")), encoding="utf-8")
    for file in (TYPED / "script.py", TYPED / "mistakes.py", ROOT / "tests" / "support" / "outside.py"):
        shutil.copy(file, tmp_path)
    return tmp_path


def reported(output: str, pattern: str) -> set[tuple[str, int]]:
    """Return file and line of each error that a type checker printed."""
    return {(Path(file).name, int(line)) for file, line in re.findall(pattern, output, re.MULTILINE)}


def mistakes() -> set[tuple[str, int]]:
    lines = (TYPED / "mistakes.py").read_text().splitlines()
    return {("mistakes.py", number) for number, line in enumerate(lines, 1) if line.endswith("# mistake")}


def test_mypy_finds_the_mistakes_of_users_and_no_others(clean: Path, programs: Path) -> None:
    (programs / "mypy.ini").write_text(MYPY)
    options = ["--strict", "--python-executable", str(clean), "--cache-dir", str(ROOT / "build" / "mypy_wheel")]
    command = [sys.executable, "-m", "mypy", *options, *PROGRAMS]
    done = subprocess.run(command, cwd=programs, capture_output=True, text=True, check=False)
    assert reported(done.stdout, r"^(\S+):(\d+): error") == mistakes(), done.stdout


def test_pyright_finds_the_mistakes_of_users_and_no_others(clean: Path, programs: Path) -> None:
    if not (pyright := shutil.which("pyright")):
        pytest.skip("no pyright here; it is a package of npm")
    (programs / "pyrightconfig.json").write_text(PYRIGHT)
    command = [pyright, "--pythonpath", str(clean), *PROGRAMS]
    done = subprocess.run(command, cwd=programs, capture_output=True, text=True, check=False)
    assert reported(done.stdout, r"(\S+):(\d+):\d+ - error") == mistakes(), done.stdout
