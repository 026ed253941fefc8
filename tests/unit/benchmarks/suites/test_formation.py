"""The bound on strict formation: of the starts of an evaluation, above what a plan reaches."""

import torch

from uavlab.benchmarks.suites.formation import formation_suite
from uavlab.core.rng import Streams
from uavlab.envs.leader_follower.baselines import steer
from uavlab.envs.leader_follower.env import PUBLISHED
from uavlab.evaluation import Planner, episodes

FLIGHTS = 6


def test_the_bound_what_sampled_controls_reach_and_what_a_plan_does() -> None:
    record = formation_suite(3, "cpu", flights=FLIGHTS)
    apart = record["apart"]
    assert record["flights"] == FLIGHTS
    assert apart["low"] <= apart["bound"] <= apart["high"] <= apart["longest"]
    assert apart["bound"] <= apart["possible"] < apart["bound"] + 5
    for row in record["rows"]:
        assert 1 - apart["bound"] / row["steps"] <= row["bound"] + 1e-4
        assert row["possible"] <= row["bound"] < 1
    plan = {name: each[0].double() for name, each in flights().items()}
    assert apart["bound"] < ((1 - plan["formation_strict"]) * plan["flight_time"]).mean() < 3 * apart["bound"]


def flights() -> dict[str, torch.Tensor]:
    """Return figures of the plan from the same starts."""
    return episodes(PUBLISHED, Planner(steer), Streams([0], torch.device("cpu")), FLIGHTS)
