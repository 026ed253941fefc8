"""What the collectors' registrations promise before anything is built is what is there afterwards."""

import pytest

from tests.support.fixtures_config import tiny
from uavlab.collectors.entries import world_bytes
from uavlab.core.registry import COLLECTORS
from uavlab.core.types import leaves
from uavlab.experiment import build
from uavlab.experiment.config import configure
from uavlab.runtime.toggles import TOGGLES


def test_the_bytes_of_a_world() -> None:
    config = tiny(worlds=3)
    _, _, _, source = build.assemble(config)
    assert 3 * world_bytes(config.env) == sum(leaf.nbytes for _, leaf in leaves(source.worlds.state))


def test_the_pace_counts_agent_steps_of_an_update() -> None:
    config = tiny(worlds=4, world_steps=5, runs=2, followers=2)
    assert config.task.collector.pace(config) == (4 * 5 * 2 * 3, "agent-steps")
    missions = configure("mapping_quick", {"worlds": 2})
    moves = 2 * missions.env.spec.horizon * missions.env.spec.agents
    assert missions.task.collector.pace(missions) == (moves, "agent-steps")


@pytest.mark.parametrize("name", ["off_policy", "on_policy", "windows"])
def test_each_lacks_parts_that_some_toggle_names(name: str) -> None:
    assert set(COLLECTORS[name].lacks) <= {toggle.part for toggle in TOGGLES.values()} - {""}
