"""From valid settings to the objects of a run; the one place where alternatives are chosen."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.collectors.off_policy import Replayed, blank_row, replay_bytes, survey
from uavlab.collectors.on_policy import RolloutConfig, Rollouts
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.protocols import Env, Policy
from uavlab.core.rng import Streams
from uavlab.core.types import leaves, tree_map
from uavlab.envs.autoreset import start_worlds
from uavlab.envs.mapping.env import Mapping as MappingEnv
from uavlab.envs.mapping.env import OverwrittenMapping
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.evaluate import episodes, summary
from uavlab.experiment.config import Config, RunConfig
from uavlab.learners import coma
from uavlab.learners.coma import COMA, COMAConfig
from uavlab.learners.masac import base
from uavlab.learners.masac.base import MASACBase, MASACConfig
from uavlab.learners.masac.batched import MASAC
from uavlab.learners.masac.loop import RUNGS, MASACLoop
from uavlab.learners.masac.networks import assign_networks
from uavlab.learners.masac.vmap import MASACVmap
from uavlab.nets.mlp import StackedMLP
from uavlab.replay.buffer import IDENTITY, ByPriority, Store, Uniform
from uavlab.replay.host_buffer import host_transfer
from uavlab.runtime.oom_retry import is_out_of_memory, require_memory
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import Monitor
from uavlab.runtime.toggles import EAGER, Toggles
from uavlab.telemetry import build, metrics
from uavlab.telemetry.forecaster import ForecasterConfig

PLAIN = Toggles()
EVALUATION, VALIDATION = "evaluate", "validate"  # streams of the last word, and of what chooses a policy
OF_REPLAY = ("placement", "prefetch", "priorities", "interval", "ratio")
NO_REPLAY = "this learner flies whole episodes anew for each update and keeps no replay"
NO_LOGS = "this learner reads no logs"
NO_TEAM = "this learner learns from logs, no team flies"
UNSERVED: dict[type, dict[str, str]] = {
    COMAConfig: {
        "update": "this learner updates all agents at once; use update=batched",
        **dict.fromkeys(OF_REPLAY, NO_REPLAY),
        "loader": NO_LOGS,
    },
    MASACConfig: {"loader": NO_LOGS},
    ForecasterConfig: dict.fromkeys(("update", "acting", "maps", *OF_REPLAY), NO_TEAM),
}
"""Toggles that do nothing for some learners, by their settings, and why."""


def runtime(run: RunConfig, toggles: Toggles = PLAIN) -> Runtime:
    """Choose the device, and tell which toggles cannot be used there.

    Raises:
        ConfigError: CUDA is asked for and not there.
    """
    cuda = torch.cuda.is_available()
    if run.device == "cuda" and not cuda:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"torch {torch.__version__}" + ("" if visible is None else f", CUDA_VISIBLE_DEVICES={visible!r}")
        raise ConfigError(
            f"device: cuda requested, but torch.cuda.is_available() is False ({why}); use device=auto or cpu, and see "
            "`uavlab doctor`."
        )
    device = "cuda" if cuda and run.device != "cpu" else "cpu"
    return Runtime(torch.device(device), toggles)


def streams(run: RunConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> Streams:
    """Open the random streams of every run."""
    return Streams([run.seed + r for r in range(run.runs)], device, dtype)


def learner(config: Config, rng: Streams, rt: Runtime) -> Any:
    """Build the learner with its first parameters: ``MASAC``, for teams that choose ``COMA``, for logs ``Forecaster``.

    Raises:
        ResourceError: It does not fit into free memory.
    """
    for name, reason in UNSERVED.get(type(config.learner), {}).items():
        if getattr(rt.toggles, name) not in (getattr(PLAIN, name), EAGER.get(name)):
            rt.fall_back(name, reason)
    if isinstance(config.learner, ForecasterConfig):
        return build.learner(config, rng, rt)
    spec, acting = config.env.spec, rt.toggles.acting
    if isinstance(config.learner, COMAConfig):
        require_memory(coma_bytes(config), "learner", "width, hidden, worlds or runs", rt.device)
        return COMA(config.learner, spec, rng, rt, acting)
    require_memory(learner_bytes(config), "learner", "hidden, batch or runs", rt.device)
    rungs = {name: partial(MASACLoop, rung=name) for name in RUNGS}
    kinds: dict[str, Callable[..., MASACBase]] = {**rungs, "vmap": MASACVmap, "batched": MASAC}
    made, inputs = kinds[rt.toggles.update], survey(config.env, rng)
    return made(config.learner, spec, inputs, rng, rt, acting=acting)


def source(config: Config, pupil: Any, rng: Streams, rt: Runtime) -> Any:
    """Build the worlds, and for learners that need it the replay, that feed the learner.

    Raises:
        ResourceError: Worlds or replay do not fit into free memory.
    """
    if isinstance(config.learner, ForecasterConfig):
        return build.source(config, rng, rt)
    spec = config.env.spec
    policy = pupil.policy(spec, explore=True)
    if isinstance(config.source, RolloutConfig):
        states = 2 * world_bytes(config.env) * config.source.worlds * config.run.runs  # of two steps at a time
        require_memory(states, "worlds", "worlds or runs", rt.device)
        return Rollouts(world(config.env, rt), policy, config.source, rng, rt)

    def snapshot() -> Policy:
        return kept_policy(config, config.env, pupil.parameters())

    return Replayed(config.env, policy, config.source, rng, rt, store(config, rng, rt), snapshot)


def world(env: Env, rt: Runtime) -> Env:
    """Choose how the maps of an environment that has any are computed."""
    if rt.toggles.maps == "device" or type(env) is not MappingEnv:
        return env
    if rt.toggles.maps == "host" and rt.device.type != "cpu":
        rt.fall_back("maps", f"numpy and OpenCV work on the CPU, this run is on {rt.device.type}")
        return env
    kind = HostMapping if rt.toggles.maps == "host" else OverwrittenMapping
    return kind(**{f.name: getattr(env, f.name) for f in fields(env)})


def kept_policy(config: Config, task: Any, parameters: Float[Tensor, "R K P"]) -> Any:
    """Fly kept actors of a run, for a team that may differ in size from the one trained; or tell of logs.

    Raises:
        ConfigError: The team cannot fly them.
    """
    if isinstance(config.learner, ForecasterConfig):
        return build.kept_policy(config, parameters)
    flown = task.spec
    kept = coma.load_policy if isinstance(config.learner, COMAConfig) else base.load_policy
    return kept(config.learner, config.env.spec, flown, parameters)


def figures(
    config: Config,
    task: Any,
    policy: Any,
    rng: Streams,
    count: int,
    mean_action: bool = False,
    stream: str = EVALUATION,
) -> dict[str, Float[Tensor, "R E"]]:
    """Score a policy on a task: over ``count`` episodes, or flights of a log."""
    if isinstance(config.learner, ForecasterConfig):
        return build.figures(config, task, policy, rng.device, count, stream == VALIDATION)
    return episodes(task, policy, rng, count, mean_action, stream)


def summed_up(config: Config, task: Any, found: dict[str, Tensor]) -> dict[str, Any]:
    """Give mean and interval of each figure."""
    if isinstance(config.learner, ForecasterConfig):
        return metrics.summary(found)
    return summary(found, task.metrics)


def actor_size(config: Config) -> int:
    """Count the parameters of one actor."""
    if isinstance(config.learner, ForecasterConfig):
        return build.size(config)
    spec = config.env.spec
    if isinstance(config.learner, COMAConfig):
        return coma.networks(config.learner, spec)[0].count
    return StackedMLP(spec.obs, config.learner.hidden, 2 * spec.action).count


def store(config: Config, rng: Streams, rt: Runtime) -> Store:
    """Choose what keeps the rows, and where.

    Raises:
        ResourceError: They do not fit into the memory that is free there.
        ConfigError: There are more rows than priorities can serve.
    """
    toggles, replay, env, runs = rt.toggles, config.source, config.env, len(rng.seeds)
    here = toggles.placement == "device"
    device = rt.device if here else torch.device("cpu")
    masses = 0 if toggles.priorities == "off" else 8 * replay.capacity * runs
    require_memory(replay_bytes(env, replay, runs) + masses, "replay", "capacity or runs", device)
    noise = torch.zeros(runs * replay.worlds, env.spec.initial_noise, dtype=rng.dtype, device=device)
    worlds = start_worlds(env, noise)
    example = tree_map(lambda leaf: leaf.unflatten(0, (runs, -1)), blank_row(env, worlds))
    transfer = IDENTITY if here else host_transfer(example, replay.batch, rt, toggles.placement == "pinned")
    if toggles.priorities == "off":
        return Uniform(example, replay.capacity, transfer)
    return ByPriority(example, replay.capacity, replay, toggles.priorities, transfer)


def assembled(config: Config, monitor: Monitor | None = None) -> tuple[Runtime, Streams, Any, Any]:
    """Build all that a training loop needs; ``monitor`` times its stages.

    Raises:
        ConfigError: The settings do not fit this machine.
        ResourceError: Memory does not suffice.
    """
    rt = replace(runtime(config.run, config.toggles), monitor=monitor)
    rng = streams(config.run, rt.device)
    with rt.scope():
        pupil = learner(config, rng, rt)
        return rt, rng, pupil, source(config, pupil, rng, rt)


def learner_bytes(config: Config) -> int:
    """Count the bytes that a learner will take at least: networks, and what the critics keep for their gradients.

    Every parameter has a gradient and two moments; critics have targets, too.
    """
    spec, given, batch = config.env.spec, config.learner, config.source.batch
    networks = len(set(assign_networks(spec, spec, given.share)))
    actors = networks * StackedMLP(spec.obs, given.hidden, 2 * spec.action).count
    critics = 2 * spec.agents * StackedMLP(spec.agents * (spec.obs + spec.action), given.hidden, 1).count
    kept = 2 * 2 * spec.agents * batch * given.hidden  # two critics of two layers
    return 4 * config.run.runs * (4 * actors + 5 * critics + kept)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Say in one sentence that memory ran out, however torch said it.

    Raises:
        ResourceError: An allocation on the CPU or on a GPU was refused.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        what = str(error).splitlines()[0] if str(error) else "allocation refused"
        raise ResourceError(f"out of memory: {what}; lower capacity, worlds, batch or hidden.") from error


def coma_bytes(config: Config) -> int:
    """Count the bytes that a learner from episodes will take at least: networks, and activations of a pass's piece."""
    spec, given = config.env.spec, config.learner
    actor, critic = coma.networks(given, spec)
    rows = -(-spec.horizon * config.source.worlds // given.minibatches) * spec.agents
    kept = rows * given.width * spec.side**2 * len(given.kernels)
    return 4 * config.run.runs * (4 * actor.count + 5 * critic.count + kept)


def world_bytes(env: Env) -> int:
    """Count the bytes of one world's state."""
    state = env.initial(torch.zeros(1, env.spec.initial_noise))
    return sum(leaf.nbytes for _, leaf in leaves(state))


def pace(config: Config) -> tuple[int, str]:
    """Tell how much an update is of, and what: moves of agents, or windows."""
    if isinstance(config.learner, ForecasterConfig):
        return config.source.batch * config.run.runs, "windows"
    return steps_per_update(config) * config.run.runs * config.env.spec.agents, "agent-steps"


def steps_per_update(config: Config) -> int:
    """Count the steps that the worlds of one run make together for an update, where nothing changes their ratio."""
    if isinstance(config.source, RolloutConfig):
        return config.env.spec.horizon * config.source.worlds
    return config.source.world_steps * config.source.worlds


def plan(config: Config) -> dict[str, Any]:
    """Tell what a run would do and take, before anything is made."""
    run = config.run
    told = {"preset": config.preset, "updates": run.updates, "minutes": run.minutes, "runs": run.runs}
    if isinstance(config.learner, ForecasterConfig):
        return {**told, **build.plan(config)}
    agents = config.env.spec.agents
    if isinstance(config.source, RolloutConfig):
        worlds = config.source.worlds
        steps = None if run.updates is None else run.updates * steps_per_update(config)
        missions = None if run.updates is None else run.updates * worlds
        gradient_steps = (
            None if run.updates is None else run.updates * config.learner.passes * config.learner.minibatches
        )
        return {
            **told,
            "missions_per_run": missions,
            "world_steps_per_run": steps,
            "agent_steps_per_run": None if steps is None else steps * agents,
            "gradient_steps_per_run": gradient_steps,
            "world_bytes": world_bytes(config.env) * worlds * run.runs,
        }
    replay, toggles = config.source, config.toggles
    cycles = -(-(run.updates or 0) // (toggles.interval * toggles.ratio)) * toggles.interval  # whole rounds
    steps = None if run.updates is None else cycles * steps_per_update(config) + replay.learning_starts
    return {
        **told,
        "world_steps_per_run": steps,
        "agent_steps_per_run": None if steps is None else steps * agents,
        "replay_bytes": replay_bytes(config.env, replay, run.runs),
    }
