"""A collector that overrides nothing has no replay and leaves a training loop alone."""

import torch

from uavlab.collectors.base import CollectorBase
from uavlab.core.types import Batch, Update


def test_the_defaults_hold_nothing() -> None:
    collector = CollectorBase()
    collector.before_cycle()
    collector.after_cycle()
    collector.feedback(Batch(None, torch.zeros(1, 1, dtype=torch.int64)), Update({}))
    collector.load_segments(None)
    assert (collector.tensors_to_check(), collector.segments(["replay-0-8"]), collector.rows()) == ({}, {}, {})
