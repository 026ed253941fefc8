"""The table of a study of learners' defaults, from its record."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.tables import defaults
from tools.tables import records as parts


def example_record() -> dict[str, Any]:
    """Return a record of two seeds, whose chasers get 10 more by each better player."""

    def figure(mean: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}

    players = ("random", "early", "late", "plan")
    meetings = [
        {
            "players": {"chasers": own, "runners": other},
            "scores": {"chasers": figure(10 * a - b), "runners": figure(b - 10 * a)},
        }
        for a, own in enumerate(players)
        for b, other in enumerate(players)
    ]
    returns = {"random": -9, "best": 0, "plan": 3}
    rows = [
        {
            "environment": task, "learner": "mappo", "seed": seed, "updates": 1000 + seed, "random": figure(0.2),
            "plan": "best", "plans": {"best": figure(0.9)}, "best": figure(0.7 + seed / 100),
            "share": figure(0.5 + seed / 10), **more,
            "machine": {"cpu": f"CPU {seed}", "load": 0.5 + seed, "dirty": False},
        }
        for task, more in (("collect", {"returns": returns}), ("tag", {"meetings": meetings}))
        for seed in (0, 1)
    ]  # fmt: skip
    machine = {"cpu": "Here", "load": 0.5, "dirty": False}
    study = {"command": "python -m tools.defaults", "minutes": 10.0, "seeds": 2, "chosen_on": ["landmarks", "collect"]}
    return {**study, "machine": machine, "rows": rows}


def test_tables_are_read_from_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RECORDS", tmp_path)
    assert defaults.parts() == []
    (tmp_path / "defaults.json").write_text(json.dumps(example_record()), encoding="utf-8")
    ways, _, sides, text = defaults.parts()
    line = "| `collect` | MAPPO | 1,000, 1,001 | 0.200 [0.100, 0.300] | 0.900 [0.800, 1.000] | 0.700, 0.710 | "
    assert ways.splitlines()[2:] == [line + "0.50, 0.60 | 0.75, 0.75 |"]
    assert sides.splitlines()[2:] == [
        "| `tag` | MAPPO | chasers | 20.00, 20.00 | 0.00, 0.00 | 30.00, 30.00 | 19.00, 19.00 | 8.00, 8.00 |",
        "| `tag` | MAPPO | runners | 2.00, 2.00 | 0.00, 0.00 | 3.00, 3.00 | -8.00, -8.00 | -19.00, -19.00 |",
    ]
    assert "on `landmarks` and `collect` some of them were chosen afterwards" in text
    assert "one thread a run, on CPU 0 and CPU 1 (load 0.5 to 1.5 before a run). " in text
    assert text.endswith("`python -m tools.defaults`.")
