"""With no toggle set, a runtime changes nothing; settings of the process follow its toggles inside ``scope`` alone."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from uavlab.core.errors import DivergedError, FallbackWarning
from uavlab.runtime.grad_step import GradientStep
from uavlab.runtime.runtime import Runtime, process_flags
from uavlab.runtime.toggles import Toggles

CPU = torch.device("cpu")
SWITCHES: list[tuple[Toggles, Callable[[], Any], Any]] = [
    (Toggles(threads=3), torch.get_num_threads, 3),
    (Toggles(deterministic="on"), torch.are_deterministic_algorithms_enabled, True),
    (Toggles(precision="tf32"), lambda: torch.backends.cuda.matmul.fp32_precision, "tf32"),
]


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


def test_what_is_on_already_stays_on() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with process_flags(Toggles(deterministic="on"), CPU):
            pass
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_share_of_the_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    with process_flags(Toggles(memory_fraction=0.25), CPU):
        assert shares == [0.25]
    assert shares == [0.25, 1.0]
    with process_flags(Toggles(), CPU):
        pass
    assert len(shares) == 2
