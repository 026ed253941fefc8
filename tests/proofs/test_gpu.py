"""Every task on a GPU: worlds, updates and runs equal the CPU's. All bodies run on the CPU too.

Cases come from the registries. On a GPU every toggle is a case; on the CPU, where ``tests/contracts`` has them,
only the default ones are.
"""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.support import device_checks as checks
from tests.support.cuda_graph_emulator import Emulator
from tests.support.devices import DEVICES, GPU
from tests.support.fake_device import fake_device
from tests.support.sync_debug import PROTOTYPE, sync_debug
from uavlab import api
from uavlab.core.errors import FallbackWarning
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower
from uavlab.envs.mapping.env import Mapping
from uavlab.experiment.run import Run
from uavlab.learners.masac.masac import MASAC
from uavlab.nets.cnn import WIDE
from uavlab.runtime import cuda_graph
from uavlab.runtime import toggles as toggle_records
from uavlab.runtime.runtime import Runtime
from uavlab.training import training

SAME = ("slow_leader_follower",)  # another environment with a pause in each step
TASKS = [task for task in checks.tasks() if task[0] not in SAME]
TASK = pytest.mark.parametrize("task", TASKS, ids=str)
DEVICE = pytest.mark.parametrize("device", DEVICES)
GRAPH = pytest.mark.parametrize("graph", ["update", "cycle"])
WORLDS = {
    "moving obstacles": LeaderFollower(followers=4, obstacles=3, obstacle_speed=9.0, sight=2),
    "published": PUBLISHED,
    "fields": Mapping(cells=193, cell=50 / 193, truth="fields", starts="random", dropout=0.2),
}


def cases(toggles: Callable[[str, str], Iterator[dict[str, Any]]]) -> list[Any]:
    """Return every task with these toggles on a GPU, and without changes on the CPU; modes that tune are a soak."""
    rows: list[Any] = [pytest.param("cpu", task, {}, id=f"cpu-{task}") for task in TASKS]
    for task in TASKS:
        for changes in ({}, *filter(None, toggles(*task))):
            tunes = changes.get("compile", "default") != "default"
            marks = (*GPU, pytest.mark.soak) if tunes else GPU
            rows.append(pytest.param("cuda", task, changes, id=f"cuda-{task}-{changes}", marks=marks))
    return rows


@DEVICE
@pytest.mark.parametrize("name", WORLDS)
def test_worlds_agree_with_the_cpu(device: str, name: str) -> None:
    """Maps of the whole area, as on a GPU, are those of the footprints on the CPU."""
    assert checks.different_leaves(WORLDS[name], device, 15) == []


class Drifting(LeaderFollower):
    """The mutant: each step that is computed is a little shorter than the one before."""

    scale: ClassVar[list[float]] = [1.0]

    def transition(self, state: Any, action: Any, noise: Any) -> Any:
        self.scale[0] *= 0.999
        return super().transition(state, self.scale[0] * action, noise)


def test_worlds_that_differ_are_seen() -> None:
    assert "state.pos" in checks.different_leaves(Drifting(), "cpu", 15)


@pytest.mark.parametrize(("device", "task", "changes"), cases(checks.exact_toggles))
def test_updates_equal_the_cpus(device: str, task: tuple[str, str], changes: dict[str, Any]) -> None:
    error, fell_back = checks.update_error(*task, device, changes)
    assert error <= checks.EXACT
    assert not fell_back or not checks.usable(changes, device)


@TASK
def test_updates_from_other_numbers_are_seen(task: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: one batch that differs in the sixth digit."""
    start, given, states = checks.cpu_updates(*task, {})
    changed = checks.moved(given, "cpu")
    for leaf in [tensor for _, tensor in checks.leaves(changed[2][0].data) if tensor.is_floating_point()]:
        leaf.mul_(1 + 1e-6)
    monkeypatch.setattr(checks, "cpu_updates", lambda *_: (start, changed, states))
    assert checks.update_error(*task, "cpu", {})[0] > checks.EXACT


@pytest.mark.parametrize(("device", "task", "changes"), cases(checks.single_toggles))
def test_a_run_has_finite_numbers(device: str, task: tuple[str, str], changes: dict[str, Any]) -> None:
    run = checks.train(checks.small(*task, device, **changes))
    assert run.status == "complete"
    assert run.learner.parameters().device.type == device
    assert not run.rt.fell_back or not checks.usable(changes, device) or "maps" in changes, run.rt.fell_back


def test_numbers_that_are_not_finite_are_seen() -> None:
    bad = {"actor": (torch.tensor([1.0, float("nan")]), "R"), "critic": (torch.ones(2), "R")}
    with pytest.raises(ArithmeticError, match=r"not finite: actor$"):
        checks.require_finite(SimpleNamespace(tensors_to_check=lambda: bad))


@DEVICE
@TASK
def test_a_run_is_saved_resumed_and_judged(device: str, task: tuple[str, str], tmp_path: Path) -> None:
    run = Run(checks.small(*task, device), tmp_path / "run")
    for progress in run.train():
        if progress.number == 4:
            break
    again = Run.resume(tmp_path / "run")
    assert again.number == 4
    for _ in again.train():
        pass
    assert again.status == "complete"
    assert again.digest == checks.train(checks.small(*task, device)).digest or device == "cuda"
    scores = api.evaluate(tmp_path / "run", episodes=2, device=device)
    assert scores.device.type == device
    assert api.export(tmp_path / "run", tmp_path / "copy").is_dir()


@DEVICE
@pytest.mark.parametrize("width", [32, WIDE])
def test_convolutions_in_fp32_are_not_tf32(device: str, width: int) -> None:
    assert checks.convolution_error(device, width) < checks.TF32


def test_convolutions_in_tf32_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: float32 operands with the ten bits of TF32."""
    convolve = torch.nn.functional.conv2d

    def short(x: Tensor) -> Tensor:
        return x.view(torch.int32).bitwise_and(~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x

    monkeypatch.setattr(
        torch.nn.functional, "conv2d", lambda x, w, *rest, **how: convolve(short(x), short(w), *rest, **how)
    )
    assert checks.convolution_error("cpu", 32) > checks.TF32


@DEVICE
@TASK
def test_nothing_waits_in_a_cycle(device: str, task: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "check", lambda self, numbers: None)  # it may ask the device, on purpose
    run = Run(checks.small(*task, device, updates=60, evaluate_every=60))
    with run.rt.scope():
        steps = training(run.source, run.learner, run.rng, run.rt, 0, 60)
        for _ in range(10):
            next(steps)
        with sync_debug("error", device):
            for _ in range(40 if device == "cuda" else 4):  # long enough to refill the pool of fresh worlds
                next(steps)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that emulates graphs if the device is a CPU."""

    def emulate(device: str) -> None:
        if device == "cpu":
            monkeypatch.setattr(cuda_graph, "CudaBackend", Emulator)
            monkeypatch.setattr(toggle_records, "_cuda", lambda what, device: None)
            monkeypatch.setattr("uavlab.envs.mapping.fusion.NUMBA", False)

    return emulate


def graphed(device: str, graph: str, task: tuple[str, str] = TASKS[0], **changes: Any) -> Run:
    """Train with this kind of graph, on a GPU long enough to refill the pool of fresh worlds."""
    more = {"updates": 60 if device == "cuda" else 8, "evaluate_every": 4, "graph": graph}
    return checks.train(checks.small(*task, device, **more, **changes))


@DEVICE
@GRAPH
@TASK
@pytest.mark.filterwarnings("ignore:mapping. numba")
def test_a_graph_computes_what_single_launches_do(
    device: str, graph: str, task: tuple[str, str], graphs: Callable[[str], None]
) -> None:
    graphs(device)
    kinds: list[dict[str, Any]] = [{}]
    if device == "cuda" and task == TASKS[0]:
        kinds += [{"runs": 3, "world_steps": 2}, {"priorities": "mean"}]
    for changes in kinds:
        plain, fast = graphed(device, "off", task, **changes), graphed(device, graph, task, **changes)
        assert fast.rt.fell_back == {}
        assert fast.rng.state_dict().keys() == plain.rng.state_dict().keys()
        for name, state in plain.rng.state_dict().items():
            assert torch.equal(state, fast.rng.state_dict()[name]), name  # the same numbers were drawn
        assert checks.distance(fast.learner.state_dict(), checks.moved(plain.learner.state_dict(), "cpu")) < 1e-3


@DEVICE
@GRAPH
def test_nothing_waits_in_a_loop_of_graphs(device: str, graph: str, graphs: Callable[[str], None]) -> None:
    graphs(device)
    run = Run(checks.small(*TASKS[0], device, graph=graph, updates=60, evaluate_every=60))
    with run.rt.scope():
        steps = training(run.source, run.learner, run.rng, run.rt, 0, 60)
        for _ in range(10):  # the first rows, warm-up and capture
            next(steps)
        with sync_debug("error", device):
            for _ in range(40 if device == "cuda" else 4):  # long enough to refill the pool of fresh worlds
                next(steps)
    assert run.rt.fell_back == {}


@DEVICE
@GRAPH
def test_what_cannot_be_captured_falls_back_with_the_same_digest(
    device: str, graph: str, graphs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs(device)
    plain, update = graphed(device, "off"), MASAC._update

    def asks(self: MASAC, batch: Any, noise: Any) -> Any:
        result = update(self, batch, noise)
        assert result.metrics["target"].isfinite().all()  # waits for the value
        return result

    monkeypatch.setattr(MASAC, "_update", asks)
    fast = graphed(device, graph)
    assert "graph" in fast.rt.fell_back
    assert fast.digest == plain.digest


@pytest.mark.filterwarnings("ignore:maps=", "ignore:'pin_memory' argument")
@TASK
def test_the_bodies_for_a_gpu_keep_to_their_device(task: tuple[str, str]) -> None:
    """On a fake GPU, which refuses operators on tensors of several devices."""
    with fake_device(strict=False):
        assert checks.update_error(*task, "cuda", {})[0] <= checks.EXACT
        env = checks.small(*task, "cuda").env
        assert not hasattr(env, "transition") or checks.different_leaves(env, "cuda", 5) == []


@pytest.fixture
def prototype(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace torch's function, which a build for CPUs lacks, by one that warns as it does on a GPU."""
    modes: list[str] = []

    def change(mode: str) -> None:
        modes.append(mode)
        warnings.warn(f"{PROTOTYPE} feature and does not yet detect all synchronizing operations", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", change)
    return modes


def test_the_mode_for_waits_is_set_and_reset_without_its_warning(prototype: list[str]) -> None:
    with pytest.raises(UserWarning, match=PROTOTYPE):
        torch.cuda.set_sync_debug_mode("error")
    prototype.clear()
    with pytest.raises(ZeroDivisionError), sync_debug("error"):
        raise ZeroDivisionError
    with pytest.raises(UserWarning, match="another"), sync_debug("warn"):
        warnings.warn("another", stacklevel=1)
    assert prototype == ["error", "default", "warn", "default"]
    with sync_debug("error", "cpu"):
        assert len(prototype) == 4


def test_no_other_test_sets_the_mode_for_waits() -> None:
    root = Path(__file__).parents[1]
    files = [path for path in root.rglob("*.py") if "set_sync_debug_mode(" in path.read_text(encoding="utf-8")]
    assert {path.name for path in files} == {"sync_debug.py", "test_gpu.py"}


def test_waits_are_counted_by_line(prototype: list[str]) -> None:
    learner = checks.small(*TASKS[0], "cpu")

    def call() -> None:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", FallbackWarning, stacklevel=1)

    counts = checks.waits_by_line(call, 3, "cuda")
    assert sum(counts.values()) == 3
    assert checks.waits_by_line(lambda: learner, 3, "cpu") == {}
