"""Every rung of the ladder, trained side by side from equal batches and noise in float64."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tests.support.plain_collector import collector
from uavlab.collectors.off_policy import ReplayConfig
from uavlab.collectors.world_source import survey
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Scale, Update
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.learners.masac import FORMS
from uavlab.learners.masac.masac import MASAC, MASACConfig
from uavlab.replay.buffer import Returns
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles, with_toggles

Kind = Callable[[MASACConfig, EnvSpec, Scale, Streams, Runtime], MASAC]


def toggled(kind: Kind, **values: Any) -> Kind:
    """Return a kind of learner that is built with some toggles changed."""

    def build(config: MASACConfig, spec: EnvSpec, inputs: Scale, rng: Streams, rt: Runtime) -> MASAC:
        changed = dataclasses.replace(rt, requested=with_toggles(rt.requested, values))
        return kind(config, spec, inputs, rng, changed)

    return build


KINDS: dict[str, Kind] = {name: toggled(form, update=name, acting="batched") for name, form in FORMS.items()}
ROWS = 16


class Side:
    """Learners of several kinds with equal initial parameters, and the source of their batches."""

    def __init__(
        self,
        kinds: dict[str, Kind],
        agents: int,
        share: bool = False,
        seeds: tuple[int, ...] = (0,),
        weighted: bool = False,
        toggles: Toggles | None = None,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        env: Any = None,
        **settings: Any,
    ) -> None:
        self.env, self.weighted = env or LeaderFollower(followers=agents - 1), weighted
        config, place = MASACConfig(hidden=16, share=share, **{"n_step": 1, **settings}), torch.device(device)
        rt = Runtime(place, toggles or Toggles(optimizers="one", adam="fused"))
        self.learners = {}
        for name, kind in kinds.items():
            self.rng = Streams(seeds, place, dtype)
            self.learners[name] = kind(config, self.env.spec, survey(self.env, self.rng), self.rng, rt)
        policy = next(iter(self.learners.values())).policy(self.env.spec)
        replay = ReplayConfig(worlds=8, batch=ROWS, capacity=512, learning_starts=64)
        returns = Returns(config.n_step, config.gamma, replay.worlds) if config.n_step > 1 else None
        self.source = collector(self.env, policy, replay, self.rng, Runtime(place), returns=returns)

    def next(self) -> tuple[Batch, Any]:
        """Return a batch, and the noise of an update from it."""
        batch = self.source.next()
        if self.weighted:
            batch = dataclasses.replace(batch, weight=self.rng.uniform("weight", ROWS))
        return batch, next(iter(self.learners.values())).update_noise(self.rng, ROWS)

    def train(self, updates: int, spoil: Callable[[Batch], Batch] = lambda batch: batch) -> dict[str, Update]:
        """Update all learners from equal batches, the last one's changed by ``spoil``; return their last updates."""
        last = list(self.learners)[-1]
        for _ in range(updates):
            batch, noise = self.next()
            results = {
                name: learner.update(spoil(batch) if name == last else batch, noise)
                for name, learner in self.learners.items()
            }
        return results


def all_numbers(learner: MASAC, update: Update) -> dict[str, tuple[Tensor, str]]:
    """Return every tensor of a learner and of its last update, in rows that all kinds share."""
    assert update.td_error is not None
    return {**learner.tensors_to_check(), **learner.tensors_to_check(update), "td_error": (update.td_error, "R N A")}


def difference(mine: dict[str, tuple[Tensor, str]], other: dict[str, tuple[Tensor, str]]) -> float:
    """Return the largest difference of any tensor, relative to its largest number."""
    assert [(k, v.shape, axes) for k, (v, axes) in mine.items()] == [
        (k, v.shape, axes) for k, (v, axes) in other.items()
    ]
    pairs: Iterable[tuple[Tensor, Tensor]] = ((mine[name][0], other[name][0]) for name in mine)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def check_rungs_agree(
    agents: int, updates: int, share: bool, seeds: tuple[int, ...], weighted: bool, env: Any = None, **settings: Any
) -> None:
    """Check that every kind of the update equals ``batched``, from equal noise in float64."""
    side = Side(KINDS, agents, share, seeds, weighted, env=env, **settings)
    results = side.train(updates)
    reference = all_numbers(side.learners["batched"], results["batched"])
    for name in KINDS:
        assert difference(all_numbers(side.learners[name], results[name]), reference) <= 1e-9, name
