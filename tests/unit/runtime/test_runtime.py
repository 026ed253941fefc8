"""With no toggle set, a runtime changes nothing; settings of the process follow its toggles inside ``scope`` alone."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from tests.support.fake_device import fake_device
from uavlab.core.errors import DivergedError, FallbackWarning
from uavlab.runtime.grad_step import GradientStep
from uavlab.runtime.ranks import Ranks
from uavlab.runtime.runtime import Runtime, not_with_ranks, process_flags
from uavlab.runtime.stage_timer import Monitor
from uavlab.runtime.toggles import Toggles

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SWITCHES: list[tuple[Toggles, Callable[[], Any], Any]] = [
    (Toggles(threads=3), torch.get_num_threads, 3),
    (Toggles(deterministic="on"), torch.are_deterministic_algorithms_enabled, True),
]


def tf32() -> list[bool]:
    """Return whether products, convolutions and recurrences of float32 are in tf32 on a GPU."""
    backends = torch.backends
    parts = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    return [part.fp32_precision == "tf32" for part in parts]


def test_every_seam_is_the_identity() -> None:
    def fn() -> None:
        pass

    rt = Runtime()
    assert rt.device == torch.device("cpu")
    assert rt.kernel(fn, "name") is rt.update(fn, "name") is rt.cycle(fn, list) is fn


def test_grad_builds_the_plain_gradient_step() -> None:
    step = Runtime().grad(torch.ones(2, 3), 0.25, 7.0)
    assert type(step) is GradientStep
    assert (step.clip, step.adams[0].param_groups[0]["lr"]) == (7.0, 0.25)
    assert torch.equal(step.parameter, torch.ones(2, 3))


def test_check_refuses_at_once() -> None:
    rt = Runtime()
    rt.check({"x": (torch.zeros(2), "R")})
    with pytest.raises(DivergedError, match="training: x of run 1 is inf; expected "):
        rt.check({"x": (torch.tensor([0, torch.inf]), "R")})


def test_scope_sets_threads_and_restores_them_however_it_ends() -> None:
    before = torch.get_num_threads()
    with Runtime(requested=Toggles(threads=before + 1)).scope():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), Runtime(requested=Toggles(threads=before + 2)).scope():  # noqa: PT012
        assert torch.get_num_threads() == before + 2
        raise KeyError
    assert torch.get_num_threads() == before


def test_falling_back_is_one_visible_line() -> None:
    with pytest.warns(FallbackWarning, match=r"^compile=off fell back: no compiler$"):
        Runtime().fall_back("compile", "no compiler")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FallbackWarning):
            Runtime().fall_back("compile", "no compiler")


@pytest.mark.parametrize(("toggles", "read", "inside"), SWITCHES)
def test_on_inside_and_restored_outside(toggles: Toggles, read: Callable[[], Any], inside: Any) -> None:
    before = read()
    with process_flags(toggles, CPU):
        assert read() == inside
    assert read() == before != inside
    with pytest.raises(KeyError), process_flags(toggles, CPU):
        raise KeyError
    assert read() == before


@pytest.mark.parametrize(("precision", "inside"), [("tf32", True), ("fp32", False), ("bf16", False)])
def test_float32_is_what_the_precision_says_in_every_operator(precision: Any, inside: bool) -> None:
    """torch's own default, restored outside, convolves in tf32."""
    assert tf32() == [False, True, True]
    with process_flags(Toggles(precision=precision), CUDA):
        assert tf32() == [inside] * 3
        assert torch.get_float32_matmul_precision() == ("high" if inside else "highest")  # a compiler reads it
        assert torch.backends.cudnn.allow_tf32 is inside
    with process_flags(Toggles(), CPU):
        assert tf32() == [False, True, True]
    assert tf32() == [False, True, True]
    assert torch.get_float32_matmul_precision() == "highest"


def test_convolutions_inherit_no_tf32_and_the_cpu_keeps_its_own() -> None:
    code = """
import torch
from uavlab.runtime.runtime import fp32_products
before = torch.backends.mkldnn.matmul.fp32_precision
with fp32_products("ieee"):
    pass
print(torch.backends.mkldnn.matmul.fp32_precision == before)
torch.backends.fp32_precision = "tf32"
with fp32_products("ieee"):
    print(torch.backends.cudnn.conv.fp32_precision)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["True", "ieee"]


def test_where_only_the_newer_settings_change_the_older_ones_cannot_be_read() -> None:
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError, match="mix of the legacy"):
            torch.get_float32_matmul_precision()
    finally:
        settings.fp32_precision = before


def test_on_a_gpu_nothing_is_checked_before_it_is_read() -> None:
    with fake_device() as waits:
        rt = Runtime(CUDA)
        rt.next_update()
        rt.check({"x": (torch.zeros(2, device="cuda") / 0, "R")})
        assert waits.total() == 0
        with pytest.raises(DivergedError, match="training: x is not finite or too large"):
            rt.read(1)
        assert dict(waits) == {"finite_check.py:read": 1}


def test_what_is_on_already_stays_on() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with process_flags(Toggles(deterministic="on"), CPU):
            pass
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_share_of_the_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[tuple[float, int | None]] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *share: shares.append(share))
    with process_flags(Toggles(memory_fraction=0.25), torch.device("cuda", 1)):
        assert shares == [(0.25, 1)]
    assert shares == [(0.25, 1), (1.0, 1)]
    with process_flags(Toggles(memory_fraction=0.5), torch.device("cuda")):  # torch 2.11 refuses it without a number
        assert shares[2:] == [(0.5, None)]
    with process_flags(Toggles(), CPU):
        pass
    assert len(shares) == 4


def timed(*args: Any) -> list[tuple[str, int]]:
    """Return stages and calls of a runtime's kernel ``act``, called in a compiled function and outside of it."""
    rt = Runtime(monitor=Monitor("cpu"))
    kernel = rt.time_stage(lambda x: x + 1, "acting")
    whole = torch.compile(lambda x: kernel(x) * 2, fullgraph=True, backend="eager")
    assert whole(torch.ones(1)).item() == 4
    assert kernel(torch.ones(1)).item() == 2
    assert rt.monitor is not None
    return [(row["name"], row["calls"]) for row in rt.monitor.read()]


def timed_by(monitor: Any, fn: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """Time a function where it is a part of compiled code, too."""

    def call(x: Any) -> Any:
        with monitor.scope(name):
            return fn(x)

    return call


class TestStages:
    def test_without_a_monitor_the_function_is_itself(self) -> None:
        def fn() -> None:
            pass

        assert Runtime().time_stage(fn, "acting") is fn

    def test_a_part_of_compiled_code_is_not_timed(self) -> None:
        assert timed() == [("acting", 1)]

    def test_timing_within_compiled_code_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Runtime, "time_stage", lambda rt, fn, name: timed_by(rt.monitor, fn, name))
        with pytest.raises(TorchDynamoException):
            timed()

    @pytest.mark.parametrize(("mode", "backend"), [("off", "eager"), ("default", "eager"), ("default", "none")])
    def test_a_gradient_step_in_compiled_code_is_one_stage(
        self, mode: str, backend: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where it is not compiled, or cannot be, it has stages of its own; a monitor changes no bit."""
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=BACKENDS[backend]))
        parameters = []
        for monitor in (None, Monitor("cpu")):
            rt = Runtime(requested=Toggles(update="batched", compile=mode), monitor=monitor)
            step = rt.grad(torch.ones(2, 3), 0.25, 7.0)
            loss = rt.kernel(lambda theta, x: ((theta * x).sum(), {}), "actor_loss", part=True)
            whole = rt.update(lambda x, step=step, loss=loss: step(loss, step.parameter, x), "learner")
            with warnings.catch_warnings(action="ignore", category=FallbackWarning):
                whole(torch.ones(2, 3))
            assert ("compile" in rt.fell_back) is (backend == "none")
            parameters.append(step.parameter.detach().clone())
        assert monitor is not None
        own = [] if (mode, backend) == ("default", "eager") else ["backward", "forward", "optimizer"]
        assert sorted(row["name"] for row in monitor.read()) == [*own, "update"]
        assert torch.equal(*parameters)


def refuse(graph: Any, inputs: Any) -> None:
    raise RuntimeError("no compiler")


BACKENDS: dict[str, Any] = {"eager": "eager", "none": refuse}


def test_several_ranks_fall_back_from_what_cannot_combine_their_gradients() -> None:
    toggles = Toggles(prefetch="on", priorities="mean", compile="default", update="batched")
    with pytest.warns(FallbackWarning, match="prefetch=on fell back: a thread that draws batches cannot compare"):
        rt = Runtime(requested=toggles, ranks=Ranks(0, 2))
    assert (rt.toggles.prefetch, rt.toggles.compile, rt.toggles.update) == ("off", "default", "batched")
    assert Runtime(requested=toggles).toggles == toggles


@pytest.mark.parametrize(
    ("toggles", "names"),
    [
        (Toggles(), set()),
        (Toggles(graph="cycle"), {"graph"}),
        (Toggles(prefetch="on"), set()),
        (Toggles(prefetch="on", priorities="mean"), {"prefetch"}),
        (Toggles(prefetch="overlap", priorities="mean"), set()),
    ],
)
def test_what_several_ranks_cannot_use(toggles: Toggles, names: set[str]) -> None:
    assert set(not_with_ranks(toggles)) == names
