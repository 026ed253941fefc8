"""Assembly of a run: its task (an environment and a learner that fits it), runtime and random streams."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any

import torch

from uavlab import collectors, envs, learners
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.installation import program
from uavlab.core.protocols import Collector, Policy
from uavlab.core.registry import COLLECTORS, ENVIRONMENTS, LEARNERS, Environment, Settings
from uavlab.core.rng import Streams
from uavlab.core.text import require_known
from uavlab.evaluation import EPISODES, Evaluation
from uavlab.experiment.curriculum import parse, start_in_stages
from uavlab.experiment.names import Preset
from uavlab.learners.learner import Learner
from uavlab.runtime.oom_retry import is_out_of_memory
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import Monitor
from uavlab.runtime.toggles import TOGGLES, Toggles, eager

WINGS = ("uavlab.telemetry.build",)  # tasks that the core only knows by name, so that it does without them
BUILT_IN = (envs, collectors, learners, *map(import_module, WINGS))  # registered by their import
PLAIN = Toggles()
SHARED = {"gamma", "hidden"}  # settings of a preset's learner that hold for another one, too
EVALUATION, VALIDATION = "evaluate", "validate"  # random streams of final scores, and of the selection of a policy


@dataclass(frozen=True)
class Task:
    """An environment, a learner that fits it, and the collector that the learner names."""

    environment: Environment
    learner: str  # its name
    algorithm: type[Learner]  # registered under this name
    collector: type[Collector]
    settings: tuple[type[Any], ...]  # classes whose fields are settings: collector, learner, environment
    evaluation: Evaluation
    inapplicable: Mapping[str, str]  # toggles without effect here, and the reason

    def build(self, config: Settings, rng: Streams, rt: Runtime) -> tuple[Any, Any]:
        """Measure inputs once, then build the learner and the collector of its batches."""
        for name, reason in without_effect(self, rt.toggles).items():
            rt.fall_back(name, reason)
        choose, table = self.environment.implementation, config.run.curriculum

        def implement(env: Any) -> Any:
            return choose(env, rt) if choose else env

        if table is None:
            env = implement(config.env)
        else:
            env = start_in_stages(parse(table, config.env), config.env, implement)
        inputs = self.collector.measure_inputs(config, rng, rt)
        learner = self.algorithm.build(config, inputs, rng, rt)

        def snapshot() -> Policy:
            return self.algorithm.load_policy(config.learner, config.env.spec, config.env.spec, learner.parameters())

        policy = learner.policy(env.spec, explore=True)
        return learner, self.collector.build(config, env, inputs, policy, snapshot, rng, rt)

    def plan(self, config: Settings) -> dict[str, Any]:
        """Return planned steps, updates and bytes of a run without building anything."""
        run = config.run
        head = {"preset": config.preset, "updates": run.updates, "minutes": run.minutes, "runs": run.runs}
        return {**head, **self.collector.plan(config), **self.algorithm.plan(config)}


def task(environment: str, learner: str | None = None) -> Task:
    """Assemble a task; by default with the environment's own learner, or the first one that fits."""
    env = ENVIRONMENTS[environment]
    name = learner or env.learner or next(fitting(env), None)
    if name is None:
        raise ConfigError(f"{environment}: no learner fits it; set learner=NAME, one of {', '.join(LEARNERS)}.")
    require_known("learner", name, LEARNERS)
    algorithm = LEARNERS[name]
    if learner and (reason := algorithm.unsupported(_spec(env))):
        fits = ", ".join(fitting(env)) or "none"
        raise ConfigError(f"learner {name} cannot learn {environment}: {reason}. Learners that can: {fits}.")
    collector = COLLECTORS[algorithm.collector]
    lacks = collector.lacks if env.implementation else {**collector.lacks, "maps": "the environment has no such maps"}
    missing = {title: lacks[toggle.part] for title, toggle in TOGGLES.items() if toggle.part in lacks}
    return Task(
        environment=env,
        learner=name,
        algorithm=algorithm,
        collector=collector,
        settings=(collector.settings, algorithm.settings, env.kind),
        evaluation=env.evaluation or EPISODES,
        inapplicable={**algorithm.inapplicable, **missing},
    )


def without_effect(task: Task, toggles: Toggles) -> dict[str, str]:
    """Return the toggles without effect on a task that have no usual value (``plain``, ``eager``), with why."""
    plain, default = Toggles(), eager()
    return {
        name: reason
        for name, reason in task.inapplicable.items()
        if getattr(toggles, name) not in (getattr(plain, name), default.get(name))
    }


def preset_values(preset: Preset, chosen: Task) -> dict[str, Any]:
    """Return the settings of a preset; with another learner, those of the task, the run, and the ``SHARED`` ones."""
    own = task(preset.env, preset.values.get("learner"))
    if own.learner == chosen.learner:
        return preset.values
    names = {each.name for part in own.settings[:2] for each in fields(part)}
    known = {each.name for part in chosen.settings[:2] for each in fields(part)} & SHARED
    return {name: value for name, value in preset.values.items() if name not in names - known}


def fitting(env: Environment) -> Iterator[str]:
    """Yield the names of the learners that do not refuse an environment, in the order of their registration."""
    return (name for name, algorithm in LEARNERS.items() if not algorithm.unsupported(_spec(env)))


def _spec(env: Environment) -> Any:
    return getattr(env.kind(), "spec", None)  # ``check_env`` reports what else is wrong with the class


def runtime(run: Any, toggles: Toggles = PLAIN, ranks: Ranks = ALONE) -> Runtime:
    """Choose the device, and resolve the toggles on it."""
    cuda = torch.cuda.is_available()
    if run.device == "cuda" and not cuda:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"torch {torch.__version__}" + ("" if visible is None else f", CUDA_VISIBLE_DEVICES={visible!r}")
        raise ConfigError(
            f"device: cuda requested, but torch.cuda.is_available() is False ({why}); use device=auto or cpu, and see "
            f"`{program()} doctor`."
        )
    device = "cuda" if cuda and run.device != "cpu" else "cpu"
    return Runtime(torch.device(device), toggles, ranks=ranks)


def streams(run: Any, device: torch.device, dtype: torch.dtype = torch.float32, rank: int = 0) -> Streams:
    """Return the random streams of all runs; run r is seeded with seed + r."""
    return Streams([run.seed + r for r in range(run.runs)], device, dtype, rank)


def assemble(
    config: Settings, monitor: Monitor | None = None, ranks: Ranks = ALONE
) -> tuple[Runtime, Streams, Any, Any]:
    """Build runtime, random streams, learner and collector of a training loop; ``monitor`` times its stages.

    Without one, a new monitor does so where the setting ``monitor`` says so. All ``ranks`` get the learner of rank 0.
    """
    rt = runtime(config.run, config.toggles, ranks)
    rt = replace(rt, monitor=monitor or (Monitor(rt.device) if config.run.monitor else None))
    rng = streams(config.run, rt.device, rank=ranks.rank)
    with rt.scope():
        learner, source = config.task.build(config, rng, rt)
        if ranks.size > 1:
            state, local = learner.state_dict(), learner.local
            learner.load_state_dict({k: leaf if k in local else ranks.from_first(leaf) for k, leaf in state.items()})
        return rt, rng, learner, source


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn an out-of-memory error into a one-line message that names the settings to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        what = str(error).splitlines()[0] if str(error) else "allocation refused"
        raise ResourceError(
            f"out of memory: {what}; lower capacity, worlds, batch or hidden, or set recompute=on, which stores no "
            "activations, or placement=host, which moves replay."
        ) from error
