"""A source that overrides only what it must has no replay and leaves a training loop alone."""

import torch
from torch import Tensor

from uavlab.core.protocols import Source
from uavlab.core.types import Batch, Update


class Plain(Source):
    def next(self) -> Batch:
        return Batch(None, torch.zeros(1, 1, dtype=torch.int64))

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass


def test_the_defaults_hold_nothing() -> None:
    source = Plain()
    source.before_cycle()
    source.after_cycle()
    source.feedback(source.next(), Update({}))
    source.load_segments(None)
    assert (source.tensors_to_check(), source.segments(["replay-0-8"]), source.rows()) == ({}, {}, {})
