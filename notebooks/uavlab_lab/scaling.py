"""A model of training on several devices: what they wait for each other, and what adding gradients takes.

Devices that share an update meet in it, so each round lasts as long as that of the slowest. Gradients are added around
a ring: each of n devices sends 2 (n - 1) messages of 1/n of the bytes, each with a start-up time.
"""

from dataclasses import dataclass, replace

import torch

from uavlab.core.errors import ConfigError

POINTS = 20_001  # of a numerical integral
TAIL = 60.0  # standard deviations beyond the mean at which an integral ends


@dataclass(frozen=True)
class Link:
    """A connection between devices: bytes per second in one direction, and the start-up time of a message (s)."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Load:
    """What a device does for one update.

    Attributes:
        learner_s: An update (s).
        collect_s: The constant part of the steps of worlds before it (s).
        pause_s: Mean of the random part of these steps, exponentially distributed (s).
        gradient_bytes: Bytes of the gradients that are added.
        reductions: Messages in which they are added, one for each gradient step.
        interval: Updates in a row, after as many steps.
        overlap: Whether steps run beside the updates of the round before.
    """

    learner_s: float
    collect_s: float = 0.0
    pause_s: float = 0.0
    gradient_bytes: float = 0.0
    reductions: int = 1
    interval: int = 1
    overlap: bool = False


def ring_seconds(size: float, devices: int, link: Link) -> float:
    """Return the time of a sum of ``size`` bytes over all devices around a ring (s).

    >>> ring_seconds(8e6, 4, Link(bandwidth=1e9, latency=1e-3))
    0.018

    Raises:
        ConfigError: The number of devices, the bandwidth or the latency is out of range; the message names it.

    Source:
        Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", with the
        start-up time alpha and the time per byte beta of Thakur, Rabenseifner and Gropp 2005.
    """
    limits = (
        ("devices", devices, devices >= 1, "at least 1"),
        ("bandwidth", link.bandwidth, link.bandwidth > 0, "more than 0 bytes per second"),
        ("latency", link.latency, link.latency >= 0, "0 s or more"),
    )
    for name, value, fine, expected in limits:
        if not fine:
            raise ConfigError(f"ring: {name} is {value:g}; expected {expected}. Correct it in the call or its Link.")
    return 2 * (devices - 1) * (link.latency + size / devices / link.bandwidth)


def longest_wait(devices: int, steps: int, least: float = 0.0) -> float:
    """Return the expected maximum of ``least`` and of ``devices`` sums of ``steps`` random pauses with mean 1.

    Pauses are exponentially distributed, so a sum has the distribution function P(steps, x), the regularized incomplete
    gamma function, and the expected maximum is the integral of 1 - P(steps, x) ** devices.

    >>> round(longest_wait(1, 10), 6), round(longest_wait(2, 1), 6)
    (10.0, 1.5)
    """
    end = steps + TAIL * steps**0.5
    if least >= end:
        return least
    x = torch.linspace(least, end, POINTS, dtype=torch.float64)
    below = torch.special.gammainc(torch.full_like(x, float(steps)), x)
    return least + torch.trapezoid(1 - below**devices, x).item()


def update_seconds(load: Load, devices: int, link: Link) -> float:
    """Return the expected time of an update, with its share of a round of ``interval`` steps and updates (s)."""
    reduced = load.reductions * ring_seconds(load.gradient_bytes / load.reductions, devices, link)
    learn, collect = (load.interval * each for each in (load.learner_s + reduced, load.collect_s))
    least = max(learn - collect, 0.0) if load.overlap else 0.0
    slowest = load.pause_s * longest_wait(devices, load.interval, least / load.pause_s) if load.pause_s else least
    return (collect + slowest + (0 if load.overlap else learn)) / load.interval


def gain(load: Load, devices: int, link: Link) -> float:
    """Return how many times as many rows per second all devices learn from as one alone, each with its own batch."""
    return devices * update_seconds(load, 1, link) / update_seconds(load, devices, link)


def interval_gain(load: Load, devices: int, link: Link) -> float:
    """Return how many times as fast updates are at the interval of ``load`` as at interval 1."""
    return update_seconds(replace(load, interval=1), devices, link) / update_seconds(load, devices, link)
