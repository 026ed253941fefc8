"""Unit tests and contracts with more steps and more cases than ``make test`` has time for."""

from pathlib import Path

import pytest

from tests.contracts.test_envs import FLYING, VARIANTS, check_registered, check_variant
from tests.support.fixtures_config import sizes
from tests.unit.envs import test_twin as twin
from tests.unit.experiment import test_config as settings
from tests.unit.experiment import test_curriculum_rules as curricula
from tests.unit.experiment import test_fit as fits
from uavlab.experiment.config import configure

STEPS = {"slow_leader_follower": 40, "mapping": 40, "assignment": 100}  # of slow worlds


@pytest.mark.soak
@pytest.mark.parametrize("name", FLYING)
def test_registered_environments(name: str) -> None:
    check_registered(name, STEPS.get(name, 300))


@pytest.mark.soak
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_leader_follower(name: str) -> None:
    check_variant(name, 80)


@pytest.mark.parametrize("name", twin.VARIANTS)
def test_rollouts_equal_the_twin(name: str) -> None:
    twin.compare(twin.VARIANTS[name], seed=1, steps=300)


def test_no_stream_of_scores_is_decided_differently() -> None:
    assert curricula.differences(10_000) == (0, set("safc"))


@pytest.mark.soak
def test_the_largest_number_of_worlds_that_fits() -> None:
    fits.check_largest(configure("pursuit", sizes("pursuit"), {"worlds": 4, "rollout_steps": 8}), "worlds", 208)


def test_mutated_settings_end_in_a_config_or_a_refusal(tmp_path: Path) -> None:
    settings.check_mutants(1500, tmp_path)
