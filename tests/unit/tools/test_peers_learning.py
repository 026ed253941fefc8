"""Both programs train in turn until their teams reach the goal, and a second call goes on; BenchMARL is faked."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.peers import learning as tool
from tools.peers import worker
from uavlab.core.errors import ConfigError, ResourceError

OURS, THEIRS = tool.PROGRAMS


class Fake:
    """Two programs that take some seconds per call and reach a score after some calls."""

    def __init__(self, seconds: dict[str, float], scores: dict[str, list[float]]) -> None:
        self.seconds, self.scores = seconds, {name: iter(each) for name, each in scores.items()}
        self.calls: list[str] = []

    def __call__(self, name: str, call: str) -> float:
        self.calls.append(f"{name} {call}")
        return self.seconds[name] if call == "train" else next(self.scores[name])


def test_each_trains_until_it_reaches_the_goal_and_they_take_turns() -> None:
    fake = Fake({OURS: 10.0, THEIRS: 20.0}, {OURS: [0.5, 0.9], THEIRS: [0.1, 0.89, 0.95]})
    rows = tool.train(fake, limit=1000)
    assert rows[OURS] == {"seconds": 20.0, "reached": True, "curve": [[10.0, 0.5], [20.0, 0.9]]}
    assert rows[THEIRS] == {"seconds": 60.0, "reached": True, "curve": [[20.0, 0.1], [40.0, 0.89], [60.0, 0.95]]}
    first = [f"{name} {call}" for name in (OURS, THEIRS) for call in ("train", "score")]
    second = [f"{name} {call}" for name in (THEIRS, OURS) for call in ("train", "score")]
    assert fake.calls == [*first, *second, f"{THEIRS} train", f"{THEIRS} score"]


def test_the_limit_ends_training_that_does_not_reach_it() -> None:
    fake = Fake({OURS: 10.0, THEIRS: 20.0}, {OURS: [0.95], THEIRS: [0.0] * 9})
    rows = tool.train(fake, limit=50)
    assert (rows[THEIRS]["seconds"], rows[THEIRS]["reached"], len(rows[THEIRS]["curve"])) == (60.0, False, 3)
    assert rows[OURS]["seconds"] == 10.0


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fake training; return the seeds that were trained, of which 7 fails."""
    trained: list[int] = []

    def run_seed(seed: int, minutes: float, python: Path) -> Any:
        if seed == 7:
            raise ResourceError("peers: the worker of uavlab ended with 1: out of memory")
        trained.append(seed)
        rows = [{"program": name, "seed": seed, "seconds": 1.0, "reached": True, "curve": []} for name in tool.PROGRAMS]
        return {OURS: {}, THEIRS: {}}, rows

    monkeypatch.setattr(tool, "run_seed", run_seed)
    monkeypatch.setattr(tool, "require_environment", lambda python: None)
    return trained


def call(out: Path, count: int, minutes: str = "10") -> int:
    return tool.main(["--seeds", str(count), "--minutes", minutes, "--out", str(out)])


def test_a_second_call_goes_on_with_the_seeds_that_are_left(seeds: list[int], tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    assert call(out, 2) == 0
    assert seeds == [0, 1]
    assert call(out, 3) == 0
    assert seeds == [0, 1, 2]
    record = json.loads(out.read_text())
    assert [(row["seed"], row["program"]) for row in record["rows"]] == [
        (seed, name) for seed in range(3) for name in tool.PROGRAMS
    ]
    assert all("load_after" in row["machine"] for row in record["rows"])
    assert record["command"] == f"python -m tools.peers.learning --seeds 3 --minutes 10 --out {out}"


def test_what_a_failed_call_has_measured_is_stored(seeds: list[int], tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    with pytest.raises(SystemExit):
        call(out, 9)
    assert {row["seed"] for row in json.loads(out.read_text())["rows"]} == set(range(7))


def test_a_record_of_other_sizes_is_refused(
    seeds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "record.json"
    call(out, 1)
    with pytest.raises(SystemExit):
        call(out, 2, "11")
    assert "got minutes 10.0; expected that of this call: name a new file" in capsys.readouterr().err
    monkeypatch.setattr(tool, "SIZES", {**tool.SIZES, "hidden": 64})
    with pytest.raises(ConfigError, match="got sizes"):
        tool.stored(out, 10.0)
    assert tool.stored(tmp_path / "none.json", 1.0) == tool.stored(None, 1.0) == {"rows": []}
    assert seeds == [0]


def test_this_package_does_the_work_that_sizes_say() -> None:
    """Small sizes: 3 passes of 2 minibatches are 6 steps; two agents with 7 observations and 4 outputs have an actor
    each, and a critic that sees 14.
    """
    from tools.peers import uavlab_learning_worker

    small = {"hidden": 8, "worlds": 4, "iterations": 1, "episodes": 2, "seed": 0}
    sizes = {**tool.SIZES, **small, "mappo": {"rollout_steps": 4, "epochs": 3, "minibatches": 2}}
    facts, calls = uavlab_learning_worker.build(sizes)
    hidden = 8 * 8 + 8
    assert facts["parameters"] == {"actor": 2 * (8 * 8 + hidden + 9 * 4), "critic": 2 * (15 * 8 + hidden + 9)}
    assert (facts["observations"], facts["steps"]) == (7, {"train": {"actor": 6, "critic": 6}})
    assert calls["train"]() > 0
    assert calls["score"]() in (0, 0.5, 1)


def test_a_score_is_the_share_of_episodes_that_reach_the_goal() -> None:
    sizes = {"task": "leader_follower_mappo", "episodes": 20}
    assert worker.completion(sizes, lambda obs: obs.new_zeros(*obs.shape[:2], 2)) < 0.5
