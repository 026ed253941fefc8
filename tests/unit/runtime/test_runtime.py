"""With no toggle set, a runtime changes nothing and leaves the process unchanged."""

import pytest
import torch

from uavlab.core.errors import DivergedError
from uavlab.runtime.grad_step import GradientStep
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles


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
