"""Every registered environment, and every quirk of LeaderFollower, meets the contract of an environment.

Rollouts are a few episodes long here; those of hundreds of steps are in ``tests/proofs/test_larger_samples.py``.
"""

from dataclasses import fields, replace

import pytest

from tests.support.fake_device import CUDA, fake_device
from tests.support.fixtures_mapping import SMALL, TINY_MISSION
from uavlab.collectors.on_policy import OnPolicyCollector, RolloutConfig
from uavlab.core.rng import Streams
from uavlab.core.types import leaves
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower
from uavlab.envs.mapping.env import Mapping
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.experiment.build import ENVIRONMENTS, EPISODES
from uavlab.runtime.runtime import Runtime
from uavlab.testing import check_env

STEPS = {"slow_leader_follower": 5, "mapping": 12, "assignment": 20}  # of slow worlds
SMALLER = {"mapping": TINY_MISSION}
FLYING = [name for name, entry in ENVIRONMENTS.items() if (entry.evaluation or EPISODES).flies]
VARIANTS = {
    "published": PUBLISHED,
    "many": LeaderFollower(followers=8, obstacles=5, obstacle_speed=20.0, sight=3, horizon=15),
    "lagged": LeaderFollower(followers=2, lagged=True, dt=0.5, horizon=10, time_cost=0.2),
    "quirks": LeaderFollower(followers=3, trailing=True, first_follower_only=True, follower_costs=False, horizon=1),
}


def check_registered(name: str, steps: int) -> None:
    report = check_env(SMALLER.get(name, ENVIRONMENTS[name].kind()), steps=steps)
    assert report.started >= 21
    assert report.syncs == ()


def check_variant(name: str, steps: int) -> None:
    env = VARIANTS[name]
    report = check_env(env, worlds=4, steps=steps)
    assert report.truncated > 0 or env.horizon > steps


@pytest.mark.parametrize("name", FLYING)
def test_registered_environments(name: str) -> None:
    check_registered(name, STEPS.get(name, 40))


@pytest.mark.parametrize("name", FLYING)
def test_a_step_stays_on_the_device_of_its_worlds(name: str) -> None:
    env = SMALLER.get(name, ENVIRONMENTS[name].kind())
    with fake_device(strict=False):
        source = OnPolicyCollector(env, None, RolloutConfig(2), Streams((0,), device=CUDA), Runtime(CUDA))
        result = source.world_step()()
        assert all(leaf.is_cuda for part in result for _, leaf in leaves(part))


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_leader_follower(name: str) -> None:
    check_variant(name, 20)


@pytest.mark.parametrize(
    "env",
    [
        replace(TINY_MISSION, uavs=6, reach=0.0, centred=True),
        replace(TINY_MISSION, lattice=3, starts="random", truth="fields", lagged=True, dropout=0.5),
        replace(TINY_MISSION, uavs=1, flip=(0.1,), measurements=2),
        HostMapping(**{field.name: getattr(SMALL, field.name) for field in fields(SMALL)}),
    ],
    ids=["crowded", "fields", "alone", "host"],
)
def test_variants_of_mapping(env: Mapping) -> None:
    report = check_env(env, worlds=3, steps=6)
    assert report.terminated > 0 or env.measurements > 7
