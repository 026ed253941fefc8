"""The fixed-length on-policy collector: each batch is the next T steps of worlds that go on from batch to batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from uavlab.collectors.world_source import NO_LOGS, WorldCollector, survey, world_bytes
from uavlab.core.protocols import CheckedTensors, Env, Policy, Snapshot, forget, initial_memory, step_policy
from uavlab.core.registry import COLLECTORS, Resume, Settings
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import Batch, Scale, Steps, leaves, tree_map
from uavlab.envs.autoreset import Worlds
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.runtime import Runtime

OF_TRANSITION = ("obs", "action", "reward", "next_obs", "live", "terminated")  # fields that steps take over


@dataclass(frozen=True)
class FixedLengthConfig:
    """Size of a batch.

    Attributes:
        worlds: Worlds per run (W); ``auto`` for the knee of their throughput, measured here.
        rollout_steps: Steps of every world per batch (T).
        spares: New worlds in reserve for each world and batch; a world that ends more often in a batch repeats a start.
    """

    worlds: Annotated[int, Ge(1), Le(1_000_000), Resume.RESHAPED] = 64
    rollout_steps: Annotated[int, Ge(1), Le(10_000)] = 32
    spares: Annotated[int, Ge(1), Le(1000)] = 8


class FixedLengthCollector(WorldCollector):
    """Steps R x W worlds for T steps with the learner's policy for each batch, and replaces those that end.

    An agent whose task ended is not live in the steps until its world ends. The memory of a policy, if it has one, goes
    on from batch to batch, and starts anew in worlds that are replaced.
    """

    settings = FixedLengthConfig
    lacks: ClassVar[Mapping[str, str]] = {
        "replay": "this learner takes new steps for each update and has no replay",
        "logs": NO_LOGS,
    }

    @classmethod
    def measure_inputs(cls, config: Settings, rng: Streams, rt: Runtime) -> Scale | None:
        spec = config.env.spec
        observes_vectors = not spec.side or spec.features > 0
        return survey(config.env, rng, rt.ranks) if observes_vectors else None

    @classmethod
    def build(
        cls, config: Settings, env: Env, inputs: Any, policy: Policy, snapshot: Snapshot, rng: Streams, rt: Runtime
    ) -> "FixedLengthCollector":
        require_memory(_bytes(config), "worlds", "worlds, rollout_steps, spares or runs", rt.device)
        return cls(env, policy, config.source, rng, rt, config.run.log_episodes)

    @classmethod
    def steps_per_update(cls, config: Settings) -> int:
        return config.source.rollout_steps

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        return {**super().plan(config), "world_bytes": _bytes(config)}

    def __init__(
        self, env: Env, policy: Policy, config: FixedLengthConfig, rng: Streams, rt: Runtime, tally: bool = False
    ) -> None:
        """Start the worlds of all runs; with ``tally`` they keep figures of the episodes that end."""
        super().__init__(env, config.worlds, config.spares, rng, rt, True, tally)
        self.policy, self.config = policy, config
        self.memory = initial_memory(policy, self.runs, config.worlds)
        self.steps = 0  # of every world
        self._check = rt.check
        self._act = rt.time_stage(partial(step_policy, policy), "acting")

    def world_step(self) -> Callable[[], Any]:
        """Return a function that computes one step of all worlds, without gradients, the same with each call."""
        drawn = self._acting_noise()

        def act(worlds: Worlds) -> Tensor:
            return step_policy(self.policy, self.by_run(worlds.obs), drawn, self.memory)[0].flatten(0, 1)

        return torch.no_grad()(self.step_of(act, self._step_noise()))

    @torch.no_grad()
    def next(self) -> Batch:
        worlds, memory, steps = self.worlds, self.memory, []
        start = None if memory is None else memory.clone()  # a CUDA graph writes the next one over it
        for _ in range(self.config.rollout_steps):
            obs = self.by_run(worlds.obs)
            action, memory = self._act(obs, self._acting_noise(), memory)
            seen = [("obs", obs), ("action", action)]
            self._check({name: (leaf, "R W") for name, leaf in _floats(seen)})
            worlds, row = self._advance(self.env, worlds, action.flatten(0, 1), self._step_noise(), self.pool)
            done = row.truncated | row.terminated.all(-1)
            kept = {name: getattr(row, name) for name in OF_TRANSITION}
            step = self.by_run(Steps(**kept, ended=row.terminated | done[:, None]))
            after = {name: (leaf, "R W") for name, leaf in _floats([("next_obs", step.next_obs)])}
            self._check({**after, "reward": (step.reward, "R W A")})
            memory = forget(memory, self.by_run(done))
            steps.append(step)
        data = tree_map(lambda *leaf: torch.stack(leaf, 1), *steps)  # before worlds, whose memory steps may share
        self.worlds = self.keep_static(self.worlds, worlds)
        if memory is not None:
            self.memory = self.keep_static(self.memory, memory)
        index = torch.arange(self.config.rollout_steps * self.config.worlds, device=self.rng.device)
        return Batch(data, index.expand(self.runs, -1), memory=start)

    def after_cycle(self) -> None:
        """Count the steps and refill the pool here, because the replays of a captured cycle run no Python code."""
        self.steps += self.config.rollout_steps
        self.pool = self.keep_static(self.pool, self.new_pool())

    def tensors_to_check(self) -> CheckedTensors:
        return super().tensors_to_check() | ({} if self.memory is None else {"memory": (self.memory, "R W A")})

    def state_dict(self) -> dict[str, Tensor]:
        state = super().state_dict()
        state |= {} if self.memory is None else {"memory": self.memory}
        return {**state, "steps": torch.tensor(self.steps)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``; where it is of another number of worlds, ``load_segments`` starts new ones."""
        self.steps = int(state["steps"])
        super().load_state_dict(state)
        if self.memory is not None and not self.resized:
            self.memory = self.keep_static(self.memory, state["memory"].to(self.memory.device).clone())

    def load_segments(self, segments: Mapping[str, Mapping[str, Tensor]] | None) -> None:
        """Start new worlds, by the restored random streams, where the restored state has another number of them."""
        if self.resized:
            self.start_anew()
            self.memory = initial_memory(self.policy, self.runs, self.config.worlds)

    def _step_noise(self) -> Tensor:
        return self.rng.uniform("step", self.config.worlds, self.env.spec.step_noise).flatten(0, 1)

    def _acting_noise(self) -> Tensor:
        return acting_noise(self.rng, "act", self.config.worlds, self.env.spec)


def _floats(trees: list[tuple[str, Any]]) -> list[tuple[str, Tensor]]:
    named = [item for name, tree in trees for item in leaves(tree, name)]
    return [(name, leaf) for name, leaf in named if leaf.is_floating_point()]


def _bytes(config: Settings) -> int:
    """Return the bytes of worlds before and after a step, of those in reserve, and of the observations of a batch."""
    env, source = config.env, config.source
    obs = env.observe(env.initial(torch.zeros(1, env.spec.initial_noise)))
    batch = 2 * source.rollout_steps * sum(leaf.nbytes for _, leaf in leaves(obs))
    return ((2 + source.spares) * world_bytes(env) + batch) * source.worlds * config.run.runs


COLLECTORS.register("fixed_length", FixedLengthCollector)
