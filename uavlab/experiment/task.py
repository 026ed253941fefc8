"""A task: an environment and a learner that fits it, assembled from their registrations, with all that runs need."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from uavlab import collectors, envs, learners
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Policy
from uavlab.core.registry import COLLECTORS, ENVIRONMENTS, LEARNERS, Environment, Evaluation, Settings
from uavlab.core.rng import Streams
from uavlab.core.text import quote, suggest
from uavlab.evaluate import COMMON, Planner, episodes, summary
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import TOGGLES, Toggles, eager
from uavlab.telemetry import build
from uavlab.testing import check_env

BUILT_IN = (envs, collectors, learners, build)  # importing them registers them

EPISODES = Evaluation(
    figures=lambda config, env, policy, rng, count, mean, stream: episodes(env, policy, rng, count, mean, stream),
    summary=lambda env, values: summary(values, env.metrics),
    baseline=lambda config, rt, plan: Planner(plan),
    check=lambda config: check_env(config.env),
    units=lambda env: {metric.name: metric.unit for metric in (*env.metrics, *COMMON)},
    count="{} episodes",
    flies=True,
)


@dataclass(frozen=True)
class Task:
    """Everything that an experiment needs of its environment, learner and collector.

    Attributes:
        environment: Name of the environment.
        learner: Name of the learner.
        settings: Classes whose fields are settings: collector, learner, environment.
        evaluation: How policies are evaluated.
        baselines: Policies without learning, by name.
        calls: Calls of a cycle that can be timed alone.
        replay: Whether the collector has a replay buffer that can be filled anew.
        pace: Returns how many samples one update uses, and their unit, from the settings.
        unserved: Toggles without effect here, and the reason.
    """

    environment: str
    learner: str
    settings: tuple[type[Any], type[Any], type[Any]]
    evaluation: Evaluation
    baselines: Mapping[str, Any]
    calls: tuple[str, ...]
    replay: bool
    pace: Callable[[Settings], tuple[int, str]]
    unserved: Mapping[str, str]

    def build(self, config: Settings, rng: Streams, rt: Runtime) -> tuple[Any, Any]:
        """Build the learner and the source of its data: first the data, once, then the learner, then the source.

        Raises:
            ResourceError: Memory does not suffice.
            ConfigError: The settings do not fit together.
        """
        plain, default = Toggles(), eager()  # what nobody asked for needs no warning
        for name, reason in self.unserved.items():
            if getattr(rt.toggles, name) not in (getattr(plain, name), default.get(name)):
                rt.fall_back(name, reason)
        entry = COLLECTORS[LEARNERS[self.learner].collector]
        env = ENVIRONMENTS[self.environment].implementation(config.env, rt)
        data = entry.data(config, rng, rt)
        learner = LEARNERS[self.learner].build(config, data, rng, rt)

        def snapshot() -> Policy:
            return self.load_policy(config, config.env, learner.parameters())

        return learner, entry.build(config, env, data, learner, snapshot, rng, rt)

    def load_policy(self, config: Settings, env: Any, parameters: Float[Tensor, "R K P"]) -> Any:
        """Return the policy of stored parameters, for an environment that may differ in size from the trained one.

        Raises:
            ConfigError: The policy does not fit the environment.
        """
        return LEARNERS[self.learner].load_policy(config.learner, config.env.spec, env.spec, parameters)

    def require_same(self, config: Any, trained: Any, env: Any) -> None:
        """Check that a policy trained on ``trained`` can be evaluated on ``env``; ``config`` is the learner's.

        Raises:
            ConfigError: It cannot be evaluated there.
        """
        LEARNERS[self.learner].require_same(config, trained.spec, env.spec)

    def policy_size(self, config: Settings) -> int:
        """Count the parameters of one policy network."""
        return LEARNERS[self.learner].size(config.learner, config.env.spec)

    def plan(self, config: Settings) -> dict[str, Any]:
        """Return steps, updates and bytes of a run before anything is built."""
        run, entry = config.run, LEARNERS[self.learner]
        head = {"preset": config.preset, "updates": run.updates, "minutes": run.minutes, "runs": run.runs}
        return {**head, **COLLECTORS[entry.collector].plan(config), **entry.plan(config)}


def task(environment: str, learner: str | None = None) -> Task:
    """Assemble a task; without ``learner``, with the environment's default.

    Raises:
        ConfigError: There is no such learner, or it cannot learn this environment.
    """
    entry = ENVIRONMENTS[environment]
    name = learner or entry.learner or _first_fit(environment, entry)
    if name not in LEARNERS:
        raise ConfigError(f"unknown learner {quote(name)}{suggest(name, LEARNERS)}. Learners: {', '.join(LEARNERS)}.")
    if learner and (reason := LEARNERS[name].refusal(_spec(entry))):
        fits = ", ".join(each for each in LEARNERS if not LEARNERS[each].refusal(_spec(entry)))
        raise ConfigError(f"learner {name} cannot learn {environment}: {reason}. Learners that can: {fits or 'none'}.")
    collector = COLLECTORS[LEARNERS[name].collector]
    missing = {each: collector.lacks[toggle.part] for each, toggle in TOGGLES.items() if toggle.part in collector.lacks}
    return Task(
        environment=environment,
        learner=name,
        settings=(collector.settings, LEARNERS[name].settings, entry.kind),
        evaluation=entry.evaluation or EPISODES,
        baselines=entry.baselines,
        calls=collector.calls,
        replay=collector.replay,
        pace=collector.pace,
        unserved={**LEARNERS[name].unserved, **missing},
    )


def _first_fit(environment: str, entry: Environment) -> str:
    fits = [name for name, learner in LEARNERS.items() if learner.refusal(_spec(entry)) is None]
    if not fits:
        raise ConfigError(f"{environment}: no learner fits it; set learner=NAME, one of {', '.join(LEARNERS)}.")
    return fits[0]


def _spec(entry: Environment) -> Any:
    return getattr(entry.kind(), "spec", None)  # ``check_env`` reports what else is wrong with the class
