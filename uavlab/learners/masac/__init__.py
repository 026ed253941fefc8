"""Multi-agent soft actor-critic (MASAC): batched, as a loop over agents, and by vmap."""

import math
from collections.abc import Mapping
from functools import partial
from statistics import fmean

from uavlab.core.portable import Portable
from uavlab.core.registry import LEARNERS, LearnerEntry, Settings
from uavlab.core.rng import Streams
from uavlab.core.symptoms import Entropy, Range, Remedy, Symptoms, higher, longer_view, lower, move_range, times
from uavlab.core.types import EnvSpec, Scale, own_actions
from uavlab.learners.masac.loop import RUNGS, MASACLoop
from uavlab.learners.masac.masac import (
    MASAC,
    MASACConfig,
    MASACVmap,
    actor_net,
    assign_critics,
    critic_net,
    load_policy,
)
from uavlab.nets.assignment import assign_networks
from uavlab.ops.action_sampling import HALF_LOG_2PI
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.runtime import Runtime

FORMS: Mapping[str, type[MASAC]] = {**dict.fromkeys(RUNGS, MASACLoop), "vmap": MASACVmap, "batched": MASAC}


def build(config: Settings, inputs: Scale, rng: Streams, rt: Runtime) -> MASAC:
    """Build the learner in the form that the toggle ``update`` selects."""
    require_memory(learner_bytes(config), "learner", "hidden, batch or runs", rt.device)
    spec = config.env.spec
    return FORMS[rt.toggles.update](config.learner, spec, inputs, rng, rt)


def learner_bytes(config: Settings) -> int:
    """Return a lower bound of the learner's memory (bytes): networks, and the activations of the critics.

    Every parameter has a gradient and two moments; critics also have targets.
    """
    spec, hyper, batch = config.env.spec, config.learner, config.source.batch
    actors = len(set(assign_networks(spec, spec, hyper.share))) * actor_net(spec, hyper.hidden).count
    pairs = len(set(assign_critics(spec, hyper.critic)))
    critics = 2 * pairs * critic_net(spec, hyper.hidden, hyper.critic).count
    activations = 2 * 2 * pairs * batch * hyper.hidden  # two critics of two layers
    return 4 * config.run.runs * (4 * actors + 5 * critics + activations)


def refusal(spec: object) -> str | None:
    """Return why MASAC cannot learn an environment; None if it can."""
    if spec is None:  # ``check_env`` reports a class without a spec
        return None
    if not isinstance(spec, EnvSpec):
        return "it has no team of agents"
    return "its agents observe maps, MASAC's networks take vectors" if spec.side else None


def entropy_range(config: MASACConfig, spec: EnvSpec) -> Range:
    """Return the range of an agent's entropy: at most that of uniform actions in [-1, 1]^D, D log 2.

    The lower end is that of the narrowest Gaussian in the middle, where squashing changes little. Of agents whose D
    differ, it is the range of the mean.
    """
    if spec.choices:
        return move_range(spec)
    own = fmean(own_actions(spec))
    return Range(own * min(config.log_std_low + HALF_LOG_2PI + 0.5, 0.0), own * math.log(2))


def _usual_target(too_low: bool, config: MASACConfig, spec: EnvSpec) -> float | None:
    """Return the usual target entropy, -D (its mean), if the one that is set is near an end of the range."""
    low, high = entropy_range(config, spec)
    target = config.target_entropy
    if spec.choices or target is None:  # chosen for the moves
        return None
    return -fmean(own_actions(spec)) if (target < low / 2 if too_low else target > high / 2) else None


SYMPTOMS = Symptoms(
    entropy=Entropy("entropy", entropy_range, "entropy_limit", "target_share"),
    loss="critic_loss",
    remedies={
        "target_high": (  # the default follows the legal moves
            Remedy("target_entropy", lambda config, spec: None if config.target_entropy is None else "null"),
        ),
        "entropy_high": (
            Remedy("target_entropy", partial(_usual_target, False)),
            lower("alpha", 0.1, 0.1),
            higher("alpha_lr", 3e-3, 1e-2),  # the temperature falls while the entropy is above its target
            times("alpha", 0.1, least=1e-4),
            times("reward_scale", 10, most=1e4),
        ),
        "entropy_low": (
            Remedy("target_entropy", partial(_usual_target, True)),
            times("alpha", 10, most=10.0),
            times("reward_scale", 0.1, least=1e-4),
        ),
        "loss_grows": (
            Remedy("target_entropy", partial(_usual_target, False)),  # out of reach, it raises the temperature for ever
            lower("tau", 0.05, 0.01),
            lower("gamma", 0.99, 0.99),
            times("critic_lr", 0.3, least=1e-6),
        ),
        "scores_still": (higher("lr", 1e-4, 1e-3), longer_view(), times("reward_scale", 10, most=1e4)),
    },
)

LEARNERS.register(
    "masac",
    LearnerEntry(
        settings=MASACConfig,
        collector="off_policy",
        build=build,
        load_policy=load_policy,
        size=lambda config, spec: actor_net(spec, config.hidden).count,
        refusal=refusal,
        require_same=lambda config, trained, spec: assign_networks(trained, spec, config.share),
        portable=Portable(layers=lambda config, spec: actor_net(spec, config.hidden).by_layer),
        networks=lambda config, spec: assign_networks(spec, spec, config.share),
        symptoms=SYMPTOMS,
    ),
)
