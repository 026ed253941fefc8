"""Where batches come from: worlds stepped by the current policy into replay, rows drawn out of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from uavlab.core.protocols import Env, Numbers, Policy
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Inputs, Transition, Update, leaves, load_leaves, tree_map
from uavlab.envs.advance import Pool, Worlds, advance, fresh, make_pool
from uavlab.replay.ring import Ring, add, allocate, draw, row_bytes
from uavlab.replay.segments import cut, paste, plan
from uavlab.runtime.guard import require_finite
from uavlab.runtime.runtime import Runtime

POOL_DEPTH = 8  # fresh worlds in reserve for each running one
POOL_STEPS = 32  # steps between refills; only a world that ends more often than the depth meets a start twice

SURVEY_WORLDS, SURVEY_STEPS = 64, 64  # random flights that tell a fresh network what its inputs look like


@dataclass(frozen=True)
class ReplayConfig:
    """How worlds fill replay and batches leave it.

    Attributes:
        worlds: Worlds per run (W).
        world_steps: Steps of every world per update.
        batch: Rows per run and update (N).
        capacity: Rows that replay holds per run.
        learning_starts: Rows per run gathered by random actions before the first update.
    """

    worlds: Annotated[int, Ge(1), Le(1_000_000)] = 64
    world_steps: Annotated[int, Ge(1), Le(10_000)] = 1
    batch: Annotated[int, Ge(1), Le(1_000_000)] = 256
    capacity: Annotated[int, Ge(1), Le(10**9)] = 100_000
    learning_starts: Annotated[int, Ge(1), Le(10**9)] = 2_048


class Replayed:
    """Steps R x W worlds with the learner's policy, keeps every row, and draws uniform batches."""

    def __init__(self, env: Env, policy: Policy, config: ReplayConfig, rng: Streams, rt: Runtime) -> None:
        """Start the worlds and reserve the replay."""
        self.env, self.policy, self.config, self.rng = env, policy, config, rng
        self.runs = len(rng.seeds)
        self.stage = torch.zeros(self.runs * config.worlds, dtype=torch.int64, device=rng.device)
        self.worlds: Worlds = fresh(env, self._start_noise("worlds").flatten(0, 1), self.stage)
        self.pool: Pool = self._refill()
        self.steps = 0
        self.ring: Ring = allocate(self._split(blank_row(env, self.worlds)), config.capacity)
        self._advance, self._check = rt.kernel(advance, "advance"), rt.check

    def next(self) -> Batch:
        """Step the worlds, store what happened, draw a batch; the first call gathers ``learning_starts`` rows."""
        while self.steps * self.config.worlds < self.config.learning_starts:
            self._step(explore=True)
        for _ in range(self.config.world_steps):
            self._step(explore=False)
        data, index = draw(self.ring, self.rng.integers("replay", self.config.batch))
        return Batch(data=data, index=index)

    def feedback(self, batch: Batch, update: Update) -> None:
        """Uniform replay learns nothing from an update."""

    def numbers(self) -> Numbers:
        """Name what a checkpoint would keep beside replay, whose rows were checked before they were written."""
        lead = (self.runs, self.config.worlds)
        worlds = {f"worlds.{k}": (v.unflatten(0, lead), "R W") for k, v in leaves(self.worlds)}
        pool = {f"pool.{k}": (v.unflatten(0, (-1, *lead)), "depth R W") for k, v in leaves(self.pool)}
        return {name: given for name, given in {**worlds, **pool}.items() if given[0].is_floating_point()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return worlds, pool and the count of steps; replay's rows are ``segments``."""
        state = {f"worlds.{k}": v for k, v in leaves(self.worlds)} | {f"pool.{k}": v for k, v in leaves(self.pool)}
        return {**state, "steps": torch.tensor(self.steps)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken, once ``load_segments`` has brought the rows."""
        self.worlds = load_leaves(self.worlds, state, "worlds")
        self.pool = load_leaves(self.pool, state, "pool")
        self.steps = int(state["steps"])

    def segments(self, saved: Iterable[str]) -> dict[str, dict[str, Tensor] | None]:
        """Cut replay's rows into segments that never change; None stands for those that were ``saved`` before."""
        before = set(saved)
        names = plan(before, self.steps * self.config.worlds, self.config.capacity)
        return {name: None if name in before else cut(self.ring, name) for name in names}

    def load_segments(self, segments: Mapping[str, Mapping[str, Tensor]] | None) -> None:
        """Bring back the rows; None leaves replay empty and gathers ``learning_starts`` rows before the next update.

        Raises:
            FileError: They are not exactly the rows that replay held.
        """
        if segments is None:
            self.steps = 0
        paste(self.ring, segments or {}, self.steps * self.config.worlds)

    def rows(self) -> dict[str, Tensor]:
        """Give replay as it lies in memory: its rows by slot, cursor and size."""
        return {**dict(leaves(self.ring.rows)), "cursor": self.ring.cursor, "size": self.ring.size}

    def _step(self, explore: bool) -> None:
        spec, count = self.env.spec, self.config.worlds
        obs = self.worlds.obs.unflatten(0, (self.runs, count))
        if explore:
            action = 2 * self.rng.uniform("explore", count, spec.agents, spec.action) - 1
        else:
            noise = self.rng.normal("act", count, spec.agents, spec.action)
            action = self.policy(obs, noise)
        self._check({"obs": (obs, "R W A O"), "action": (action, "R W A D")})
        noise = self.rng.uniform("step", count, spec.step_noise).flatten(0, 1)
        worlds, row = self._advance(self.env, self.worlds, action.flatten(0, 1), noise, self.pool)
        rows = self._split(row)
        self._check({"next_obs": (rows.next_obs, "R W A O"), "reward": (rows.reward, "R W A")})
        self.worlds = worlds
        add(self.ring, rows)
        self.steps += 1
        if self.steps % POOL_STEPS == 0:
            self.pool = self._refill()

    def _refill(self) -> Pool:
        noise = self._start_noise("pool", POOL_DEPTH).transpose(0, 1).flatten(1, 2)
        return make_pool(self.env, noise, self.stage)

    def _start_noise(self, name: str, *lead: int) -> Tensor:
        return self.rng.uniform(name, *lead, self.config.worlds, self.env.spec.initial_noise)

    def _split(self, row: Transition) -> Transition:
        return tree_map(lambda leaf: leaf.unflatten(0, (self.runs, self.config.worlds)), row)


def survey(env: Env, rng: Streams) -> Inputs:
    """Fly at random for a while and measure what the agents see; a feature that never varies has scale 1.

    Raises:
        DivergedError: The environment shows something that is not finite.
    """
    spec, runs = env.spec, len(rng.seeds)
    stage = torch.zeros(runs * SURVEY_WORLDS, dtype=torch.int64, device=rng.device)
    state = env.initial(rng.uniform("survey", SURVEY_WORLDS, spec.initial_noise).flatten(0, 1), stage)
    seen = []
    for _ in range(SURVEY_STEPS):
        action = 2 * rng.uniform("survey", SURVEY_WORLDS, spec.agents, spec.action) - 1
        noise = rng.uniform("survey", SURVEY_WORLDS, spec.step_noise)
        state = env.transition(state, action.flatten(0, 1), noise.flatten(0, 1))
        seen.append(env.observe(state).unflatten(0, (runs, SURVEY_WORLDS)))
    obs = torch.cat(seen, 1)
    require_finite({"obs": (obs, "R N A O")})  # first layers are fitted to them
    scale = obs.std(1)
    return Inputs(center=obs.mean(1), scale=torch.where(scale > 1e-3, scale, 1.0))


def blank_row(env: Env, worlds: Worlds) -> Transition:
    """Shape one row per world, filled with zeros."""
    count, agents = worlds.stage.shape[0], env.spec.agents
    zero = worlds.obs.new_zeros(count, agents)
    return Transition(
        obs=worlds.obs,
        action=worlds.obs.new_zeros(count, agents, env.spec.action),
        reward=zero,
        next_obs=worlds.obs,
        terminated=zero.bool(),
        truncated=zero[:, 0].bool(),
        stage=worlds.stage,
    )


def replay_bytes(env: Env, config: ReplayConfig, runs: int) -> int:
    """Count the bytes that replay will take, before it is allocated."""
    noise = torch.zeros(1, env.spec.initial_noise)
    row = blank_row(env, fresh(env, noise, torch.zeros(1, dtype=torch.int64)))
    return row_bytes(tree_map(lambda leaf: leaf[None], row)) * config.capacity * runs
