import re
from pathlib import Path

import papermill
import pytest
from filelock import FileLock

from tests.support.tiny_notebook import PARAMETERS, Write
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.installation import ROOT
from uavlab_lab.headless import runner
from uavlab_lab.headless.runner import notebook_path, run_notebook


class TestRefusedBeforeAKernelStarts:
    @pytest.fixture(autouse=True)
    def no_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("papermill was called")

        monkeypatch.setattr(papermill, "execute_notebook", refuse)

    def test_names_and_types_all_at_once(self, write: Write, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            run_notebook(
                write(PARAMETERS), {"sede": 3, "seed": True, "lr": "1e-3", "n=1;import os;lr": 5}, tmp_path / "o"
            )
        assert str(caught.value) == (
            "Parameters of tiny.ipynb: unknown parameter 'sede' (did you mean 'seed'?); seed = True, expected int; "
            "lr = '1e-3', expected float (finite); 'n=1;import os;lr' is no Python identifier. "
            "Known: seed, lr, fast, device, sizes."
        )
        assert not (tmp_path / "o").exists()

    def test_ranges_that_the_notebook_declares(self, write: Write, tmp_path: Path) -> None:
        path = write(PARAMETERS, "%time\n!ls", "P = parameters(globals(), lr=(float, 0, 10**2), sizes=list, fast=bool)")
        with pytest.raises(ConfigError) as caught:
            run_notebook(path, {"lr": 200.0, "seed": -3, "device": "tpu"}, tmp_path / "o.ipynb")
        for problem in ("lr = 200.0, expected float in [0, 100]", "seed = -3, expected int in [0, 2147483648]"):
            assert problem in str(caught.value)
        assert "device = 'tpu', expected one of 'auto', 'cpu', 'cuda'" in str(caught.value)
        assert not (tmp_path / "o.ipynb").exists()

    @pytest.mark.parametrize("name", ["n=1;import os;lr", "", "a b", "class", "a.b", "1a", 3, "x\n"])
    def test_names_that_are_code(self, write: Write, tmp_path: Path, name: object) -> None:
        with pytest.raises(ConfigError, match="is no Python identifier"):
            run_notebook(write(PARAMETERS), {name: 1}, tmp_path / "o.ipynb")  # type: ignore[dict-item]

    def test_parameters_for_a_notebook_without_any(self, write: Write, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no cell tagged 'parameters'"):
            run_notebook(write("1"), {"seed": 1}, tmp_path / "o.ipynb")

    def test_the_input_is_never_overwritten(self, write: Write, tmp_path: Path) -> None:
        path = write(PARAMETERS)
        before = path.read_bytes()
        (tmp_path / "link.ipynb").symlink_to(path)
        (tmp_path / "hard.ipynb").hardlink_to(path)
        for out in (path, tmp_path / "link.ipynb", tmp_path / "hard.ipynb", tmp_path / "x" / ".." / "tiny.ipynb"):
            with pytest.raises(ConfigError, match="never overwritten"):
                run_notebook(path, {}, out)
        with pytest.raises(ConfigError, match="is a folder"):
            run_notebook(path, {}, tmp_path)
        assert path.read_bytes() == before

    def test_an_output_is_named_like_a_notebook(self, write: Write, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:  # the offline page beside it would take its place
            run_notebook(write("1"), {}, tmp_path / "o.html")
        assert str(caught.value) == f"Output {tmp_path}/o.html is not named like a notebook; let it end in .ipynb."

    def test_an_output_that_another_run_writes(self, write: Write, tmp_path: Path) -> None:
        with FileLock(tmp_path / ".o.ipynb.lock"), pytest.raises(ConfigError) as caught:
            run_notebook(write("1"), {}, tmp_path / "o.ipynb")
        assert str(caught.value) == (
            f"Output {tmp_path}/o.ipynb is being written by another run; wait for its end or name another file."
        )

    @pytest.mark.parametrize("folder", ["file", "file/deeper"])
    def test_a_folder_that_cannot_be(self, write: Write, tmp_path: Path, folder: str) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ResourceError) as caught:
            run_notebook(write("1"), {}, tmp_path / folder / "o.ipynb")
        message = rf"Folder {tmp_path}/{folder} cannot be made or written \([A-Z][a-z ]+\); name another\."
        assert re.fullmatch(message, str(caught.value))


class TestFinding:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        (tmp_path / "notebooks").mkdir()
        for name in ("07_tour", "09_profile", "11_tour_again"):
            (tmp_path / "notebooks" / f"{name}.ipynb").write_text("{}")
        return tmp_path

    @pytest.mark.parametrize("name", ["07_tour", "tour", "07_tour.ipynb", "notebooks/07_tour.ipynb"])
    def test_by_path_or_name(self, root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "deep").mkdir()
        expected = root / "notebooks" / "07_tour.ipynb"
        monkeypatch.chdir(root)
        assert notebook_path(name) == expected
        monkeypatch.chdir(root / "deep")
        assert notebook_path("tour") == expected

    def test_without_notebooks_above_those_beside_the_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert notebook_path("tour").parent == ROOT / "notebooks"

    def test_suggests_the_nearest(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(root)
        with pytest.raises(ConfigError) as caught:
            notebook_path("profil")
        assert str(caught.value) == (
            "Unknown notebook 'profil' (did you mean 'profile'?). Known: tour, profile, tour_again."
        )


def test_a_notebook_of_an_installed_package_runs_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data" / "notebooks" / "x.ipynb"
    monkeypatch.chdir(tmp_path)
    assert runner._working_directory(path) == path.parent
    monkeypatch.setattr(runner.installation, "ROOT", tmp_path / "data")
    monkeypatch.setattr(runner.installation, "INSTALLED", True)
    assert runner._working_directory(path) == tmp_path
    assert runner._working_directory(tmp_path / "own.ipynb") == tmp_path
    assert runner._working_directory(tmp_path / "mine" / "own.ipynb") == tmp_path / "mine"
