"""Settings of the process follow the toggles inside the context, and are restored after it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from uavlab.runtime.process_flags import process_flags
from uavlab.runtime.toggles import Toggles

CPU = torch.device("cpu")
SWITCHES: list[tuple[Toggles, Callable[[], Any], Any]] = [
    (Toggles(threads=3), torch.get_num_threads, 3),
    (Toggles(deterministic="on"), torch.are_deterministic_algorithms_enabled, True),
    (Toggles(precision="tf32"), lambda: torch.backends.cuda.matmul.fp32_precision, "tf32"),
]


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
