"""The off-policy collector: it steps worlds with the policy in training, stores transitions, and draws batches."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.collectors.world_source import NO_LOGS, WorldCollector, random_actions, survey
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import CheckedTensors, Env, Policy, RecurrentPolicy, Snapshot, Trial
from uavlab.core.registry import COLLECTORS, Resume, Settings
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import (
    Batch,
    LiveTransition,
    Scale,
    Transition,
    Update,
    features_of,
    leaves,
    load_leaves,
    tree_map,
)
from uavlab.envs.autoreset import Worlds, advance, start_worlds
from uavlab.envs.staged import Staged
from uavlab.replay.buffer import ByStage, Returns, Store, Uniform, host_transfer, take_returns
from uavlab.replay.prefetch import Prefetcher
from uavlab.replay.prioritized import ByPriority, PriorityConfig
from uavlab.replay.ring import Ring, row_bytes
from uavlab.replay.segments import cut, paste, plan
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.runtime import Runtime

POOL_DEPTH = 8  # initial states in reserve for each world
POOL_STEPS = 32  # steps between refills; a world that ends more than ``POOL_DEPTH`` times in them repeats a start
TRIAL_STEPS = 100  # most random steps of each world of a trial


@dataclass(frozen=True)
class ReplayConfig(PriorityConfig):
    """Sizes of worlds, replay and batches.

    Attributes:
        worlds: Worlds per run (W); ``auto`` for the knee of their throughput, measured here.
        world_steps: Steps of every world per cycle; there is one update per cycle unless ``ratio`` says otherwise.
        batch: Rows per run and update (N); ``auto`` for a number by the entities of the task.
        capacity: Rows that replay holds per run.
        learning_starts: Rows per run collected with random actions before the first update.
    """

    worlds: Annotated[int, Ge(1), Le(1_000_000), Resume.RESHAPED] = 64
    world_steps: Annotated[int, Ge(1), Le(10_000), Resume.YES] = 1
    batch: Annotated[int, Ge(1), Le(1_000_000), Resume.RESHAPED] = 128
    capacity: Annotated[int, Ge(1), Le(10**9)] = 100_000
    learning_starts: Annotated[int, Ge(1), Le(10**9)] = 2_048


class OffPolicyCollector(WorldCollector):
    """Steps R x W worlds with the learner's policy, stores every transition, and draws batches.

    A round is ``interval`` cycles of ``world_steps`` steps, followed by ``interval`` x ``ratio`` updates. With
    ``prefetch=on`` the batch of an update is drawn before the steps of its cycle, so it misses their rows. With
    ``overlap`` the steps of a round run in a thread during its updates, with the policy at the beginning of the round;
    their rows are stored at its end. Results never depend on timing.
    """

    settings = ReplayConfig
    per_rank = ("batch", "worlds", "capacity", "learning_starts")
    replay = True
    lacks: ClassVar[Mapping[str, str]] = {"logs": NO_LOGS}

    @classmethod
    def measure_inputs(cls, config: Settings, rng: Streams, rt: Runtime) -> Scale:
        return survey(config.env, rng, rt.ranks)

    @classmethod
    def build(
        cls, config: Settings, env: Env, inputs: Any, policy: Policy, snapshot: Snapshot, rng: Streams, rt: Runtime
    ) -> "OffPolicyCollector":
        if isinstance(policy, RecurrentPolicy):
            raise ConfigError(
                "off_policy: got a policy with memory, which replay does not hold; collect by fixed_length."
            )
        steps, tally = getattr(config.learner, "n_step", 1), config.run.log_episodes
        returns = Returns(steps, config.learner.gamma, config.source.worlds) if steps > 1 else None
        return cls(env, policy, config.source, rng, rt, make_store(config, rng, rt), snapshot, returns, tally)

    @classmethod
    def steps_per_update(cls, config: Settings) -> int:
        return config.source.world_steps

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        replay, toggles, run = config.source, config.toggles, config.run
        cycles = -(-(run.updates or 0) // (toggles.interval * toggles.ratio)) * toggles.interval  # whole rounds
        steps = None if run.updates is None else cycles * replay.world_steps * replay.worlds + replay.learning_starts
        return {
            "world_steps_per_run": steps,
            "agent_steps_per_run": None if steps is None else steps * config.env.spec.agents,
            "replay_bytes": replay_bytes(example_env(config), replay, run.runs),
        }

    @classmethod
    def trial(cls, config: Settings) -> Trial:
        source = config.source
        few = min(source.learning_starts, TRIAL_STEPS * source.worlds)
        apart = f"{source.learning_starts:,} random steps" if few < source.learning_starts else ""
        return Trial(replace(config, source=replace(source, learning_starts=few)), apart=apart)

    def __init__(
        self,
        env: Env,
        policy: Policy,
        config: ReplayConfig,
        rng: Streams,
        rt: Runtime,
        store: Store,
        snapshot: Snapshot,
        returns: Returns | None = None,
        tally: bool = False,
    ) -> None:
        """Start the worlds of all runs; ``snapshot`` copies the policy in training, for the thread of ``overlap``."""
        super().__init__(env, config.worlds, POOL_DEPTH, rng, rt, env.spec.deaths, tally)
        self.policy, self.config, self.snapshot, toggles = policy, config, snapshot, rt.toggles
        self.interval, self.round = toggles.interval, toggles.interval * toggles.ratio
        self.next_share: Tensor | None = None  # that holds from the next round on
        self.store, self.returns = store, returns
        self.steps = 0  # of every world
        self.offset = 0  # rows beyond steps x worlds, where the number of worlds was another one before
        self.turn = 0  # updates of this round
        self.drawn_at = self.ahead_at = 0  # rows stored when the present batch, and the prefetched one, were drawn
        self.prefetcher: Prefetcher | None = None
        self.executor: Executor | None = None
        self.pending: Future[list[Transition]] | None = None  # steps of the thread
        self.ready: list[Transition] = []  # rows of the last round, by step, that are not stored yet
        self._check = rt.check
        if toggles.prefetch == "on":
            self.prefetcher = Prefetcher(rng.device, threaded=self.ring.cursor.device.type == "cpu")
        elif toggles.prefetch == "overlap":
            self.executor = ThreadPoolExecutor(1, "collect")
            self._advance = advance  # compiled code must not run in one thread while another one compiles
        self._take = rt.split_draw(lambda index: self.store.take(index))
        self._act = rt.time_stage(lambda policy, obs, noise: policy(obs, noise), "acting")
        self._add = rt.time_stage(self.store.add, "store")
        self._draw = rt.time_stage(self._sample_batch, "draw")
        self._await = rt.time_stage(self._take_prefetched, "draw")

    @property
    def ring(self) -> Ring:
        return self.store.ring

    def next(self) -> Batch:
        """Step the worlds if a round begins, and draw a batch; before the first, collect ``learning_starts`` rows."""
        self.before_cycle()
        batch, self.drawn_at = self._await(), self.ahead_at
        if self.turn == 0:
            self._collect_round()
        if batch is None:
            batch, self.drawn_at = self._draw(self.rng.integers("replay", self.config.batch)), self._stored
        if self.prefetcher is not None:
            self.ahead_at = self._stored
            self.prefetcher.start(partial(self._sample_batch, self.rng.integers("replay", self.config.batch)))
        self.turn = (self.turn + 1) % self.round
        return batch

    def before_cycle(self) -> None:
        """Collect ``learning_starts`` rows with random actions before the first cycle."""
        while self._stored < self.config.learning_starts:
            self._step_and_store(explore=True)
            self.count(1)

    def after_cycle(self) -> None:
        """Count the steps of a captured cycle, because its replays run no Python code."""
        if self.static:
            self.count(self.config.world_steps)

    def count(self, steps: int) -> None:
        """Count steps of the worlds, and refill the pool every ``POOL_STEPS``."""
        before, self.steps = self.steps, self.steps + steps
        if before // POOL_STEPS < self.steps // POOL_STEPS:
            self.pool = self.keep_static(self.pool, self.new_pool())

    def feedback(self, batch: Batch, update: Update) -> None:
        """Update priorities, after the next batch has been drawn if there is a prefetcher."""
        if self.prefetcher is not None:
            self.prefetcher.wait()
        self.store.feedback(batch.index, update, self._replaced(batch.index))

    def _replaced(self, index: Int[Tensor, "R N"]) -> Bool[Tensor, "R N"] | None:
        """Return which slots hold other rows than when the batch was drawn; None if none can."""
        if self.prefetcher is None or self._stored == self.drawn_at:
            return None
        return (index - self.drawn_at).remainder(self.config.capacity) < self._stored - self.drawn_at

    def figures(self) -> dict[str, Float[Tensor, " R"]]:
        self._wait()
        return super().figures()

    def ended(self) -> float | None:
        self._wait()
        return super().ended()

    def tensors_to_check(self) -> CheckedTensors:
        self._wait()
        return super().tensors_to_check()

    def state_dict(self) -> dict[str, Tensor]:
        self._wait()
        state = super().state_dict()
        state |= {"steps": torch.tensor(self.steps)} | ({"turn": torch.tensor(self.turn)} if self.round > 1 else {})
        state |= {"offset": torch.tensor(self.offset)} if self.offset else {}
        state |= {f"store.{k}": v for k, v in self.store.state_dict().items()}
        if self.ready:
            state |= {f"landed.{k}": v for k, v in leaves(tree_map(lambda *rows: torch.stack(rows, 1), *self.ready))}
        if self.prefetcher is not None and (batch := self.prefetcher.wait()):
            state |= {"ahead.index": batch.index} | ({} if batch.weight is None else {"ahead.weight": batch.weight})
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``, also of other rounds, batches and numbers of worlds; ``load_segments`` follows."""
        self._cancel()
        super().load_state_dict(state)
        self.steps, self.turn = int(state["steps"]), int(state.get("turn", 0)) % self.round
        self.offset = int(state.get("offset", 0)) + self.steps * (self.worlds_in(state) - self.config.worlds)
        if "landed.reward" in state:
            rows = tree_map(lambda leaf: leaf.to(self.rng.device), load_leaves(self.ring.rows, state, "landed"))
            self.ready = [tree_map(lambda leaf, i=i: leaf[:, i], rows) for i in range(rows.reward.shape[1])]
        self.ring.size.fill_(min(self._stored, self.config.capacity))
        self.store.load_state_dict({k[6:]: v for k, v in state.items() if k.startswith("store.")})
        if self.prefetcher is not None and state.get("ahead.index", state["steps"]).shape[-1:] == (self.config.batch,):
            weight = state["ahead.weight"].to(self.rng.device) if "ahead.weight" in state else None
            self.ahead_at = self._stored  # a checkpoint follows the steps of its cycle
            self.prefetcher.hold(Batch(None, state["ahead.index"].to(self.ring.cursor.device), weight))

    def segments(self, saved: Iterable[str]) -> dict[str, dict[str, Tensor] | None]:
        before = set(saved)
        names = plan(before, self._stored, self.config.capacity)
        return {name: None if name in before else cut(self.ring, name) for name in names}

    def load_segments(self, segments: Mapping[str, Mapping[str, Tensor]] | None) -> None:
        """Restore the rows; None empties replay. Where the state is of another number of worlds, new ones start."""
        if segments is None:
            self._cancel()
            self.store.forget()
            self.steps = self.turn = self.offset = 0
        paste(self.ring, segments or {}, self._stored)
        if self.resized:
            self.start_anew()
            for rows in (self.ring.rows, *self.ready):
                rows.truncated.fill_(True)  # the distance between the rows of a world changes

    def rows(self) -> dict[str, Tensor]:
        return {**dict(leaves(self.ring.rows)), "cursor": self.ring.cursor, "size": self.ring.size}

    def set_stages(self, share: Float[Tensor, "R S"], stage: Int[Tensor, " R"]) -> None:
        """Start new worlds by these shares from the next round on, and draw rows of former stages by them."""
        if isinstance(self.store, ByStage):
            self.store.set_stage(stage, 1 - share.gather(1, stage[:, None])[:, 0])
        self.next_share = share
        if self.pending is None:
            self._change_share()

    def _change_share(self) -> None:
        if self.share is not None and self.next_share is not None:
            self.share.copy_(self.next_share)
        self.next_share = None

    def world_step(self) -> Callable[[], Any]:
        """Return a function that computes one step of all worlds, the same with each call, and does not store it."""
        noise = self.rng.uniform("step", self.config.worlds, self.env.spec.step_noise).flatten(0, 1)
        return self.step_of(lambda worlds: random_actions(self.env.spec, self.rng, "explore", worlds.obs), noise)

    @property
    def _stored(self) -> int:
        """Number of rows per run that were added to replay."""
        return self.steps * self.config.worlds + self.offset - sum(rows.reward.shape[1] for rows in self.ready)

    def _collect_round(self) -> None:
        """Take the steps of a round; with ``overlap`` store those of the last round and start the thread."""
        steps = self.interval * self.config.world_steps
        self._wait()
        for rows in self.ready:
            self._add(rows)
        self.ready = []
        if self.executor is not None:
            self._change_share()
            self.pending = self.executor.submit(self._collect, self.snapshot(), steps)
            return
        for _ in range(steps):
            self._step_and_store(explore=False)
            if not self.static:
                self.count(1)

    def _step_and_store(self, explore: bool) -> None:
        worlds, rows = self._step_worlds(None if explore else self.policy)
        self._add(rows)  # before the assignment, because rows share memory with the old worlds
        self.worlds = self.keep_static(self.worlds, worlds)

    def _collect(self, policy: Policy, steps: int) -> list[Transition]:
        """Take steps in the thread, which alone uses worlds, pool, counter and their random streams until it ends."""
        collected = []
        for _ in range(steps):
            self.worlds, rows = self._step_worlds(policy)
            self.count(1)
            collected.append(rows)
        return collected

    def _wait(self) -> None:
        if self.pending is not None:
            self.ready, self.pending = self.pending.result(), None

    def _cancel(self) -> None:
        self._wait()
        self.ready = []
        if self.prefetcher is not None:
            self.prefetcher.take()

    def _step_worlds(self, policy: Policy | None) -> tuple[Worlds, Transition]:
        """Step every world once with the policy, or at random; check the results."""
        spec, count = self.env.spec, self.config.worlds
        obs = self.observations()
        if policy is None:
            action = self.by_run(random_actions(spec, self.rng, "explore", self.worlds.obs))
        else:
            action = self._act(policy, obs, acting_noise(self.rng, "act", count, spec))
        floats = {} if spec.choices else {"action": (action, "R W A D")}
        self._check({"obs": (features_of(obs), "R W A O"), **floats})
        noise = self.rng.uniform("step", count, spec.step_noise).flatten(0, 1)
        action = action.flatten(0, 1).contiguous()  # of one form, so that the step is compiled once
        worlds, row = self._advance(self.env, self.worlds, action, noise, self.pool)
        rows = self.by_run(row)
        self._check({"next_obs": (features_of(rows.next_obs), "R W A O"), "reward": (rows.reward, "R W A")})
        return worlds, rows

    def _sample_batch(self, noise: Tensor) -> Batch:
        return self._read(*self.store.choose(noise))

    def _take_prefetched(self) -> Batch | None:
        """Return the prefetched batch, if any; after loading, its rows are read from the restored slots."""
        batch = None if self.prefetcher is None else self.prefetcher.take()
        if batch is None or batch.data is not None:
            return batch
        return self._read(batch.index, batch.weight)

    def _read(self, index: Int[Tensor, "R N"], weight: Float[Tensor, "R N"] | None) -> Batch:
        if self.returns is None:
            return Batch(self._take(index), index, weight)
        data, discount = take_returns(self.returns, self.ring, self._take, index)
        return Batch(data, index, weight, discount=discount)


def make_store(config: Settings, rng: Streams, rt: Runtime) -> Store:
    toggles, replay, env, runs = rt.toggles, config.source, example_env(config), len(rng.seeds)
    here = toggles.placement == "device"
    device = rt.device if here else torch.device("cpu")
    masses = 0 if toggles.priorities == "off" else 8 * replay.capacity * runs
    require_memory(replay_bytes(env, replay, runs) + masses, "replay", "capacity or runs", device)
    noise = torch.zeros(runs * replay.worlds, env.spec.initial_noise, dtype=rng.dtype, device=device)
    worlds = start_worlds(env, noise)
    example = tree_map(lambda leaf: leaf.unflatten(0, (runs, -1)), blank_row(env, worlds))
    transfer = None if here else host_transfer(example, replay.batch, rt, toggles.placement == "pinned")
    if config.run.curriculum is not None:
        if toggles.priorities != "off":
            raise ConfigError(
                f"priorities: got {toggles.priorities} with a curriculum, whose batches hold fixed shares of stages; "
                "expected priorities=off."
            )
        return ByStage(example, replay.capacity, transfer)
    if toggles.priorities == "off":
        return Uniform(example, replay.capacity, transfer)
    return ByPriority(example, replay.capacity, replay, toggles.priorities, transfer, config.run.updates, rt.ranks)


def blank_row(env: Env, worlds: Worlds) -> Transition:
    """Return one transition per world, for its shapes and types."""
    spec, seen = env.spec, features_of(worlds.obs)
    zero = seen.new_zeros(len(worlds.replaced), spec.agents)
    row = {
        "obs": worlds.obs,
        "action": zero.long() if spec.choices else zero[..., None].expand(-1, -1, spec.action),
        "reward": zero,
        "next_obs": worlds.obs,
        "terminated": zero.bool(),
        "truncated": zero[:, 0].bool(),
        "stage_number": worlds.stage_number,
    }
    return LiveTransition(**row, live=zero.bool()) if spec.deaths else Transition(**row)


def replay_bytes(env: Env, config: ReplayConfig, runs: int) -> int:
    row = blank_row(env, start_worlds(env, torch.zeros(1, env.spec.initial_noise)))
    return row_bytes(tree_map(lambda leaf: leaf[None], row)) * config.capacity * runs


def example_env(config: Settings) -> Any:
    """Return an environment whose worlds have all parts that those of a run have."""
    return config.env if config.run.curriculum is None else Staged(config.env, (config.env,))


COLLECTORS.register("off_policy", OffPolicyCollector)
