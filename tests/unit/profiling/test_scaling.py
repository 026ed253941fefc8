"""The model of several devices agrees with sums by hand and with a simulation of devices that wait."""

import re
from dataclasses import replace

import pytest
import torch

from uavlab.core.errors import ConfigError
from uavlab_lab.scaling import Link, Load, gain, interval_gain, longest_wait, ring_seconds, update_seconds

LINK = Link(bandwidth=1e9, latency=1e-3)
FREE = Link(bandwidth=1e30, latency=0.0)


def test_a_ring_by_hand() -> None:
    # 4 devices: 2 x 3 messages of 2 MB, each of 1 ms and 2 ms
    assert ring_seconds(8e6, 4, LINK) == pytest.approx(0.018)
    assert ring_seconds(8e6, 1, LINK) == 0
    # many devices: twice the bytes over the bandwidth, and a start-up for each message
    assert ring_seconds(1e9, 1000, Link(1e9, 0.0)) == pytest.approx(1.998)


@pytest.mark.parametrize(
    ("devices", "link", "message"),
    [
        (0, LINK, "ring: devices is 0; expected at least 1. Correct it"),
        (2, Link(0.0, 0.0), "ring: bandwidth is 0; expected more than 0 bytes per second. Correct it"),
        (2, Link(1e9, -1.0), "ring: latency is -1; expected 0 s or more. Correct it"),
        (2, Link(float("nan"), 0.0), "ring: bandwidth is nan; "),
    ],
)
def test_an_impossible_link_is_refused(devices: int, link: Link, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        ring_seconds(1.0, devices, link)


@pytest.mark.parametrize(
    ("devices", "steps", "least", "expected"),
    [
        (1, 1, 0.0, 1.0),
        (1, 7, 0.0, 7.0),  # the mean of the sum
        (2, 1, 0.0, 1 + 1 / 2),
        (4, 1, 0.0, 1 + 1 / 2 + 1 / 3 + 1 / 4),  # the harmonic number
        (2, 2, 0.0, 2.75),  # 4 less the expected minimum 1.25, the integral of (exp(-x) (1 + x))^2
        (1, 1, 2.0, 2 + 2.718281828459045**-2),  # of one exponential and 2
        (3, 2, 1e9, 1e9),
    ],
)
def test_the_slowest_by_hand(devices: int, steps: int, least: float, expected: float) -> None:
    assert longest_wait(devices, steps, least) == pytest.approx(expected, rel=1e-5)


def simulated(load: Load, devices: int, reduced_s: float, rounds: int = 20_000) -> float:
    """Return the mean time of an update of devices that meet in each update, round by round."""
    draws = torch.distributions.Exponential(1 / max(load.pause_s, 1e-12))
    torch.manual_seed(0)
    steps = load.interval * load.collect_s + draws.sample((rounds, devices, load.interval)).sum(-1)
    learn = load.interval * (load.learner_s + reduced_s)
    slowest = steps.amax(1)
    lengths = slowest.clamp(min=learn) if load.overlap else slowest + learn
    return lengths.mean().item() / load.interval


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("interval", [1, 5, 20])
@pytest.mark.parametrize("devices", [1, 8])
def test_an_update_is_as_long_as_simulated(devices: int, interval: int, overlap: bool) -> None:
    load = Load(0.02, collect_s=0.01, pause_s=0.01, gradient_bytes=1e6, interval=interval, overlap=overlap)
    expected = simulated(load, devices, ring_seconds(1e6, devices, LINK))
    assert update_seconds(load, devices, LINK) == pytest.approx(expected, rel=0.01)


def test_an_interval_is_worth_nothing_alone_and_something_to_devices_that_wait() -> None:
    load = Load(0.02, collect_s=0.01, pause_s=0.02, interval=10)
    assert interval_gain(load, 1, FREE) == pytest.approx(1, rel=1e-5)
    assert interval_gain(replace(load, pause_s=0.0), 8, FREE) == pytest.approx(1)
    gains = [interval_gain(replace(load, interval=k), 8, FREE) for k in (1, 5, 10, 20)]
    assert gains[0] == 1
    assert gains == sorted(gains)
    # without any random part, steps of 30 ms and updates of 20 ms: at most (30 + 20 + waiting) / 50
    most = (0.05 + 0.02 * (longest_wait(8, 1) - 1)) / 0.05
    assert 1.3 < gains[-1] < most


def test_each_gradient_step_has_its_own_start_up() -> None:
    load = Load(0.02, gradient_bytes=8e6, reductions=4)
    assert update_seconds(load, 4, LINK) == pytest.approx(0.02 + 6 * (4 * 1e-3 + 2e-3))


def test_rows_per_second_by_hand() -> None:
    load = Load(0.018, gradient_bytes=8e6)
    assert gain(load, 4, LINK) == pytest.approx(2)  # as long again for the sum, on four times the rows
    assert gain(load, 4, FREE) == pytest.approx(4)
