"""Multi-agent soft actor-critic (MASAC): batched, as a loop over agents, and by vmap."""

from collections.abc import Mapping

from uavlab.core.portable import Portable
from uavlab.core.registry import LEARNERS, LearnerEntry, Settings
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, Scale
from uavlab.learners.masac.base import MASACBase, MASACConfig, load_policy
from uavlab.learners.masac.batched import MASAC, MASACVmap
from uavlab.learners.masac.choices import CHOICE_FORMS
from uavlab.learners.masac.loop import RUNGS, MASACLoop
from uavlab.learners.masac.networks import actor_net, assign_networks, critic_net
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.runtime import Runtime

FORMS: Mapping[str, type[MASACBase]] = {**dict.fromkeys(RUNGS, MASACLoop), "vmap": MASACVmap, "batched": MASAC}


def build(config: Settings, inputs: Scale, rng: Streams, rt: Runtime) -> MASACBase:
    """Build the learner in the form that the toggle ``update`` selects.

    Raises:
        ResourceError: Free memory is insufficient.
    """
    require_memory(learner_bytes(config), "learner", "hidden, batch or runs", rt.device)
    spec = config.env.spec
    forms = CHOICE_FORMS if spec.choices else FORMS
    return forms[rt.toggles.update](config.learner, spec, inputs, rng, rt)


def learner_bytes(config: Settings) -> int:
    """Return a lower bound of the learner's memory (bytes): networks, and the activations of the critics.

    Every parameter has a gradient and two moments; critics also have targets.
    """
    spec, hyper, batch = config.env.spec, config.learner, config.source.batch
    actors = len(set(assign_networks(spec, spec, hyper.share))) * actor_net(spec, hyper.hidden).count
    critics = 2 * spec.agents * critic_net(spec, hyper.hidden, hyper.critic).count
    activations = 2 * 2 * spec.agents * batch * hyper.hidden  # two critics of two layers
    return 4 * config.run.runs * (4 * actors + 5 * critics + activations)


def refusal(spec: object) -> str | None:
    """Return why MASAC cannot learn an environment; None if it can."""
    if spec is None:  # ``check_env`` reports a class without a spec
        return None
    if not isinstance(spec, EnvSpec):
        return "it has no team of agents"
    return "its agents observe maps, MASAC's networks take vectors" if spec.choices and spec.side else None


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
    ),
)
