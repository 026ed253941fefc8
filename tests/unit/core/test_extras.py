"""Optional packages are named with their extra where they are missing, and nothing else asks for them."""

import ast
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from tests.support.cli_runner import uavlab
from tests.support.fixtures_mapping import SMALL
from uavlab.core.errors import FallbackWarning, MissingPackageError, UavlabError
from uavlab.core.extras import install_command, load_lab, require
from uavlab.envs.mapping import fusion, implementation
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.interop import to_gymnasium, to_pettingzoo, to_torchrl
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles
from uavlab.storage.metrics_log import Recorder
from uavlab.telemetry.logs.tables import read_parquet
from uavlab.telemetry.logs.ulog import read_ulog

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {
    "ruamel.yaml": {"ruamel"},
    "opencv-python-headless": {"cv2"},
    "pillow": {"PIL"},
    "mlflow-skinny": {"mlflow"},
    "ipykernel": {"ipykernel", "IPython"},
    "jupyterlab": {"jupyterlab", "nbformat", "nbclient", "nbconvert", "jinja2", "jupyter_client", "traitlets"},
}


def modules(extra: str | None) -> set[str]:
    """Return the top modules that the base (None) or an extra brings."""
    texts = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    names = (Requirement(text).name for text in texts)
    return {each for name in names for each in IMPORTED_AS.get(name, {name.replace("-", "_")})}


def unguarded(source: str, path: str) -> Iterator[str]:
    """Yield imports that the base does not satisfy, unless the module or its package requires the extra first."""
    guarded = {extra for extra in PROJECT["optional-dependencies"] if f'require("{extra}"' in source}
    guarded |= {"lab"} if path.startswith("uavlab_lab/") else set()  # ``load_lab`` names it
    guarded |= {"external", "torchrl"} if path.startswith("interop/") else set()  # required by its functions
    guarded |= {"tensorboard"} if 'find_spec("tensorboard")' in source else set()
    guarded |= {"mapping"} if path == "envs/mapping/fusion_numba.py" else set()  # imported where numba is known
    outside = ("workers/", "uavlab_lab/waiting.py")
    guarded |= {"external"} if path.startswith(outside) else set()  # required by the names of environments
    guarded |= {"wandb", "mlflow"} if path == "storage/metrics_log.py" else set()  # required by their names
    allowed = modules(None).union({"uavlab", "uavlab_lab"}, *map(modules, guarded), sys.stdlib_module_names)
    for node in ast.walk(ast.parse(source)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.partition(".")[0] not in allowed or (name == "torch.utils.tensorboard" and not guarded):
                yield f"{path}:{node.lineno}: {name}"


def test_no_module_needs_more_than_the_base_unless_it_asks_first() -> None:
    sources = {str(file.relative_to(ROOT / "uavlab")): file.read_text() for file in ROOT.glob("uavlab/**/*.py")}
    lab = ROOT / "notebooks"
    sources |= {str(file.relative_to(lab)): file.read_text() for file in lab.glob("uavlab_lab/**/*.py")}
    assert [each for path, source in sources.items() for each in unguarded(source, path)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("telemetry/x.py", "def f():\n    from pyarrow import parquet"),
        ("telemetry/x.py", 'require("lab", "x", "plotly")\nimport pyulog'),
        ("experiment/x.py", "import plotly"),
        ("envs/x.py", "import scipy"),
        ("storage/x.py", "from torch.utils.tensorboard import SummaryWriter"),
    ],
)
def test_an_unguarded_import_is_caught(path: str, source: str) -> None:
    assert len(list(unguarded(source, path))) == 1
    allowed = 'import torch, json\nfrom uavlab.core import rng\nrequire("lab", "x")\nimport plotly'
    assert list(unguarded(allowed, path)) == []


def test_what_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require("lab", "figures", "plotly", "json")
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingPackageError) as caught:
        require("lab", "figures", "plotly", "json", "no_such_package")
    assert str(caught.value) == 'figures: needs plotly, no_such_package, not installed; pip install "uavlab[lab]".'
    assert isinstance(caught.value, UavlabError)
    assert isinstance(caught.value, ImportError)


def test_the_package_beside_the_notebooks_is_found_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_lab("seeds", "report").__name__ == "uavlab_lab.seeds"
    with pytest.raises(ModuleNotFoundError, match=r"uavlab_lab\.mistyped"):  # a fault of ours names no extra
        load_lab("mistyped", "report")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **names: ())
    with pytest.raises(MissingPackageError, match=r"^report: needs the package of the notebooks, not installed; pip"):
        load_lab("seeds", "report")


def host_mapping(path: Path) -> None:
    implementation(SMALL, Runtime(torch.device("cpu"), Toggles(maps="host")))


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("pyarrow", "telemetry", lambda path: read_parquet(path, ())),
        ("pyulog", "telemetry", read_ulog),
        ("cv2", "mapping", host_mapping),
        ("cv2", "mapping", lambda path: HostMapping()),
        ("pettingzoo", "external", lambda path: to_pettingzoo("spread")),
        ("gymnasium", "external", lambda path: to_pettingzoo("spread")),
        ("gymnasium", "external", lambda path: to_gymnasium("spread")),
        ("torchrl", "torchrl", lambda path: to_torchrl("spread")),
        ("tensordict", "torchrl", lambda path: to_torchrl("spread")),
    ],
)
def test_each_use_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, extra: str, use: Callable[[Path], None]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf'{package}, not installed; pip install "uavlab\[{extra}\]"'):
        use(tmp_path / "log")


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("plotly", ["fly", str(ROOT / "figures" / "tour"), "--out", "flight.html"]),
        ("papermill", ["notebook", "tour"]),
        ("jupyterlab", ["lab"]),
    ],
)
def test_commands_refuse_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("uavlab_lab")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    ended = uavlab(*arguments)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert ended.err.startswith("MissingPackageError: ")
    assert f"needs {package}" in ended.err
    assert install_command("lab") in ended.err
    assert list(tmp_path.iterdir()) == []


def test_without_numba_maps_are_fused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.rand(2, SMALL.spec.initial_noise), torch.rand(2, SMALL.spec.step_noise)
    action = torch.zeros(2, SMALL.uavs, dtype=torch.int64)
    fast = SMALL.transition(SMALL.initial(noise[0]), action, noise[1])
    monkeypatch.setattr(fusion, "NUMBA", False)
    monkeypatch.setattr(fusion, "fuse_footprints", None)
    slow = SMALL.transition(SMALL.initial(noise[0]), action, noise[1])
    assert torch.equal(fast.logits, slow.logits)
    torch.testing.assert_close(fast.mean, slow.mean)
    with pytest.warns(FallbackWarning, match="numba is not installed"):
        implementation(SMALL, Runtime(torch.device("cpu"), Toggles(maps="overwritten")))
    with warnings.catch_warnings():
        implementation(SMALL, Runtime(torch.device("meta"), Toggles(maps="device")))


def test_without_tensorboard_the_metrics_are_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    recorder = Recorder(tmp_path)
    with pytest.warns(
        UserWarning, match=r'^TensorBoard: not installed; pip install "uavlab\[tensorboard\]"; no more rows for it'
    ):
        recorder.append(1, 0.0, {"loss": 1.0})
    recorder.append(2, 0.0, {"loss": 2.0})  # one warning only
    recorder.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert not list(tmp_path.glob("events.*"))
