"""Tables of assignment: means over seeds by hand, and nothing before there is a record."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.tables import assignment
from tools.tables import records as parts

HERE = {"cpu": "Here", "cpu_id": "model 1", "load": 0.5, "dirty": False}


def ends(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}


def record(seed: int, plan: str = "greedy") -> dict[str, Any]:
    """Return a record of two stages whose figures grow by 0.1 with the seed."""
    add = 0.1 * seed
    over = {plan: {name: ends(at + add) for name, at in (("completion", 1.0), ("distance", 0.7))}}
    over[plan]["normalized_score"] = ends(0.9 + add)
    row = {"score": ends(0.5 + add), "ratio": ends(0.8 + add), "plans": {plan: ends(0.4)}, "over": over}
    stages = [{"stage": 1, "settings": {"uavs": [2, 3], "targets": [1, 2]}, **row}, {"stage": 2, "settings": {}, **row}]
    trained = [{"command": f"uavlab train p --seed {seed}", "machine": HERE, "seconds": 1800 + 60 * seed}]
    how = {"command": "uavlab transfer runs/a --mean-action", "machine": HERE, "episodes": 200}
    return {**how, "home": ends(0.6), "rows": stages, "trained": trained}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(parts, "RECORDS", tmp_path)
    return tmp_path


def test_there_is_nothing_before_the_first_record(folder: Path) -> None:
    assert assignment.parts() == []


def test_stages_are_means_over_the_seeds(folder: Path) -> None:
    for seed in range(3):
        (folder / f"transfer_{seed}.json").write_text(json.dumps(record(seed)))
    table, method = assignment.parts()
    cells = table.splitlines()[2].split(" | ")  # Student's t: 4.3027 x 0.1 / sqrt(3) = 0.248
    assert cells[:5] == ["| 1", "2 to 3", "1 to 2", "0.600 [0.352, 0.848]", "0.400"]
    assert cells[5:] == ["1.10 [0.85, 1.35]", "0.80 [0.55, 1.05]", "0.90 [0.65, 1.15] |"]
    assert table.splitlines()[3].startswith("| 2 | 15 to 20 | 10 to 15 | ")
    assert "3 seeds, trained at stage 2 alone, 30 to 32 min of one core" in method
    assert "solver" not in method


def test_sizes_are_shown_beside_greedy(folder: Path) -> None:
    rows = [{"size": size, **row} for size, row in zip((2, 32), record(0)["rows"], strict=True)]
    (folder / "transfer_sizes.json").write_text(json.dumps({**record(0), "rows": rows}))
    table, method = assignment.parts()
    assert table.splitlines()[3] == (
        "| 32 | 0.500 [0.490, 0.510] | 0.400 | 1.00 [0.99, 1.01] | 0.70 [0.69, 0.71] | 0.80 [0.79, 0.81] |"
    )
    assert method.startswith("Seed 0 with as many UAVs as targets; 200 scenarios of each size")


def test_followers_are_shown_beside_the_plan(folder: Path) -> None:
    over = {name: ends(at) for name, at in (("completion", 0.99), ("formation_strict", 0.9), ("path", 1.1))}
    row = {"score": ends(0.98), "ratio": ends(1.0), "plans": {"steer": ends(1.0)}, "over": {"steer": over}}
    how = {"command": "uavlab transfer figures/tour --sizes 1,16", "machine": HERE, "episodes": 200}
    rows = [{"size": size, **row} for size in (1, 16)]
    trained = [{"command": "uavlab train p --seed 0 --out runs/p"}]
    record = {**how, "rows": rows, "trained": trained}
    (folder / "transfer_leader_follower.json").write_text(json.dumps(record))
    table, method = assignment.parts()
    assert table.splitlines()[3] == (
        "| 16 | 0.980 [0.970, 0.990] | 1.00 [0.99, 1.01] | 1.000 | 0.90 [0.89, 0.91] | 1.10 [1.09, 1.11] |"
    )
    assert method.startswith("`uavlab train p --seed S` trains with one follower; none was trained again. 200 episodes")


def test_a_solver_and_parts_left_out_are_shown_where_they_are_recorded(folder: Path) -> None:
    for name, seed in (("0", 0), ("near", 1)):
        (folder / f"transfer_{name}.json").write_text(json.dumps(record(seed)))
    (folder / "transfer_solver.json").write_text(json.dumps(record(0, "solver")))
    _, method, table, _ = assignment.parts()
    assert "score and way of the first seed are, by stage, 1: 0.90 and 0.70, 2: 0.90 and 0.70." in method
    assert table.splitlines()[2:] == [
        "| all | 0.600 | 0.500 [0.490, 0.510] | 0.80 [0.79, 0.81] | 0.70 |",
        "| 4 neighbours, whatever the size | 0.600 | 0.600 [0.590, 0.610] | 0.90 [0.89, 0.91] | 0.80 |",
    ]


def test_a_curriculum_that_loses_is_shown_as_losing(folder: Path) -> None:
    rows = [
        {
            "preset": "p",
            "way": way,
            "updates": 100,
            "last_stage": ends(score),
            "difference": change,
            "reached": at,
            "episodes": 200,
            "trained": {"command": "uavlab train p", "machine": {**HERE, "load": score}},
        }
        for way, score, change, at in (("curriculum", 0.6, ends(-0.1), [3, 2]), ("alone", 0.7, None, [3, 3]))
    ]
    study = {"command": "uavlab bench curriculum", "machine": HERE, "minutes": 10.0, "seeds": 2, "rows": rows}
    (folder / "bench_curriculum.json").write_text(json.dumps(study))
    table, method = assignment.parts()
    assert table.splitlines()[2:] == [
        "| `p` | in stages | 100 | 0.600 [0.590, 0.610] | -0.100 [-0.110, -0.090] | 3, 2 |",
        "| `p` | on the last stage alone | 100 | 0.700 [0.690, 0.710] | - | 3, 3 |",
    ]
    assert "10 min of training for 2 seeds together" in method
    assert method.endswith("Trained on Here, model 1 (load 0.6 to 0.7 before a run).")
