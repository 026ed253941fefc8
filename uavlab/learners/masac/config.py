"""Hyper-parameters of MASAC."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from uavlab.core.registry import Resume


@dataclass(frozen=True)
class MASACConfig:
    """Hyper-parameters.

    Attributes:
        critic: What critics observe, and whose they are: ``central``, all observations and actions, a pair for each
            agent; ``shared``, the same, one pair for all agents of a group, whose value is the mean of theirs and costs
            one evaluation; or ``own``, one agent's, a pair for each. Agents that choose moves share no critics.
        hidden: Width of the hidden layers.
        gamma: Discount per step.
        n_step: Steps whose rewards a target sums before it takes a value; entropies of later steps do not count.
        tau: Weight of the critics in the moving average of the target critics, per update.
        lr: Adam's learning rate of the actors.
        critic_lr: Adam's learning rate of the critics.
        alpha_lr: Adam's learning rate of the log temperatures.
        lr_to: Share of all three rates that is left after ``lr_updates``; None for constant rates.
        lr_updates: Updates over which the rates change linearly.
        alpha: Initial temperature, in units of scaled rewards.
        clip: Largest gradient norm of one agent's actor, and of its pair of critics.
        target_entropy: Entropy to which the temperature regulates the policy (nats per agent); None for minus the
            dimensions of the agent's own actions, or for a quarter of the entropy of a free choice among its legal
            moves. Rows in which an agent has one legal move do not count for it.
        reward_scale: Factor on rewards in the target; None divides what a target sums, the discounted rewards of
            ``n_step`` steps, by its root mean square so far, agent by agent. With more steps, or with a constant part
            of rewards, an equal ``alpha`` therefore weighs more.
        log_std_low: Smallest log standard deviation of the Gaussian before squashing.
        log_std_high: Largest log standard deviation.
        share: Whether interchangeable agents share one actor; otherwise each agent has its own.
    """

    critic: Literal["central", "shared", "own"] = "central"
    hidden: Annotated[int, Ge(1), Le(4096)] = 128
    gamma: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.95
    n_step: Annotated[int, Ge(1), Le(100), Resume.YES] = 3
    tau: Annotated[float, Gt(0), Le(1), Resume.YES] = 0.01
    lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    critic_lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 3e-3
    alpha_lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    lr_to: Annotated[float, Ge(0), Le(1)] | None = None
    lr_updates: Annotated[int, Ge(1), Le(10**9), Resume.YES] = 10_000
    alpha: Annotated[float, Ge(1e-8), Le(1e6)] = 0.1
    clip: Annotated[float, Gt(0), Le(1e6), Resume.YES] = 1.0
    target_entropy: Annotated[Annotated[float, Ge(-1000), Le(1000)] | None, Resume.YES] = None
    reward_scale: Annotated[float, Gt(0), Le(1e4)] | None = None
    log_std_low: Annotated[float, Ge(-20), Le(0)] = -5.0
    log_std_high: Annotated[float, Ge(0), Le(4)] = 2.0
    share: bool = True

    labels: ClassVar[dict[str, str]] = {
        "lr": "learning rate",
        "critic_lr": "learning rate of critics",
        "alpha_lr": "learning rate of temperatures",
        "gamma": "discount",
        "tau": "weight in the target critics",
    }
