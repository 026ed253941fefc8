"""Hyper-parameters of PPO: ``mappo`` and ``ippo``."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from uavlab.core.registry import Resume


@dataclass(frozen=True)
class MAPPOConfig:
    """Hyper-parameters.

    Attributes:
        critic: What critics observe, and whose they are: ``central``, all agents, a critic for each agent; ``shared``,
            the same, one critic for all agents of a group, whose value is the mean of theirs and costs one evaluation;
            or ``own``, one agent alone, shared as actors are, which is IPPO. On maps one critic serves all agents
            anyway, by an evaluation for each, and ``shared`` is refused; a ``central`` one sees an agent's maps, the
            team's, and the features of all agents.
        hidden: Width of the hidden layers.
        memory: Units of a GRU after the hidden layers of actors and critics, on vectors; 0 for policies without memory.
        layers: Layers of attention where observations list entities; 0 for dense layers.
        heads: Heads of attention; ``hidden`` is a multiple.
        positions: Whether attention sees how entities lie from each other.
        width: Channels of each convolution, on maps.
        kernels: Side of each convolution's kernel (cells), on maps.
        share: Whether interchangeable agents share one actor; otherwise each agent has its own. On maps all share.
        gamma: Discount per step.
        lam: Lambda of the advantages: 0 for one-step errors, 1 for Monte Carlo returns.
        lr: Adam's learning rate of the actors.
        critic_lr: Adam's learning rate of the critics.
        lr_to: Share of both rates that is left after ``lr_updates``; None for constant rates.
        lr_updates: Updates over which the rates change linearly.
        clip: Largest gradient norm of an actor, and of a critic.
        clip_ratio: Range around 1 within which the ratio of probabilities is rewarded.
        target_kl: Distance from the old policy (nats) at which the actor's steps of an update end; 0 for no limit.
        epochs: Passes of an update over its batch.
        minibatches: Minibatches of each pass, with one gradient step each; ``auto`` for a number by the entities of the
            task.
        entropy: Initial weight of the policy's entropy in the actor's loss.
        entropy_to: Final weight of the entropy.
        entropy_updates: Updates over which the weight changes linearly.
        noisy: Whether an update's rows are collected, and learned from, with noise on the weights of each actor's last
            layer, drawn once for them; its standard deviations are learned. Scored, saved and exported policies are
            without it.
        log_std_low: Smallest log standard deviation of the Gaussian before squashing.
        log_std_high: Largest log standard deviation; above about 0 squashed actions crowd at the ends of their range.
    """

    critic: Literal["central", "shared", "own"] = "central"
    hidden: Annotated[int, Ge(1), Le(4096)] = 128
    memory: Annotated[int, Ge(0), Le(4096)] = 0
    layers: Annotated[int, Ge(0), Le(64)] = 2
    heads: Annotated[int, Ge(1), Le(64)] = 4
    positions: bool = True
    width: Annotated[int, Ge(1), Le(4096)] = 32
    kernels: tuple[Annotated[int, Ge(1), Le(64)], ...] = (5, 4, 4)
    share: bool = True
    gamma: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.95
    lam: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.95
    lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    critic_lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    lr_to: Annotated[Annotated[float, Ge(0), Le(1)] | None, Resume.YES] = None
    lr_updates: Annotated[int, Ge(1), Le(10**9), Resume.YES] = 1000
    clip: Annotated[float, Gt(0), Le(1e6), Resume.YES] = 0.5
    clip_ratio: Annotated[float, Gt(0), Le(1), Resume.YES] = 0.2
    target_kl: Annotated[float, Ge(0), Le(100), Resume.YES] = 0.05
    epochs: Annotated[int, Ge(1), Le(1000)] = 5
    minibatches: Annotated[int, Ge(1), Le(1000)] = 4
    entropy: Annotated[float, Ge(0), Le(10), Resume.YES] = 0.01
    entropy_to: Annotated[float, Ge(0), Le(10), Resume.YES] = 0.0
    entropy_updates: Annotated[int, Ge(1), Le(10**9), Resume.YES] = 1000
    noisy: bool = False
    log_std_low: Annotated[float, Ge(-20), Le(-0.1)] = -2.5
    log_std_high: Annotated[float, Ge(0), Le(4)] = 0.0

    labels: ClassVar[dict[str, str]] = {
        "lr": "learning rate",
        "critic_lr": "learning rate of critics",
        "gamma": "discount",
        "lam": "λ of advantages",
    }


@dataclass(frozen=True)
class IPPOConfig(MAPPOConfig):
    """The hyper-parameters of ``MAPPOConfig``, with critics that observe one agent."""

    critic: Literal["own"] = "own"
