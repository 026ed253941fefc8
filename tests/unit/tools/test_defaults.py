"""A study trains each seed in a run of its own, goes on where it ended, and lets opposing groups meet."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.default_tasks import registered_tasks
from tests.support.default_tasks import study as tool
from tools.tables import defaults
from tools.tables import records as parts
from uavlab_lab.suites import learners

SMALL = {"minutes": None, "updates": 2, "evaluate_every": 1, "evaluate_episodes": 2, "worlds": 2, "hidden": 8}
TIMES = ("minutes", "update_ms", "load")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Train for two updates whatever the minutes, restore the registries, and list the runs that were asked for."""
    asked: list[tuple[Any, ...]] = []

    def suite(rounds: int, device: Any, minutes: float, seeds: int, pairs: Any, folder: Path, settings: Any) -> Any:
        asked.append((*pairs, settings["seed"], minutes, seeds))
        few = {"rollout_steps": 4, "minibatches": 1} if "mappo" in pairs[0] else {"batch": 4, "learning_starts": 8}
        return learners.learners_suite(
            rounds, device, minutes, seeds, pairs, folder, {**SMALL, **few, **settings}, lambda line: None
        )

    monkeypatch.setattr(tool, "learners_suite", suite)
    monkeypatch.setattr(tool, "EPISODES", 2)
    with registered_tasks():
        yield asked


def without_times(value: Any) -> Any:
    """Return a record without its times and loads."""
    if isinstance(value, Mapping):
        return {name: without_times(each) for name, each in value.items() if name not in TIMES}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def test_each_seed_is_a_run_of_its_own(tmp_path: Path, small: list[tuple[Any, ...]]) -> None:
    result = tool.record(10, 2, tmp_path, ["collect"])
    wanted = [("collect:masac", 0), ("collect:masac", 1), ("collect:mappo", 0), ("collect:mappo", 1)]
    assert [each[:2] for each in small] == wanted
    assert {each[2:] for each in small} == {(10, 1)}
    assert [(row["learner"], row["seed"]) for row in result["rows"]] == [(name[8:], seed) for name, seed in wanted]
    assert {row["plan"] for row in result["rows"]} == {"nearest_item"}
    one, other, *_ = (row["trained"]["command"] for row in result["rows"])
    assert (" --set seed=1" in one, " --set seed=1" in other) == (False, True)
    best, plan, random = (result["rows"][0]["returns"][name] for name in ("best", "plan", "random"))
    assert max(random, best) < plan
    again = tool.record(10, 2, tmp_path, ["collect"])  # trains nothing
    assert without_times(again["rows"]) == without_times(result["rows"])


def test_parts_of_a_study_join_in_one_record(tmp_path: Path, small: list[tuple[Any, ...]]) -> None:
    out, folder = tmp_path / "defaults.json", tmp_path / "runs"
    words = ["--seeds", "1", "--folder", str(folder), "--out", str(out)]
    assert tool.main([*words, "--task", "tow", "--learner", "masac"]) == 0
    (first,) = json.loads(out.read_text())["rows"]
    assert tool.main([*words, "--task", "collect", "--task", "tow", "--learner", "mappo"]) == 0
    joined = json.loads(out.read_text())
    names = [(row["environment"], row["learner"]) for row in joined["rows"]]
    assert names == [("collect", "mappo"), ("tow", "masac"), ("tow", "mappo")]
    assert joined["rows"][1] == first
    assert joined["command"] == f"python -m tools.defaults --seeds 1 --out {out}"
    assert {"cpu", "commit", "load"} <= first["machine"].keys()


def test_another_study_is_refused_before_it_trains(
    tmp_path: Path, small: list[tuple[Any, ...]], capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "defaults.json"
    out.write_text(text := json.dumps(example_record()), encoding="utf-8")
    with pytest.raises(SystemExit):
        tool.main(["--seeds", "3", "--folder", str(tmp_path), "--out", str(out)])
    message = " ".join(capsys.readouterr().err.split())
    assert re.search("holds a study of .*'seeds': 2.*; expected .*'seeds': 3", message), message
    assert (small, out.read_text()) == ([], text)
    out.write_text("[")
    with pytest.raises(SystemExit):
        tool.main(["--folder", str(tmp_path), "--out", str(out)])
    assert "cannot be read as JSON" in " ".join(capsys.readouterr().err.split())
    assert (small, out.read_text()) == ([], "[")


def test_opposing_groups_meet_an_earlier_team(tmp_path: Path, small: list[tuple[Any, ...]]) -> None:
    (row,) = tool.record(10, 1, tmp_path, ["tag"], ["mappo"])["rows"]
    assert [each[2] for each in small] == [10, 1]  # minutes: the run, and its early stage
    assert len(row["meetings"]) == 16  # 4 players in each of two groups
    assert {tuple(each["players"]) for each in row["meetings"]} == {("chasers", "runners")}
    for each in row["meetings"]:
        assert each["scores"]["chasers"]["mean"] == pytest.approx(-each["scores"]["runners"]["mean"])


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


def test_a_mistyped_task_is_refused(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        tool.main(["--task", "tagg"])
    assert "'landmarks', 'collect', 'tag', 'tow'" in capsys.readouterr().err
