"""Where batches come from: worlds stepped by the current policy into replay, rows drawn out of it."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import CheckedTensors, Env, Policy
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Inputs, Transition, Update, leaves, load_leaves, tree_map
from uavlab.envs.autoreset import Pool, Worlds, advance, make_pool, start_worlds
from uavlab.replay.buffer import Store, Uniform
from uavlab.replay.prefetch import Prefetcher
from uavlab.replay.prioritized import PriorityConfig
from uavlab.replay.ring import Ring, row_bytes
from uavlab.replay.segments import cut, paste, plan
from uavlab.runtime.finite_check import require_finite
from uavlab.runtime.runtime import Runtime

T = TypeVar("T")

POOL_DEPTH = 8  # fresh worlds in reserve for each running one
POOL_STEPS = 32  # steps between refills; only a world that ends more often than the depth meets a start twice

SURVEY_WORLDS, SURVEY_STEPS = 64, 64  # random flights that tell a fresh network what its inputs look like


@dataclass(frozen=True)
class ReplayConfig(PriorityConfig):
    """How worlds fill replay and batches leave it.

    Attributes:
        worlds: Worlds per run (W).
        world_steps: Steps of every world per cycle; there is one update per cycle unless ``ratio`` says otherwise.
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
    """Steps R x W worlds with the learner's policy, keeps every row, and draws batches.

    A round is ``interval`` cycles of ``world_steps`` steps, and then ``interval`` x ``ratio`` updates. Doing two things
    at once changes which rows a batch may hold, in the same way whatever the timing. ``prefetch`` on: the batch of an
    update is drawn before the steps that lead up to it, so it misses their rows. ``overlap``: the steps of a round are
    made beside its updates, by the policy as it was when the round began; their rows are stored when it is over.
    """

    def __init__(
        self,
        env: Env,
        policy: Policy,
        config: ReplayConfig,
        rng: Streams,
        rt: Runtime,
        store: Store | None = None,
        snapshot: Callable[[], Policy] | None = None,
    ) -> None:
        """Start the worlds and reserve the replay.

        Args:
            env: The task.
            policy: The policy in training.
            config: How much of everything.
            rng: Streams of all runs.
            rt: Where it runs, and which toggles are on.
            store: What keeps the rows; by default uniform replay where training runs.
            snapshot: Copies the policy in training, so that it can be flown while it is trained.

        Raises:
            ConfigError: Steps and updates are to overlap, and there is no ``snapshot``.
        """
        self.env, self.policy, self.config, self.rng, self.snapshot = env, policy, config, rng, snapshot
        self.runs, toggles = len(rng.seeds), rt.toggles
        self.interval, self.round = toggles.interval, toggles.interval * toggles.ratio
        self.static = toggles.graph == "cycle"  # worlds and pool stay in the memory that a captured graph has seen
        self.worlds: Worlds = start_worlds(env, self._start_noise("worlds").flatten(0, 1))
        self.pool: Pool = self._refill()
        self.store = store or Uniform(self._split(blank_row(env, self.worlds)), config.capacity)
        self.steps = 0  # of every world
        self.turn = 0  # updates of this round so far
        self.ahead: Prefetcher | None = None
        self.pilot: Executor | None = None
        self.flight: Future[list[Transition]] | None = None
        self.landed: list[Transition] = []  # rows of a flight, step by step, that are not stored yet
        self._advance, self._check = rt.kernel(advance, "environment"), rt.check
        if toggles.prefetch == "on":
            self.ahead = Prefetcher(rng.device, threaded=self.ring.cursor.device.type == "cpu")
        elif toggles.prefetch == "overlap":
            if snapshot is None:
                raise ConfigError("prefetch=overlap: this learner gives no copy of its policy; use prefetch=off or on.")
            self.pilot = ThreadPoolExecutor(1, "fly")
            self._advance = advance  # compiled code must not run in one thread while another one compiles
        self._take = rt.split_draw(lambda index: self.store.take(index))
        self._act, self._add = rt.time_stage(self._acted, "acting"), rt.time_stage(self.store.add, "store")
        self._draw, self._await = rt.time_stage(self._drawn, "draw"), rt.time_stage(self._awaited, "draw")

    @property
    def ring(self) -> Ring:
        """The rows."""
        return self.store.ring

    def next(self) -> Batch:
        """Step the worlds if a round begins, and draw a batch; the first call gathers ``learning_starts`` rows."""
        self.before_cycle()
        batch = self._await()
        if self.turn == 0:
            self._gather()
        if batch is None:
            batch = self._draw(self._noise())
        if self.ahead is not None:
            self.ahead.start(partial(self._drawn, self._noise()))
        self.turn = (self.turn + 1) % self.round
        return batch

    def before_cycle(self) -> None:
        """Gather ``learning_starts`` rows by random actions, unless that is done: before a cycle that is captured."""
        while self.steps * self.config.worlds < self.config.learning_starts:
            self._step(explore=True)
            self.count(1)

    def after_cycle(self) -> None:
        """Count the steps of a captured cycle, whose replays cannot."""
        if self.static:
            self.count(self.config.world_steps)

    def count(self, steps: int) -> None:
        """Count steps made, and refill the pool when that is due."""
        before, self.steps = self.steps, self.steps + steps
        if before // POOL_STEPS < self.steps // POOL_STEPS:
            self.pool = self._settled(self.pool, self._refill())

    def feedback(self, batch: Batch, update: Update) -> None:
        """Tell the store how the batch fared; one drawn ahead was chosen before."""
        if self.ahead is not None:
            self.ahead.wait()
        self.store.feedback(batch.index, update)

    def tensors_to_check(self) -> CheckedTensors:
        """Name what a checkpoint would keep beside rows, which were checked before they were written."""
        self._land()
        lead = (self.runs, self.config.worlds)
        worlds = {f"worlds.{k}": (v.unflatten(0, lead), "R W") for k, v in leaves(self.worlds)}
        pool = {f"pool.{k}": (v.unflatten(0, (-1, *lead)), "depth R W") for k, v in leaves(self.pool)}
        return {name: given for name, given in {**worlds, **pool}.items() if given[0].is_floating_point()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return worlds, pool, counts and what is under way; replay's rows are ``segments``."""
        self._land()
        state = {f"worlds.{k}": v for k, v in leaves(self.worlds)} | {f"pool.{k}": v for k, v in leaves(self.pool)}
        state |= {"steps": torch.tensor(self.steps)} | ({"turn": torch.tensor(self.turn)} if self.round > 1 else {})
        state |= {f"store.{k}": v for k, v in self.store.state_dict().items()}
        if self.landed:
            state |= {f"landed.{k}": v for k, v in leaves(tree_map(lambda *rows: torch.stack(rows, 1), *self.landed))}
        if self.ahead is not None and (batch := self.ahead.wait()):
            state |= {"ahead.index": batch.index} | ({} if batch.weight is None else {"ahead.weight": batch.weight})
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken, once ``load_segments`` has brought the rows."""
        self._drop()
        self.worlds = self._settled(self.worlds, load_leaves(self.worlds, state, "worlds"))
        self.pool = self._settled(self.pool, load_leaves(self.pool, state, "pool"))
        self.steps, self.turn = int(state["steps"]), int(state.get("turn", 0))
        if "landed.reward" in state:
            rows = tree_map(lambda leaf: leaf.to(self.rng.device), load_leaves(self.ring.rows, state, "landed"))
            self.landed = [tree_map(lambda leaf, i=i: leaf[:, i], rows) for i in range(rows.reward.shape[1])]
        self.ring.size.fill_(min(self._stored, self.config.capacity))
        self.store.load_state_dict({k[6:]: v for k, v in state.items() if k.startswith("store.")})
        if self.ahead is not None and "ahead.index" in state:
            weight = state["ahead.weight"].to(self.rng.device) if "ahead.weight" in state else None
            self.ahead.hold(Batch(None, state["ahead.index"].to(self.ring.cursor.device), weight))

    def segments(self, saved: Iterable[str]) -> dict[str, dict[str, Tensor] | None]:
        """Cut replay's rows into segments that never change; None stands for those that were ``saved`` before."""
        before = set(saved)
        names = plan(before, self._stored, self.config.capacity)
        return {name: None if name in before else cut(self.ring, name) for name in names}

    def load_segments(self, segments: Mapping[str, Mapping[str, Tensor]] | None) -> None:
        """Bring back the rows; None leaves replay empty and gathers ``learning_starts`` rows before the next update.

        Raises:
            FileError: They are not exactly the rows that replay held.
        """
        if segments is None:
            self._drop()
            self.store.forget()
            self.steps = self.turn = 0
        paste(self.ring, segments or {}, self._stored)

    def rows(self) -> dict[str, Tensor]:
        """Give replay as it lies in memory: its rows by slot, cursor and size."""
        return {**dict(leaves(self.ring.rows)), "cursor": self.ring.cursor, "size": self.ring.size}

    def observations(self) -> Tensor:
        """Return what the agents of all worlds observe now (R W A O)."""
        return self.worlds.obs.unflatten(0, (self.runs, self.config.worlds))

    def world_step(self) -> Callable[[], Any]:
        """Return a call that moves all worlds by one random step, always the same."""
        spec, count = self.env.spec, self.config.worlds
        action = 2 * self.rng.uniform("explore", count, spec.agents, spec.action).flatten(0, 1) - 1
        noise = self.rng.uniform("step", count, spec.step_noise).flatten(0, 1)
        return lambda: self._advance(self.env, self.worlds, action, noise, self.pool)

    @property
    def _stored(self) -> int:
        """Rows per run that were added to replay."""
        return (self.steps - len(self.landed)) * self.config.worlds

    def _gather(self) -> None:
        """Make the steps of a round, or store those that were made beside the last one and take off anew."""
        steps = self.interval * self.config.world_steps
        if self.pilot is None or self.snapshot is None:
            for _ in range(steps):
                self._step(explore=False)
                if not self.static:
                    self.count(1)
            return
        self._land()
        for rows in self.landed:
            self._add(rows)
        self.landed = []
        self.flight = self.pilot.submit(self._fly, self.snapshot(), steps)

    def _step(self, explore: bool) -> None:
        worlds, rows = self._flown(None if explore else self.policy)
        self._add(rows)  # first: they share memory with the worlds that they began in
        self.worlds = self._settled(self.worlds, worlds)

    def _fly(self, policy: Policy, steps: int) -> list[Transition]:
        """Make steps in a thread, which has worlds, pool, count and their streams to itself until it has landed."""
        flown = []
        for _ in range(steps):
            self.worlds, rows = self._flown(policy)
            self.count(1)
            flown.append(rows)
        return flown

    def _land(self) -> None:
        """Wait for the flight under way."""
        if self.flight is not None:
            self.landed, self.flight = self.flight.result(), None

    def _drop(self) -> None:
        """Wait for what is under way, and forget it."""
        self._land()
        self.landed = []
        if self.ahead is not None:
            self.ahead.take()

    def _flown(self, policy: Policy | None) -> tuple[Worlds, Transition]:
        """Move every world by one step of the policy, or at random; what comes of it was checked."""
        spec, count = self.env.spec, self.config.worlds
        obs = self.worlds.obs.unflatten(0, (self.runs, count))
        if policy is None:
            action = 2 * self.rng.uniform("explore", count, spec.agents, spec.action) - 1
        else:
            action = self._act(policy, obs, self.rng.normal("act", count, spec.agents, spec.action))
        self._check({"obs": (obs, "R W A O"), "action": (action, "R W A D")})
        noise = self.rng.uniform("step", count, spec.step_noise).flatten(0, 1)
        worlds, row = self._advance(self.env, self.worlds, action.flatten(0, 1), noise, self.pool)
        rows = self._split(row)
        self._check({"next_obs": (rows.next_obs, "R W A O"), "reward": (rows.reward, "R W A")})
        return worlds, rows

    def _acted(self, policy: Policy, obs: Tensor, noise: Tensor) -> Tensor:
        return policy(obs, noise)

    def _noise(self) -> Tensor:
        return self.rng.integers("replay", self.config.batch)

    def _drawn(self, noise: Tensor) -> Batch:
        index, weight = self.store.choose(noise)
        return Batch(self._take(index), index, weight)

    def _awaited(self) -> Batch | None:
        """Take the batch drawn ahead, if there is one; of a checkpoint's, the rows lie where they lay."""
        batch = None if self.ahead is None else self.ahead.take()
        if batch is None or batch.data is not None:
            return batch
        return replace(batch, data=self._take(batch.index))

    def _settled(self, old: T, new: T) -> T:
        """Give the new, in the memory of the old where a graph will look for it."""
        return tree_map(Tensor.copy_, old, new) if self.static else new

    def _refill(self) -> Pool:
        noise = self._start_noise("pool", POOL_DEPTH).transpose(0, 1).flatten(1, 2)
        return make_pool(self.env, noise)

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
    state = env.initial(rng.uniform("survey", SURVEY_WORLDS, spec.initial_noise).flatten(0, 1))
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
    count, agents = len(worlds.replaced), env.spec.agents
    zero = worlds.obs.new_zeros(count, agents)
    return Transition(
        obs=worlds.obs,
        action=worlds.obs.new_zeros(count, agents, env.spec.action),
        reward=zero,
        next_obs=worlds.obs,
        terminated=zero.bool(),
        truncated=zero[:, 0].bool(),
    )


def replay_bytes(env: Env, config: ReplayConfig, runs: int) -> int:
    """Count the bytes that replay will take, before it is allocated."""
    row = blank_row(env, start_worlds(env, torch.zeros(1, env.spec.initial_noise)))
    return row_bytes(tree_map(lambda leaf: leaf[None], row)) * config.capacity * runs
