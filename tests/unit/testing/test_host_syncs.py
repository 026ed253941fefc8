"""Lines at which an environment makes a GPU wait, on toys that do so in one place each."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import uavlab as ul
from tests.unit.testing.test_environment import Spots, Toy
from uavlab.testing import check_env


def doubled(reward: Tensor) -> Tensor:
    return reward * torch.tensor([2.0, 2.0])


class Constant(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return super().reward(state, action, after) * ul.constant((2.0, 2.0), state.place.device, state.place.dtype)


class Copied(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return super().reward(state, action, after) * torch.tensor([2.0, 2.0])


class CopiedElsewhere(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return doubled(super().reward(state, action, after))


class Rows(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return super().reward(state, action, after) * state.place.new_tensor([2.0, 2.0])


class Read(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return super().reward(state, action, after) * (1 if (action > 2).any() else 2)


class Item(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return super().reward(state, action, after) * (0 * action.max().item() + 2)


class Selected(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return super().reward(state, action, after) * 2 + 0 * action[action > 2].sum()


class Assigned(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        reward = super().reward(state, action, after) * 2
        reward[reward > 9] = reward[reward > 9] - 1
        return reward


class Listed(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return super().reward(state, action, after)[:, [0, 1]] * 2


class Filled(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        reward = super().reward(state, action, after) * 2
        reward[reward > 9] = 9.0
        reward[:, 0] = 1.0
        return reward


COPY = "copies numbers from the host (use uavlab.constant)"
VALUE = "reads a value (use torch.where)"
SHAPE = "has a shape that depends on values (use torch.where)"
LINES = {  # the line of the method that waits, counted from its class, and why
    Copied: (2, COPY),
    CopiedElsewhere: (2, COPY),
    Rows: (2, COPY),
    Read: (2, VALUE),
    Item: (2, VALUE),
    Selected: (2, SHAPE),
    Assigned: (3, SHAPE),
    Listed: (2, COPY),
}


@pytest.mark.parametrize("kind", LINES, ids=lambda kind: kind.__name__)
def test_a_line_that_waits_is_a_warning(kind: type) -> None:
    at, why = LINES[kind]
    report = check_env(kind(), worlds=3, steps=9)
    line = f"test_host_syncs.py:{inspect.getsourcelines(kind)[1] + at} {why}"
    assert report.syncs == (line,)
    assert str(report).splitlines()[-1] == f"  WARNING   {line}: a GPU waits, and CUDA graphs cannot hold it"


@pytest.mark.parametrize("kind", [Toy, Constant, Filled])
def test_numbers_that_are_on_the_device_are_no_warning(kind: Callable[[], Toy]) -> None:
    report = check_env(kind(), worlds=3, steps=9)
    assert report.syncs == ()
    assert "WARNING" not in str(report)
