"""Counterfactual multi-agent policy gradients (COMA), for teams that observe maps and choose moves in turn."""

from uavlab.core.portable import Portable
from uavlab.core.registry import LEARNERS, LearnerEntry, Settings
from uavlab.core.rng import Streams
from uavlab.core.symptoms import Entropy, Symptoms, higher, longer_view, lower, move_range, times
from uavlab.core.types import EnvSpec
from uavlab.learners.coma.algorithm import COMA, COMAConfig, load_policy, networks
from uavlab.nets.assignment import require_same_task
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.runtime import Runtime


def build(config: Settings, data: None, rng: Streams, rt: Runtime) -> COMA:
    """Build the learner."""
    require_memory(learner_bytes(config), "learner", "width, hidden, worlds or runs", rt.device)
    return COMA(config.learner, config.env.spec, rng, rt)


def learner_bytes(config: Settings) -> int:
    """Return a lower bound of the learner's memory (bytes): networks, and the activations of one minibatch."""
    spec, hyper = config.env.spec, config.learner
    actor, critic = networks(hyper, spec)
    rows = -(-spec.horizon * config.source.worlds // hyper.minibatches) * spec.agents
    activations = rows * hyper.width * spec.side**2 * len(hyper.kernels)
    return 4 * config.run.runs * (4 * actor.count + 5 * critic.count + activations)


def plan(config: Settings) -> dict[str, int | None]:
    """Count the gradient steps of a run."""
    updates, hyper = config.run.updates, config.learner
    return {"gradient_steps_per_run": None if updates is None else updates * hyper.passes * hyper.minibatches}


def refusal(spec: object) -> str | None:
    """Return why COMA cannot learn an environment; None if it can."""
    if not (isinstance(spec, EnvSpec) and spec.choices and spec.side):
        return "COMA chooses among moves on square maps; this one has none"
    return "its agents observe features beside their maps, COMA's networks take maps alone" if spec.features else None


SYMPTOMS = Symptoms(
    entropy=Entropy(
        "entropy", lambda config, spec: move_range(spec), "entropy_limit"
    ),  # of the policy mixed with a uniform one
    loss="critic_loss",
    returns="return",
    remedies={
        "entropy_high": (
            lower("explore_to", 0.1, 0.02),
            times("entropy", 0.1, least=1e-4),
            times("lr", 3, most=1e-2),
        ),
        "entropy_low": (
            lower("lr", 3e-3, 2e-4),
            times("entropy", 10, least=0.01, most=0.1),
            times("explore_to", 3, least=0.05, most=0.2),
            times("lr", 0.3, least=1e-6),
        ),
        "loss_grows": (lower("gamma", 0.99, 0.99), times("critic_lr", 0.3, least=1e-6)),
        "scores_still": (higher("lr", 1e-4, 2e-4), longer_view(), times("lr", 3, most=1e-2)),
    },
)

LEARNERS.register(
    "coma",
    LearnerEntry(
        settings=COMAConfig,
        collector="on_policy",
        build=build,
        load_policy=load_policy,
        size=lambda config, spec: networks(config, spec)[0].count,
        refusal=refusal,
        require_same=lambda config, trained, spec: require_same_task(trained, spec),
        plan=plan,
        portable=Portable(layers=lambda config, spec: networks(config, spec)[0].by_layer),
        symptoms=SYMPTOMS,
        unserved={"update": "this learner updates all agents at once; use update=batched"},
    ),
)
