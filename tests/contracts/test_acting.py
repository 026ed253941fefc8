"""Every value of every toggle is seen to act: a run that serves it executes something else than without it.

A toggle whose record stays while the code at its seam is lost equals plain in every comparison of results. Here runs
are compared by what they execute, ``tests/support/execution_trace.py``; values that need a GPU, on a device that is
none. A new toggle is held to it as soon as it is registered.
"""

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, Literal

import pytest
import torch

from tests.contracts.test_equality import CPU, NUMBERS, config, tasks
from tests.support.execution_trace import Trace, execution_trace
from tests.support.fake_device import Immediately, fake_device
from tests.support.registries import registered
from uavlab.collectors import world_source
from uavlab.experiment import build
from uavlab.learners.ppo import ppo
from uavlab.replay import prefetch
from uavlab.runtime import cuda_graph, grad_step, runtime, wrappers
from uavlab.runtime.toggles import EAGER, TOGGLES, Toggle, Toggles, register, resolve
from uavlab.telemetry import flights
from uavlab.training import training

WARM_UP, UPDATES = 2, 4  # direct calls before a capture, and updates: one replay at least
SMALL = {
    "leader_follower": {"followers": 1, "learning_starts": 8},
    "assignment": {"uavs": (2, 2), "targets": (1, 1), "epochs": 1, "minibatches": 1, "rollout_steps": 2},
}
ONE_PROGRAM = {("compile", "default", "reduce-overhead")}  # as the toggle's record says
BESIDE = {"scaler": {"precision": "fp16"}}  # values of other toggles, without which a toggle has no effect
SERVED_BY = {("recompute", "layers"): ("assignment", "mappo")}  # where the first learner that serves a toggle does not
MARKS = {  # steps without which a value has not acted, where others follow from it
    ("adam", "foreach"): r"aten\._foreach_",
    ("adam", "fused"): r"aten\._fused_adam",
    ("precision", "tf32"): "flags .*'float32 products': 'high'",
    ("precision", "bf16"): r"aten\.(bmm|mm|addmm|baddbmm)\b.*torch\.bfloat16.*->",
    ("precision", "fp16"): r"aten\.(bmm|mm|addmm|baddbmm)\b.*torch\.float16.*->",
    ("compile", "default"): "compile act ",
    ("compile", "reduce-overhead"): "compile act ",
    ("compile", "max-autotune"): "compile act .*max-autotune",
    ("graph", "update"): "graph of",
    ("graph", "cycle"): "graph of",
    ("placement", "pinned"): "pinned",
    ("loader", "stream"): r"aten\.index.*rows of a file",
    ("prefetch", "on"): "thread",
    ("memory_fraction", 0.5): "memory 0.5",
    ("threads", 2): "flags .*'threads': 2",
    ("deterministic", "on"): "flags .*'deterministic': True",
}


def values(toggle: Toggle) -> list[Any]:
    """Return the values of a toggle that differ from plain, one for a number."""
    return [value for value in toggle.choices or (NUMBERS.get(toggle.name, 2),) if value != toggle.default]


CASES = [pytest.param(name, value, id=f"{name}={value}") for name in TOGGLES for value in values(TOGGLES[name])]


def base(name: str) -> dict[str, Any]:
    """Return the toggles beside one; those of the set ``eager`` are compared with plain, others with that set."""
    return BESIDE.get(name, {}) if TOGGLES[name].eager is not None else {**EAGER, **BESIDE.get(name, {})}


def served_by(name: str, value: Any) -> tuple[str, str]:
    """Return an environment and a learner on which a toggle has an effect; those first that take least time."""
    fits = [case.values for case in tasks(own_code=False) if not case.marks]
    fits = sorted(fits, key=lambda fit: fit != ("leader_follower", "masac"))
    return SERVED_BY.get((name, value)) or next(fit for fit in fits if name not in build.task(*fit).inapplicable)


def execute(env: str, learner: str, fake: bool, **toggles: Any) -> Trace:
    """Build and train a learner for some updates; return what was executed."""
    with fake_device(strict=False) if fake else nullcontext():
        fill_caches(env, learner, fake, **toggles)
        with execution_trace() as trace:
            rt, rng, trained, source = built(env, learner, fake, **toggles)
            with rt.scope():
                for _ in training(source, trained, rng, rt, 0, UPDATES if fake else UPDATES // 2):
                    pass
    assert not toggles.keys() & rt.fell_back.keys(), rt.fell_back
    return trace


def built(env: str, learner: str, fake: bool, **toggles: Any) -> tuple[runtime.Runtime, Any, Any, Any]:
    own = {**SMALL.get(env, {}), "learner": learner, "device": "cuda" if fake else "cpu"}
    return build.assemble(config(env, {**own, **toggles}))


@cache
def fill_caches(env: str, learner: str, fake: bool, **toggles: Any) -> None:
    """Build a run before any trace, so that the first one executes what later ones do."""
    built(env, learner, fake, **toggles)


executed = cache(execute)


def needs_gpu(name: str, value: Any) -> bool:
    return bool(resolve(Toggles(**{**base(name), name: value}), CPU)[1])


def check_acts(name: str, value: Any, run: Callable[..., Trace] = executed) -> None:
    """Compare what a run executes with a toggle's value, and with plain and its other values of the same device."""
    beside, where, fake, plain = base(name), served_by(name, value), needs_gpu(name, value), TOGGLES[name].default
    trace = run(*where, fake, **{**beside, name: value})
    alike = [each for each in values(TOGGLES[name]) if (served_by(name, each), needs_gpu(name, each)) == (where, fake)]
    for another in (plain, *(each for each in alike if each != value)):
        same = (name, *sorted((str(value), str(another)))) in ONE_PROGRAM
        others = executed(*where, fake, **{**beside, name: another})
        assert (trace.steps == others.steps) is same, f"{name}={value} executes what {name}={another} does"
    mark = re.compile(MARKS.get((name, value), ""))
    assert any(map(mark.match, trace.text())), f"{name}={value} executes no {mark.pattern}"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_source, "SURVEY_STEPS", 2)
    monkeypatch.setattr(cuda_graph, "WARM_UP", WARM_UP)
    monkeypatch.setattr(ppo, "LARGE", 0)
    monkeypatch.setattr(flights, "simulate", simulated)


SIMULATE = flights.simulate


@cache
def simulated(task: Any) -> list[Any]:
    """Simulate flights outside of any trace, so that the first run executes what later ones do."""
    with torch.utils._python_dispatch._disable_current_modes():
        return list(SIMULATE(task))


@pytest.mark.filterwarnings("ignore:maps=", "ignore:'pin_memory' argument")
@pytest.mark.parametrize(("name", "value"), CASES)
def test_each_value_of_a_toggle_is_seen_to_act(name: str, value: Any) -> None:
    check_acts(name, value)


@pytest.fixture
def loses(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes every reader of a toggle see plain, while its record says otherwise."""

    def lose(name: str) -> None:
        default = property(lambda toggles: TOGGLES[name].default)
        monkeypatch.setattr(Toggles, name, default, raising=False)

    return lose


@pytest.mark.filterwarnings("ignore:maps=", "ignore:'pin_memory' argument")
@pytest.mark.parametrize("name", list(TOGGLES))
def test_a_toggle_whose_seam_is_lost_is_seen(name: str, loses: Callable[[str], None]) -> None:
    value = values(TOGGLES[name])[-1]
    check_acts(name, value)
    loses(name)
    assert vars(Toggles(**{name: value}))[name] == value
    with pytest.raises(AssertionError, match=f"^{name}={value} executes"):
        check_acts(name, value, execute)


def same(fn: Callable, *args: Any) -> Callable:
    return fn


def nothing(*args: Any) -> Any:
    return nullcontext()


LOST: list[tuple[str, Any, Any, str, Callable]] = [
    ("precision", "tf32", runtime, "fp32_products", nothing),
    ("precision", "bf16", wrappers, "autocast", same),
    ("compile", "default", wrappers, "compile_function", same),
    ("graph", "update", runtime, "GraphedFunction", same),
    ("graph", "cycle", runtime, "GraphedFunction", same),
    ("recompute", "on", wrappers, "recompute_activations", same),
    ("memory_fraction", 0.5, runtime, "process_flags", nothing),
    ("threads", 2, runtime, "process_flags", nothing),
    ("deterministic", "on", runtime, "process_flags", nothing),
    ("micro_batches", 3, grad_step.Microbatcher, "__init__", lambda self, *args: FIRST(self, 1, *args[1:])),
    ("prefetch", "on", prefetch, "ThreadPoolExecutor", Immediately),
    ("adam", "fused", torch.optim, "Adam", lambda *args, fused, **more: ADAM(*args, **more)),
]
"""Values with functions at their seams, and what takes the functions' place."""
FIRST, ADAM = grad_step.Microbatcher.__init__, torch.optim.Adam


@pytest.mark.parametrize(("name", "value", "place", "function", "lost"), LOST)
def test_a_function_that_is_lost_at_a_seam_is_seen(
    name: str, value: Any, place: Any, function: str, lost: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_acts(name, value)
    monkeypatch.setattr(place, function, lost)
    with pytest.raises(AssertionError, match=f"^{name}={value} executes"):
        check_acts(name, value, execute)


def flush(fn: Callable, value: str, name: str) -> Callable:
    def call(*args: Any) -> Any:
        torch.set_flush_denormal(True)
        try:
            return fn(*args)
        finally:
            torch.set_flush_denormal(False)

    return call


@pytest.mark.parametrize("wrap", [flush, None])
def test_a_toggle_that_is_new_must_act(wrap: Callable | None) -> None:
    with registered():
        register(Toggle("denormals", Literal["kept", "flushed"], "Tiny numbers.", "kernel", "rounding", wrap=wrap))
        with nullcontext() if wrap else pytest.raises(AssertionError, match=r"^denormals=flushed executes"):
            check_acts("denormals", "flushed", execute)
