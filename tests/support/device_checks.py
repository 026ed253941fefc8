"""What holds on every device: bodies of contract tests, which ``tools/gpu_check`` runs too, without pytest."""

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.support.fixtures_config import sizes
from tests.support.sync_debug import sync_debug
from uavlab.core.errors import FallbackWarning
from uavlab.core.types import leaves
from uavlab.envs.mapping import fusion
from uavlab.experiment import build
from uavlab.experiment.build import ENVIRONMENTS, LEARNERS
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.nets.cnn import StackedCNN
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import TOGGLES, Toggles, eager, resolve

NUMBERS = {"memory_fraction": 0.5, "micro_batches": 3}  # values of toggles that are numbers, else 2
CPU = torch.device("cpu")
EXACT = 1e-8  # of a tensor's norm, in float64 after six updates
SAME = {"rtol": 1e-4, "atol": 1e-2}  # float32 worlds (px, bits); whole numbers agree exactly
TF32 = 5e-5  # relative error of float32; products in TF32 have ten bits, 5e-4


def tasks() -> list[tuple[str, str]]:
    """Return every environment with every learner that fits it."""
    return [
        (name, learner)
        for name, environment in ENVIRONMENTS.items()
        for learner, entry in LEARNERS.items()
        if not entry.unsupported(environment.kind().spec)
    ]


def single_toggles(env: str, learner: str) -> Iterator[dict[str, Any]]:
    """Yield every value of each toggle that has an effect on a task, alone, where it differs from the default."""
    inapplicable, default = build.task(env, learner).inapplicable, eager()
    for name, toggle in TOGGLES.items():
        for value in toggle.choices or (NUMBERS.get(name, 2),):
            if name not in inapplicable and value != default.get(name, toggle.default):
                yield {name: value}


def exact_toggles(env: str, learner: str) -> Iterator[dict[str, Any]]:
    """Yield nothing changed, then the toggles whose updates are those of the reference up to rounding."""
    yield {}
    for changes in single_toggles(env, learner):
        (name,) = changes
        if TOGGLES[name].equality in ("exact", "rounding") and name not in ("compile", "memory_fraction", "threads"):
            yield changes


def small(env: str, learner: str | None, device: str, **changes: Any) -> Config:
    """Return small settings of a task on a device, over the default toggles."""
    own = known((env, learner), {"step_ms": 0.0, "followers": 2, "batch": 16})
    return configure(env, sizes(env, learner), own, {"learner": learner, "device": device}, changes)


def known(task: tuple[str, str | None], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are settings of a task."""
    names = configure(task[0], {"learner": task[1]}).values
    return {name: value for name, value in values.items() if name in names}


def train(config: Config, folder: Path | None = None) -> Run:
    """Train to the end; raise an ArithmeticError if a tensor is not finite. Fall-backs are in ``run.rt.fell_back``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        run = Run(config, folder)
        for _ in run.train():
            pass
    require_finite(run.learner)
    return run


def require_finite(learner: Any) -> None:
    """Raise an ArithmeticError if a tensor of a learner is not finite."""
    bad = [name for name, (tensor, _) in learner.tensors_to_check().items() if not tensor.isfinite().all()]
    if bad:
        raise ArithmeticError(f"not finite: {', '.join(bad)}")


def moved(tree: Any, device: torch.device | str) -> Any:
    """Return a copy of a tree of tensors on a device."""
    if isinstance(tree, Tensor):
        return tree.to(device, copy=True)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: moved(getattr(tree, f.name), device) for f in fields(tree)})
    if isinstance(tree, dict):
        return {key: moved(value, device) for key, value in tree.items()}
    return type(tree)(moved(each, device) for each in tree) if isinstance(tree, tuple | list) else tree


def update_error(env: str, learner: str, device: str, changes: Mapping[str, Any]) -> tuple[float, dict[str, str]]:
    """Compare the state after one and after six updates with that on a CPU, from equal batches and noise, in float64.

    Returns:
        The largest difference of a tensor, relative to its norm, and the toggles that fell back.
    """
    start, given, plain = cpu_updates(env, learner, changes if usable(changes, "cpu") else {})
    config, worst = small(env, learner, device, **changes), 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        rt = build.runtime(config.run, config.toggles)
        with rt.scope():
            own, _ = config.task.build(config, build.streams(config.run, rt.device, torch.float64), rt)
    with rt.scope():
        own.load_state_dict(moved(start, rt.device))
        for (batch, noise), state in zip(given, plain, strict=True):
            own.update(moved(batch, rt.device), moved(noise, rt.device))
            if state:
                worst = max(worst, distance(own.state_dict(), state))
    return worst, rt.fell_back


def cpu_updates(
    env: str, learner: str, changes: Mapping[str, Any], updates: int = 6
) -> tuple[Any, list[Any], list[Any]]:
    """Return a learner's first state, the batches and noise of its updates on a CPU, and the states to compare."""
    config = small(env, learner, "cpu", **changes)
    rt = build.runtime(config.run, config.toggles)
    rng = build.streams(config.run, rt.device, torch.float64)
    given, states = [], []
    with rt.scope():
        own, source = config.task.build(config, rng, rt)
        start = moved(own.state_dict(), CPU)
        for number in range(updates):
            batch = source.next()
            given.append((moved(batch, CPU), moved(own.update_noise(rng, batch.index.shape[1]), CPU)))
            own.update(*moved(given[-1], CPU))
            states.append(moved(own.state_dict(), CPU) if number in (0, updates - 1) else None)
    return start, given, states


def distance(state: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest difference of two states' tensors, relative to the norm of each."""
    if state.keys() != other.keys():
        raise KeyError(f"other tensors: {sorted(state.keys() ^ other.keys())}")
    pairs = ((state[name].double().cpu(), tensor.double()) for name, tensor in other.items())
    return max(float((a - b).norm() / b.norm().clamp_min(1e-12)) for a, b in pairs)


def different_leaves(env: Any, device: str, steps: int, worlds: int = 4) -> list[str]:
    """Step equal worlds with equal actions and noise on a CPU and on a device; return the leaves that differ.

    On a CPU the second side updates whole maps, as a GPU does.
    """
    dice, spec = torch.Generator().manual_seed(0), env.spec
    start = torch.rand(worlds, spec.initial_noise, generator=dice)
    here, there = env.initial(start), env.initial(start.to(device))
    for _ in range(steps):
        uniform = torch.rand(worlds, spec.agents, spec.action, generator=dice)
        action = (uniform[..., 0] * spec.choices).long() if spec.choices else 2 * uniform - 1
        noise = torch.rand(worlds, spec.step_noise, generator=dice)
        here = env.transition(here, action, noise)
        with patch.object(fusion, "NUMBA", False):
            there = env.transition(there, action.to(device), noise.to(device))
    pairs = zip(_numbers(env, here), _numbers(env, there), strict=True)
    return [name for (name, a), (_, b) in pairs if not torch.allclose(a, b, **SAME)]


def _numbers(env: Any, state: Any) -> list[tuple[str, Tensor]]:
    trees = {"state": state, "obs": env.observe(state), "terminated": env.terminated(state)}
    return [(name, leaf.double().cpu()) for key, tree in trees.items() for name, leaf in leaves(tree, key)]


def convolution_error(device: str, width: int) -> float:
    """Return the relative error of a network on maps in the default precision, against float64."""
    net, dice = StackedCNN(7, 11, width, (5, 4, 4), 64, 6), torch.Generator().manual_seed(0)
    theta = torch.rand(1, net.count, generator=dice) - 0.5
    maps = torch.rand(1, 64, 7, 11, 11, generator=dice)
    exact = net(theta.double(), maps.double())
    rt = Runtime(torch.device(device))
    with rt.scope():
        result = net(theta.to(device), maps.to(device)).cpu().double()
    return float((result - exact).abs().max() / exact.abs().max())


def waits_by_line(call: Callable[[], Any], calls: int, device: torch.device | str) -> Counter[str]:
    """Count the waits of the host for the device in ``calls`` calls, by the innermost two lines of the package."""
    counts: Counter[str] = Counter()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            own = [frame for frame in traceback.extract_stack() if "/uavlab/" in frame.filename]
            lines = [f"{frame.filename.rpartition('/uavlab/')[2]}:{frame.lineno}" for frame in own[:-3:-1]]
            counts[" < ".join(lines)] += 1

    with warnings.catch_warnings(), sync_debug("warn", device):
        warnings.simplefilter("always")
        warnings.showwarning = show
        for _ in range(calls):
            call()
    return counts


def kernels(call: Callable[[], Any], calls: int, device: torch.device | str) -> tuple[float, float]:
    """Return the kernels and copies of one call, and how long the device is busy (ms); on a CPU its operators."""
    cuda = torch.device(device).type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU, *[torch.profiler.ProfilerActivity.CUDA] * cuda]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profiler:
        for _ in range(calls):
            call()
        if cuda:
            torch.cuda.synchronize()
    kind = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
    rows = [row for row in profiler.key_averages() if row.device_type == kind]
    time = "self_device_time_total" if cuda else "self_cpu_time_total"
    return sum(row.count for row in rows) / calls, sum(getattr(row, time) for row in rows) / calls / 1e3


def usable(changes: Mapping[str, Any], device: str) -> bool:
    """Return whether toggles can be used on a device, with the default ones."""
    return not resolve(Toggles(**{**eager(), **changes}), torch.device(device))[1]
