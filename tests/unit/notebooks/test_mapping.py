"""Missions of the notebook: the same start for every policy, honest names, and counts that multiply."""

from pathlib import Path

import pytest
import torch

from tests.support.fixtures_config import sizes, tiny
from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.core.errors import ConfigError
from uavlab.experiment import policy
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab_notebooks import mapping

CPU = torch.device("cpu")
SMALL = {"device": "cpu", "threads": 1, "worlds": 2, "width": 8, "hidden": 8}


def test_a_short_training_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "COARSE", 48)
    trained, name = mapping.load_or_train("", 2, **SMALL)
    assert name == "trained for 2 updates only"
    assert (trained.config.env.cells, trained.config.run.updates) == (48, 2)


def test_a_run_is_named_by_its_updates_and_scored_beside_the_plans(tmp_path: Path) -> None:
    small = {name: getattr(TINY_MISSION, name) for name in ("cells", "cell", "lattice", "uavs", "measurements")}
    run = Run(configure("mapping_quick", SMALL, small, {"updates": 1, "evaluate_episodes": 2}), tmp_path / "run")
    for _ in run.train():
        pass
    trained, name = mapping.load_or_train(str(tmp_path / "run"), 7, device="cpu")
    assert name == "learned, 1 updates"
    assert torch.equal(trained.parameters, policy.load(tmp_path / "run").parameters)
    scores = mapping.scores_by_policy(TINY_MISSION, {name: trained}, 0, 3, CPU)
    assert list(scores) == ["random", "information gain", "sweep", name]
    for each in scores.values():
        assert {metric: value.shape for metric, value in each.items()} == {"entropy": (1, 3, 4), "f1": (1, 3, 4)}
    assert not torch.equal(scores["random"]["entropy"], scores["sweep"]["entropy"])
    assert mapping.with_view_of(TINY_MISSION, trained).centred is trained.config.env.spec.centred is True
    assert TINY_MISSION.centred is False
    start = mapping.fly_policy(TINY_MISSION, trained, 3)[0]
    assert torch.equal(start.logits, mapping.fly_plan(TINY_MISSION, "random", 3, CPU)[0].logits)  # the same mission
    again = mapping.scores_by_policy(TINY_MISSION, {}, 0, 3, CPU)
    assert torch.equal(scores["sweep"]["entropy"], again["sweep"]["entropy"])


def test_a_run_of_another_task_is_refused(tmp_path: Path) -> None:
    Run(configure("telemetry", sizes("telemetry")), tmp_path / "logs").save()
    Run(tiny(), tmp_path / "team").save()
    for name, preset in (("logs", "telemetry"), ("team", "leader_follower")):
        with pytest.raises(ConfigError) as refusal:
            mapping.load_or_train(str(tmp_path / name), 7, device="cpu")
        assert str(refusal.value) == (
            f"{tmp_path / name}: a run of {preset}; expected one that maps, of mapping_quick say."
        )


def test_a_flight_has_a_state_for_every_measurement() -> None:
    states = mapping.fly_plan(TINY_MISSION, "sweep", 3, CPU)
    assert [int(state.left[0]) for state in states] == [4, 3, 2, 1, 0]
    other = mapping.fly_plan(TINY_MISSION, "random", 3, CPU)
    assert torch.equal(states[0].logits, other[0].logits)  # the same mission
    assert not torch.equal(states[-1].place, other[-1].place)


def test_budgets_multiply() -> None:
    rows = mapping.budgets()
    assert [row["preset"] for row in rows] == ["mapping_full", "mapping_balanced", "mapping_fast"]
    for row in rows:
        assert row["team_steps"] == row["missions"] * (row["measurements"] - 1)
        assert row["moves"] == 4 * row["team_steps"]
    full, _, fast = rows
    assert (full["missions"], full["team_steps"], full["formula"], full["claimed"]) == (4500, 63_000, 4800, 4800)
    assert (fast["missions"], fast["team_steps"], fast["formula"], fast["claimed"]) == (1000, 8_000, 889, 2083)
