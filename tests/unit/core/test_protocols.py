"""The defaults of sources and learners: no replay, and a state of gradient steps and tensors."""

from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Collector
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Update
from uavlab.learners.learner import Learner
from uavlab.runtime.runtime import Runtime


class Plain(Collector):
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


class Pupil(Learner):
    """Two runs of two networks with three parameters each; it also keeps streams, an alias and a count."""

    def __init__(self, first: float = 1.0) -> None:
        self.runs, self.rng, self.name = 2, Streams([0, 1]), "pupil"
        self.target = torch.full((2, 5), first)
        self.actor = Runtime().grad(torch.full((4, 3), first), 0.1, None)
        self.alias = self.actor.parameter
        self.count = torch.tensor(int(first))
        self.table = torch.full((3,), first)

    def policy(self, spec: Any, explore: bool = False) -> Any:
        raise NotImplementedError

    def update(self, batch: Batch, noise: Any) -> Update:
        raise NotImplementedError


ACTOR = [f"actor.{name}" for name in ("parameter", "step", "exp_avg", "exp_avg_sq")]


def test_a_learners_state_is_its_gradient_steps_and_tensors() -> None:
    pupil = Pupil()
    assert list(pupil.state_dict()) == [*ACTOR, "target", "count", "table"]  # no streams, and no tensor twice
    assert pupil.parameters().shape == (2, 2, 3)
    assert pupil.update_noise(None, 5) is None
    axes = {name: (tuple(tensor.shape), lead) for name, (tensor, lead) in pupil.tensors_to_check().items()}
    moments = {name: ((2, 2, 3), "R K") for name in ACTOR if name != "actor.step"}
    assert axes == {**moments, "target": ((2, 5), "R"), "table": ((3,), "")}
    assert list(pupil.tensors_to_check(Update({"loss": torch.zeros(2)}))) == ["loss"]


def test_a_learner_continues_where_its_state_was_taken() -> None:
    old, new = Pupil(2.0), Pupil(1.0)
    matrix = new.actor.parameter
    new.load_state_dict({name: tensor.clone() for name, tensor in old.state_dict().items()})
    assert new.actor.parameter is matrix  # in place, where a policy and a CUDA graph read it
    for name, tensor in new.state_dict().items():
        assert torch.equal(tensor, old.state_dict()[name]), name
    copy = new.parameters()
    new.actor.parameter.detach().zero_()
    assert copy.unique().tolist() == [2.0]


def test_without_a_gradient_step_there_are_no_parameters() -> None:
    pupil = Pupil()
    del pupil.actor
    with pytest.raises(ConfigError, match="Pupil: no attribute is a gradient step"):
        pupil.parameters()
    pupil.actor = Runtime().grad([[torch.zeros(2), torch.zeros(3)]], 0.1, None)
    with pytest.raises(ConfigError, match="Pupil: no attribute is a gradient step of one matrix"):
        pupil.parameters()
