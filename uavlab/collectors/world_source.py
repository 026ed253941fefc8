"""What collectors share: worlds that go on from batch to batch, and measurements before there are any."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.protocols import CheckedTensors, Collector, Env
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, Scale, features_of, leaves, load_leaves, padded_actions, tree_map
from uavlab.envs.autoreset import Pool, Worlds, advance, make_pool, move, start_worlds
from uavlab.envs.staged import first_stage, start_noise
from uavlab.envs.tally import read_tally
from uavlab.ops.action_sampling import random_moves, without_padding
from uavlab.runtime.finite_check import require_finite
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.runtime import Runtime

T = TypeVar("T")

NO_LOGS = "this learner reads no logs"
SURVEY_WORLDS, SURVEY_STEPS = 64, 64  # per run


def random_actions(spec: EnvSpec, rng: Streams, name: str, obs: Any) -> Tensor:
    """Draw uniformly random actions (B A D), or legal moves (B A), for worlds with observations ``obs`` (B ...)."""
    count = len(leaves(obs)[0][1]) // len(rng.seeds)
    if spec.choices:
        return random_moves(obs, rng.uniform(name, count, spec.agents).flatten(0, 1))
    action = 2 * rng.uniform(name, count, spec.agents, spec.action).flatten(0, 1) - 1
    return without_padding(action, padded_actions(spec, action.device))


def survey(env: Env, rng: Streams, ranks: Ranks = ALONE) -> Scale:
    """Measure mean and deviation of vectors under random actions, over all ``ranks``; constant features get scale 1."""
    spec, runs = env.spec, len(rng.seeds)
    worlds = start_worlds(env, rng.uniform("survey", SURVEY_WORLDS, spec.initial_noise).flatten(0, 1))
    state, obs = worlds.state, worlds.obs
    observations = []
    for _ in range(SURVEY_STEPS):
        action = random_actions(spec, rng, "survey", obs)
        noise = rng.uniform("survey", SURVEY_WORLDS, spec.step_noise)
        state, obs = move(env, state, action, noise.flatten(0, 1), obs)
        observations.append(features_of(obs).unflatten(0, (runs, SURVEY_WORLDS)))
    seen = torch.cat(observations, 1)
    require_finite({"obs": (seen, "R N A O")})  # the initial weights of first layers depend on them
    center, spread = ranks.mean(seen.mean(1)), seen.std(1)
    if ranks.size > 1:
        rows = seen.shape[1] * ranks.size
        spread = (ranks.mean((seen - center[:, None]).square().mean(1)) * rows / (rows - 1)).sqrt()
    return Scale(center=center, spread=torch.where(spread > 1e-3, spread, 1.0))


def world_bytes(env: Env) -> int:
    state = env.initial(torch.zeros(1, env.spec.initial_noise))
    return sum(leaf.nbytes for _, leaf in leaves(state))


def host_or_kernel(host_work: str, fn: Callable[..., Any], rt: Runtime) -> Callable[..., Any]:
    """Wrap a step of worlds by the runtime; where they are stepped on the host, nothing is compiled."""
    return rt.time_stage(fn, "environment") if host_work else rt.kernel(fn, "environment")


class WorldCollector(Collector):
    """R x W worlds, and a pool of new ones that replace those that end."""

    def __init__(self, env: Env, count: int, depth: int, rng: Streams, rt: Runtime, deaths: bool, tally: bool) -> None:
        """Start ``count`` worlds of each run, with ``depth`` in reserve for each; ``deaths`` as in ``start_worlds``."""
        self.env, self.rng, self.runs = env, rng, len(rng.seeds)
        self.count_of_worlds, self.depth, self.kind = count, depth, (deaths, tally)
        self.static = rt.toggles.graph == "cycle"  # worlds and pool stay in the memory that a CUDA graph uses
        self.share = first_stage(env, self.runs, rng)
        self.resized = False
        self.host_work = getattr(env, "host_work", "")
        self._advance = host_or_kernel(self.host_work, advance, rt)
        self.start_anew()

    def start_anew(self) -> None:
        """Start all worlds and fill the pool, by the random streams."""
        noise = self._start_noise("worlds").flatten(0, 1)
        self.worlds: Worlds = start_worlds(self.env, noise, *self.kind)
        self.pool: Pool = self.new_pool()

    def new_pool(self) -> Pool:
        noise = self._start_noise("pool", self.depth).transpose(0, 1).flatten(1, 2)
        return make_pool(self.env, noise, self.worlds)

    def step_of(self, act: Callable[[Worlds], Tensor], noise: Tensor) -> Callable[[], Any]:
        """Return a function that computes one step of all worlds: the same with each call, or on the host the next."""
        worlds, action = self.worlds, act(self.worlds)

        def call() -> Any:
            nonlocal worlds, action
            after = self._advance(self.env, worlds, action, noise, self.pool)
            if self.host_work:  # a state is stepped once
                self.worlds = worlds = after[0]
                action = act(worlds)
            return after

        return call

    def observations(self) -> Any:
        return self.by_run(self.worlds.obs)

    def figures(self) -> dict[str, Float[Tensor, " R"]]:
        return {} if self.worlds.tally is None else read_tally(self.env, self.worlds.tally, self.runs)

    def record(self) -> dict[str, Any]:
        return self.env.record() if hasattr(self.env, "record") else {}

    def inexact(self) -> list[str]:
        return self.env.inexact() if hasattr(self.env, "inexact") else []

    def ended(self) -> float | None:
        """Return how many episodes of a run have ended in the present worlds, as a mean over runs (host sync)."""
        return self.worlds.replaced.sum().item() / self.runs

    def tensors_to_check(self) -> CheckedTensors:
        lead = (self.runs, self.count_of_worlds)
        worlds = {f"worlds.{k}": (v.unflatten(0, lead), "R W") for k, v in leaves(self.worlds)}
        pool = {f"pool.{k}": (v.unflatten(0, (-1, *lead)), "depth R W") for k, v in leaves(self.pool)}
        return {name: value for name, value in {**worlds, **pool}.items() if value[0].is_floating_point()}

    def state_dict(self) -> dict[str, Tensor]:
        return {f"worlds.{k}": v for k, v in leaves(self.worlds)} | {f"pool.{k}": v for k, v in leaves(self.pool)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``; if it is of another number of worlds, these stay as they are, see ``resized``."""
        self.resized = self.worlds_in(state) != self.count_of_worlds
        if not self.resized:
            self.worlds = self.keep_static(self.worlds, load_leaves(self.worlds, state, "worlds"))
            self.pool = self.keep_static(self.pool, load_leaves(self.pool, state, "pool"))

    def worlds_in(self, state: dict[str, Tensor]) -> int:
        return len(state["worlds.replaced"]) // self.runs

    def keep_static(self, old: T, new: T) -> T:
        """Return ``new``, copied into the memory of ``old`` if a CUDA graph uses it."""
        return tree_map(Tensor.copy_, old, new) if self.static else new

    def by_run(self, tree: T) -> T:
        return tree_map(lambda leaf: leaf.unflatten(0, (self.runs, self.count_of_worlds)), tree)

    def _start_noise(self, name: str, *lead: int) -> Float[Tensor, "R ..."]:
        return start_noise(self.env, self.rng, name, (*lead, self.count_of_worlds), self.share)
