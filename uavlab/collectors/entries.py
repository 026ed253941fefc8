"""Registrations of the collectors, the survey of observations, and the allocation of replay."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from uavlab.collectors.fixed_length import FixedLengthCollector, FixedLengthConfig
from uavlab.collectors.off_policy import OffPolicyCollector, ReplayConfig, random_actions
from uavlab.collectors.on_policy import OnPolicyCollector, RolloutConfig
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env, Learner, Policy, RecurrentPolicy
from uavlab.core.registry import COLLECTORS, CollectorEntry, Settings, Trial
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, LiveTransition, Scale, Transition, features_of, leaves, tree_map
from uavlab.envs.autoreset import Worlds, move, start_worlds
from uavlab.envs.staged import Staged
from uavlab.replay.buffer import ByStage, Returns, Store, Uniform, host_transfer
from uavlab.replay.prioritized import ByPriority
from uavlab.replay.ring import row_bytes
from uavlab.runtime.finite_check import require_finite
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.runtime import Runtime


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


SURVEY_WORLDS, SURVEY_STEPS = 64, 64  # per run
TRIAL_STEPS, TRIAL_WORLDS = 100, 4  # most random steps of a trial's worlds, and worlds of all its runs
NO_REPLAY = "this learner runs new episodes for each update and has no replay"
NO_LOGS = "this learner reads no logs"


def _build_off_policy(
    config: Settings, env: Env, data: Any, learner: Learner, snapshot: Callable[[], Policy], rng: Streams, rt: Runtime
) -> OffPolicyCollector:
    policy, steps = learner.policy(env.spec, explore=True), getattr(config.learner, "n_step", 1)
    tally = config.run.log_episodes
    if isinstance(policy, RecurrentPolicy):
        raise ConfigError("off_policy: got a policy with memory, which replay does not hold; collect by fixed_length.")
    returns = Returns(steps, config.learner.gamma, config.source.worlds) if steps > 1 else None
    return OffPolicyCollector(env, policy, config.source, rng, rt, store(config, rng, rt), snapshot, returns, tally)


def _build_on_policy(
    config: Settings, env: Env, data: Any, learner: Learner, snapshot: Callable[[], Policy], rng: Streams, rt: Runtime
) -> OnPolicyCollector:
    states = 2 * world_bytes(config.env) * config.source.worlds * config.run.runs  # those before and after a step
    require_memory(states, "worlds", "worlds or runs", rt.device)
    return OnPolicyCollector(
        env, learner.policy(env.spec, explore=True), config.source, rng, rt, config.run.log_episodes
    )


def _build_fixed_length(
    config: Settings, env: Env, data: Any, learner: Learner, snapshot: Callable[[], Policy], rng: Streams, rt: Runtime
) -> FixedLengthCollector:
    require_memory(_fixed_length_bytes(config), "worlds", "worlds, rollout_steps, spares or runs", rt.device)
    policy = learner.policy(env.spec, explore=True)
    return FixedLengthCollector(env, policy, config.source, rng, rt, config.run.log_episodes)


def _observes_vectors(spec: EnvSpec) -> bool:
    return not spec.side or spec.features > 0


def survey(env: Env, rng: Streams, ranks: Ranks = ALONE) -> Scale:
    """Measure mean and standard deviation of observed vectors under random actions; constant features get scale 1.

    Several ``ranks`` measure those of all their worlds together.
    """
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


def store(config: Settings, rng: Streams, rt: Runtime) -> Store:
    """Build replay on the device or the host, uniform or prioritized."""
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


def example_env(config: Settings) -> Any:
    """Return an environment whose worlds have all parts that those of a run have."""
    return config.env if config.run.curriculum is None else Staged(config.env, (config.env,))


def world_bytes(env: Env) -> int:
    """Return the bytes of one world's state."""
    state = env.initial(torch.zeros(1, env.spec.initial_noise))
    return sum(leaf.nbytes for _, leaf in leaves(state))


def _plan_off_policy(config: Settings) -> dict[str, Any]:
    replay, toggles, run = config.source, config.toggles, config.run
    cycles = -(-(run.updates or 0) // (toggles.interval * toggles.ratio)) * toggles.interval  # whole rounds
    steps = None if run.updates is None else cycles * replay.world_steps * replay.worlds + replay.learning_starts
    return {
        "world_steps_per_run": steps,
        "agent_steps_per_run": None if steps is None else steps * config.env.spec.agents,
        "replay_bytes": replay_bytes(example_env(config), replay, run.runs),
    }


def _plan_on_policy(config: Settings) -> dict[str, Any]:
    worlds, updates, spec = config.source.worlds, config.run.updates, config.env.spec
    steps = None if updates is None else updates * spec.horizon * worlds
    return {
        "missions_per_run": None if updates is None else updates * worlds,
        "world_steps_per_run": steps,
        "agent_steps_per_run": None if steps is None else steps * spec.agents,
        "world_bytes": world_bytes(config.env) * worlds * config.run.runs,
    }


def _plan_fixed_length(config: Settings) -> dict[str, Any]:
    source, updates = config.source, config.run.updates
    steps = None if updates is None else updates * source.rollout_steps * source.worlds
    return {
        "world_steps_per_run": steps,
        "agent_steps_per_run": None if steps is None else steps * config.env.spec.agents,
        "world_bytes": _fixed_length_bytes(config),
    }


def _fixed_length_bytes(config: Settings) -> int:
    """Return the bytes of worlds before and after a step, of those in reserve, and of the observations of a batch."""
    env, source = config.env, config.source
    obs = env.observe(env.initial(torch.zeros(1, env.spec.initial_noise)))
    batch = 2 * source.rollout_steps * sum(leaf.nbytes for _, leaf in leaves(obs))
    return ((2 + source.spares) * world_bytes(env) + batch) * source.worlds * config.run.runs


def _try_off_policy(config: Settings) -> Trial:
    """Return the run with fewer random steps before its first update."""
    source = config.source
    few = min(source.learning_starts, TRIAL_STEPS * source.worlds)
    apart = f"{source.learning_starts:,} random steps" if few < source.learning_starts else ""
    return Trial(replace(config, source=replace(source, learning_starts=few)), apart=apart)


def _try_on_policy(config: Settings) -> Trial:
    """Return the run with few worlds; the time of an update grows with their number."""
    worlds = config.source.worlds
    few = min(worlds, max(1, TRIAL_WORLDS // config.run.runs))
    size = f"{few} of {worlds} worlds" if few < worlds else ""
    return Trial(replace(config, source=replace(config.source, worlds=few)), worlds / few, size)


def _agent_steps(config: Settings, steps: int) -> tuple[int, str]:
    return steps * config.source.worlds * config.run.runs * config.env.spec.agents, "agent-steps"


COLLECTORS.register(
    "off_policy",
    CollectorEntry(
        settings=ReplayConfig,
        data=lambda config, rng, rt: survey(config.env, rng, rt.ranks),
        build=_build_off_policy,
        plan=_plan_off_policy,
        pace=lambda config: _agent_steps(config, config.source.world_steps),
        calls=("update", "acting", "environment"),
        replay=True,
        lacks={"logs": NO_LOGS},
        trial=_try_off_policy,
    ),
)
COLLECTORS.register(
    "on_policy",
    CollectorEntry(
        settings=RolloutConfig,
        data=lambda config, rng, rt: None,
        build=_build_on_policy,
        plan=_plan_on_policy,
        pace=lambda config: _agent_steps(config, config.env.spec.horizon),
        calls=("update", "acting", "environment"),
        replay=False,
        lacks={"replay": NO_REPLAY, "logs": NO_LOGS},
        trial=_try_on_policy,
    ),
)
COLLECTORS.register(
    "fixed_length",
    CollectorEntry(
        settings=FixedLengthConfig,
        data=lambda config, rng, rt: survey(config.env, rng, rt.ranks) if _observes_vectors(config.env.spec) else None,
        build=_build_fixed_length,
        plan=_plan_fixed_length,
        pace=lambda config: _agent_steps(config, config.source.rollout_steps),
        calls=("update", "acting", "environment"),
        replay=False,
        lacks={"replay": "this learner takes new steps for each update and has no replay", "logs": NO_LOGS},
    ),
)
