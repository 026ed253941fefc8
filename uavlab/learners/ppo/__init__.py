"""Proximal policy optimization of teams: ``mappo`` with critics of the whole team, ``ippo`` with those of one agent."""

from statistics import fmean
from typing import Any

from uavlab.core.portable import Portable
from uavlab.core.registry import LEARNERS, LearnerEntry, Settings
from uavlab.core.rng import Streams
from uavlab.core.symptoms import Entropy, Range, Symptoms, higher, longer_view, lower, move_range, times
from uavlab.core.types import EnvSpec, own_actions
from uavlab.learners.ppo.ppo import PPO, IPPOConfig, MAPPOConfig, load_policy, make_team
from uavlab.ops.action_sampling import HALF_LOG_2PI
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.runtime import Runtime


def build(config: Settings, data: Any, rng: Streams, rt: Runtime) -> PPO:
    """Build the learner."""
    require_memory(learner_bytes(config), "learner", "width, hidden, worlds or runs", rt.device)
    return PPO(config.learner, config.env.spec, data, rng, rt, config.source.worlds)


def learner_bytes(config: Settings) -> int:
    """Return a lower bound of the learner's memory (bytes): networks with gradients and two moments."""
    team = make_team(config.learner, config.env.spec, config.env.spec)
    actors, critics = (len(set(each)) for each in (team.networks, team.critics))
    return 16 * config.run.runs * (actors * team.actor_net.count + critics * team.critic_net.count)


def plan(config: Settings) -> dict[str, int | None]:
    """Count the gradient steps of a run."""
    updates, hyper = config.run.updates, config.learner
    return {"gradient_steps_per_run": None if updates is None else updates * hyper.epochs * hyper.minibatches}


def refusal(spec: object) -> str | None:
    """Return why PPO cannot learn an environment; None if it can."""
    if spec is None:  # ``check_env`` reports a class without a spec
        return None
    return None if isinstance(spec, EnvSpec) else "it has no team of agents"


def entropy_range(config: MAPPOConfig, spec: EnvSpec) -> Range:
    """Return the range of an agent's entropy: of moves, or of Gaussians before squashing, whose width is bounded.

    Of agents with different numbers of action dimensions, it is the range of the mean over actors.
    """
    if spec.choices:
        return move_range(spec)
    own = fmean(dict(zip(make_team(config, spec, spec).networks, own_actions(spec), strict=True)).values())
    low, high = (own * (end + HALF_LOG_2PI + 0.5) for end in (config.log_std_low, config.log_std_high))
    return Range(low, high)


SYMPTOMS = Symptoms(
    entropy=Entropy("entropy", entropy_range, "entropy_limit"),
    loss="critic_loss",
    returns="return",
    remedies={
        "entropy_high": (
            times("entropy", 0.1, least=1e-4),
            times("entropy_to", 0.1, least=1e-4),
            times("lr", 3, most=1e-2),
        ),
        "entropy_low": (
            lower("lr", 3e-3, 3e-4),
            times("entropy", 10, least=0.01, most=0.1),
            times("entropy_to", 10, least=0.01, most=0.1),
            times("lr", 0.3, least=1e-6),
        ),
        "loss_grows": (lower("gamma", 0.99, 0.99), times("critic_lr", 0.3, least=1e-6)),
        "scores_still": (higher("lr", 1e-4, 3e-4), longer_view(), times("lr", 3, most=1e-2)),
    },
)


def _entry(settings: type[MAPPOConfig]) -> LearnerEntry:
    return LearnerEntry(
        settings=settings,
        collector="fixed_length",
        build=build,
        load_policy=load_policy,
        size=lambda config, spec: make_team(config, spec, spec).actor_net.count,
        refusal=refusal,
        require_same=make_team,
        plan=plan,
        portable=Portable(
            layers=lambda config, spec: make_team(config, spec, spec).actor_net.by_layer,
            memory=lambda config: config.memory,
        ),
        networks=lambda config, spec: make_team(config, spec, spec).networks,
        symptoms=SYMPTOMS,
        unserved={"update": "this learner updates all agents at once; use update=batched"},
    )


LEARNERS.register("mappo", _entry(MAPPOConfig))
LEARNERS.register("ippo", _entry(IPPOConfig))
