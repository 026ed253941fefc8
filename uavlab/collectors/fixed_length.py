"""The fixed-length on-policy collector: each batch is the next T steps of worlds that go on from batch to batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, cast

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.protocols import CheckedTensors, Env, Policy, Source, forget, initial_memory, step_policy
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import Batch, LiveTransition, Steps, leaves, load_leaves, tree_map
from uavlab.envs.autoreset import Pool, Worlds, advance, make_pool, start_worlds
from uavlab.envs.staged import first_stage, start_noise
from uavlab.envs.tally import read_tally
from uavlab.runtime.runtime import Runtime

T = TypeVar("T")


@dataclass(frozen=True)
class FixedLengthConfig:
    """Size of a batch.

    Attributes:
        worlds: Worlds per run (W).
        rollout_steps: Steps of every world per batch (T).
        spares: New worlds in reserve for each world and batch; a world that ends more often in a batch repeats a start.
    """

    worlds: Annotated[int, Ge(1), Le(1_000_000)] = 64
    rollout_steps: Annotated[int, Ge(1), Le(10_000)] = 32
    spares: Annotated[int, Ge(1), Le(1000)] = 8


class FixedLengthCollector(Source):
    """Steps R x W worlds for T steps with the learner's policy for each batch, and replaces those that end.

    An agent whose task ended is not live in the steps until its world ends. The memory of a policy, if it has one, goes
    on from batch to batch, and starts anew in worlds that are replaced.
    """

    def __init__(
        self, env: Env, policy: Policy, config: FixedLengthConfig, rng: Streams, rt: Runtime, tally: bool = False
    ) -> None:
        """Start the worlds of all runs; with ``tally`` they keep figures of the episodes that end."""
        self.env, self.policy, self.config, self.rng, self.runs = env, policy, config, rng, len(rng.seeds)
        self.static = rt.toggles.graph == "cycle"  # worlds and pool stay in the memory that a CUDA graph uses
        self.share = first_stage(env, self.runs, rng)
        self.worlds: Worlds = start_worlds(env, self._start_noise("worlds").flatten(0, 1), True, tally)
        self.pool: Pool = self._refill()
        self.memory = initial_memory(policy, self.runs, config.worlds)
        self.steps = 0  # of every world
        self._advance, self._check = rt.kernel(advance, "environment"), rt.check
        self._act = rt.time_stage(partial(step_policy, policy), "acting")

    def observations(self) -> Any:
        """Return the current observations of all agents (R W ...)."""
        return self._by_run(self.worlds.obs)

    def world_step(self) -> Callable[[], Any]:
        """Return a function that computes one step of all worlds, the same with each call."""
        action, _ = step_policy(self.policy, self.observations(), self._acting_noise(), self.memory)
        noise = self._step_noise()
        return lambda: self._advance(self.env, self.worlds, action.flatten(0, 1), noise, self.pool)

    @torch.no_grad()
    def next(self) -> Batch:
        """Take the next T steps of every world."""
        worlds, memory, steps = self.worlds, self.memory, []
        start = None if memory is None else memory.clone()  # a CUDA graph writes the next one over it
        for _ in range(self.config.rollout_steps):
            obs = self._by_run(worlds.obs)
            action, memory = self._act(obs, self._acting_noise(), memory)
            seen = [("obs", obs), ("action", action)]
            self._check({name: (leaf, "R W") for name, leaf in _floats(seen)})
            worlds, row = self._advance(self.env, worlds, action.flatten(0, 1), self._step_noise(), self.pool)
            done = row.truncated | row.terminated.all(-1)
            step = self._by_run(_step(cast(LiveTransition, row), done))
            self._check({name: (leaf, "R W") for name, leaf in _floats([("next_obs", step.next_obs)])})
            self._check({"reward": (step.reward, "R W A")})
            memory = forget(memory, self._by_run(done))
            steps.append(step)
        data = tree_map(lambda *leaf: torch.stack(leaf, 1), *steps)  # before worlds, whose memory steps may share
        self.worlds = self._keep_static(self.worlds, worlds)
        if memory is not None:
            self.memory = self._keep_static(self.memory, memory)
        index = torch.arange(self.config.rollout_steps * self.config.worlds, device=self.rng.device)
        return Batch(data, index.expand(self.runs, -1), memory=start)

    def after_cycle(self) -> None:
        """Count the steps and refill the pool here, because the replays of a captured cycle run no Python code."""
        self.steps += self.config.rollout_steps
        self.pool = self._keep_static(self.pool, self._refill())

    def figures(self) -> dict[str, Float[Tensor, " R"]]:
        """Return figures of the episodes that ended since the last call, see ``envs.tally`` (host sync)."""
        return {} if self.worlds.tally is None else read_tally(self.env, self.worlds.tally, self.runs)

    def tensors_to_check(self) -> CheckedTensors:
        """Return the tensors of worlds, pool and memory."""
        worlds = {f"worlds.{k}": (self._by_run(v), "R W") for k, v in _floats([("", self.worlds)])}
        lead = (-1, self.runs, self.config.worlds)
        pool = {f"pool.{k}": (v.unflatten(0, lead), "depth R W") for k, v in _floats([("", self.pool)])}
        return worlds | pool | ({} if self.memory is None else {"memory": (self.memory, "R W A")})

    def state_dict(self) -> dict[str, Tensor]:
        """Return worlds, pool, memory and counters."""
        state = {f"worlds.{k}": v for k, v in leaves(self.worlds)} | {f"pool.{k}": v for k, v in leaves(self.pool)}
        state |= {} if self.memory is None else {"memory": self.memory}
        state["live"] = state.pop("worlds.live")  # its name in folders of earlier versions
        return {**state, "steps": torch.tensor(self.steps)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``."""
        saved = {**state, "worlds.live": state["live"]}
        self.worlds = self._keep_static(self.worlds, load_leaves(self.worlds, saved, "worlds"))
        self.pool = self._keep_static(self.pool, load_leaves(self.pool, state, "pool"))
        if self.memory is not None:
            self.memory = self._keep_static(self.memory, state["memory"].to(self.memory.device).clone())
        self.steps = int(state["steps"])

    def _keep_static(self, old: T, new: T) -> T:
        """Return ``new``, copied into the memory of ``old`` if a CUDA graph uses it."""
        return tree_map(Tensor.copy_, old, new) if self.static else new

    def _refill(self) -> Pool:
        noise = self._start_noise("pool", self.config.spares).transpose(0, 1).flatten(1, 2)
        return make_pool(self.env, noise, self.worlds)

    def _start_noise(self, name: str, *lead: int) -> Tensor:
        return start_noise(self.env, self.rng, name, (*lead, self.config.worlds), self.share)

    def _step_noise(self) -> Tensor:
        return self.rng.uniform("step", self.config.worlds, self.env.spec.step_noise).flatten(0, 1)

    def _acting_noise(self) -> Tensor:
        return acting_noise(self.rng, "act", self.config.worlds, self.env.spec)

    def _by_run(self, tree: T) -> T:
        return tree_map(lambda leaf: leaf.unflatten(0, (self.runs, self.config.worlds)), tree)


def _step(row: LiveTransition, done: Bool[Tensor, " B"]) -> Steps:
    """Return a transition as a step of worlds, with its marks."""
    return Steps(
        obs=row.obs,
        action=row.action,
        reward=row.reward,
        next_obs=row.next_obs,
        live=row.live,
        terminated=row.terminated,
        ended=row.terminated | done[:, None],
    )


def _floats(trees: list[tuple[str, Any]]) -> list[tuple[str, Tensor]]:
    """Return the floating point tensors of trees by name."""
    named = [item for name, tree in trees for item in leaves(tree, name)]
    return [(name, leaf) for name, leaf in named if leaf.is_floating_point()]
