"""Commands on runs: their output, files and exit codes."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from tests.support.cli_runner import SETTINGS, uavlab
from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment import fit, policy
from uavlab.experiment.config import configure
from uavlab.experiment.fit import Pace
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config

METRICS = {"completion", "formation_strict", "formation_mean", "collision", "path", "energy", "flight_time", "timeout"}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


PACE = Pace(20, 0.15, "", update_s=0.0075, warm_up_s=0.0, score_s=None, apart="")


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure nothing."""
    monkeypatch.setattr(fit, "measure", lambda config: PACE)


class TestTrain:
    def test_trains_into_a_folder_of_the_presets_name(self, tmp_path: Path) -> None:
        ended = uavlab("train", "leader_follower", *SETTINGS, "--seed", "3", "--json")
        folder = Path("runs/leader_follower-3")
        assert ended.code == 0
        assert "MiB; the run is kept in runs/leader_follower-3" in ended.out
        assert "complete: 8 updates in " in ended.out
        assert set(ended.json) == {"run", "status", "updates", "seconds", "highest_scores_in_training"}
        assert (ended.json["run"], ended.json["status"], ended.json["updates"]) == (str(folder), "complete", 8)
        assert ended.json["highest_scores_in_training"] == pytest.approx(policy.load(folder).score.tolist())
        record = json.loads((folder / "run.json").read_text())
        assert record["command"].startswith("uavlab train leader_follower --set hidden=8 ")
        assert record["seeds"] == [3]

    def test_a_flag_monitors_a_run_and_stays_when_it_goes_on(self) -> None:
        words = ("--set", "log_every=2", "--updates", "4", "--out", "run")
        assert uavlab("train", "leader_follower", *SETTINGS, *words, "--monitor").code == 0
        assert uavlab("resume", "run", "--updates", "6").code == 0
        assert uavlab("resume", "run", "--updates", "8", "--set", "monitor=false").code == 0
        assert uavlab("resume", "run", "--updates", "10", "--monitor").code == 0
        rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        watched = {row["update"]: "load/cpu" in row for row in rows if "critic_loss" in row}
        assert watched == {1: True, 2: True, 4: True, 6: True, 8: False, 10: True}

    def test_the_layers_in_order(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text("updates: 4\nseed: 1\nbatch: 6\nlr: 1e-2\n")
        given = ["--set", "seed=2", "--set", "batch=7", "--seed", "5", "--name", "n.1_a-b", "--runs", "2"]
        assert uavlab("train", "leader_follower", *SETTINGS, "--config", "mine.yaml", *given).code == 0
        config = read_config(Path("runs/n.1_a-b"))
        run = config.run
        assert (run.updates, run.seed, run.runs, config.source.batch, config.learner.lr) == (8, 5, 2, 7, 0.01)

    @pytest.mark.usefixtures("pace")
    def test_a_learner_is_chosen_and_brings_its_own_settings(self) -> None:
        ended = uavlab("train", "leader_follower_quick", "--learner", "ippo", "--updates", "3", "--dry-run", "--json")
        assert ended.json["gradient_steps_per_run"] == 3 * 5 * 4  # the preset's batch is MASAC's alone
        ended = uavlab("train", "leader_follower", "--learner", "ipo", "--dry-run")
        assert ended.code == 2
        assert "did you mean 'ippo'?" in ended.err
        ended = uavlab("train", "leader_follower", "--learner", "coma", "--dry-run")
        assert "Learners that can: masac, mappo, ippo." in ended.err

    @pytest.mark.usefixtures("pace")
    def test_a_dry_run_tells_and_makes_nothing(self, tmp_path: Path) -> None:
        ended = uavlab("train", "leader_follower_quick", "--dry-run", "--json", "--runs", "2")
        config = configure("leader_follower_quick", {"runs": 2})
        planned = config.task.plan(config)
        assert (ended.code, ended.json) == (0, {**planned, "estimate": vars(PACE.estimate(config.run))})
        line = "time                   about 60 seconds here for 8,000 updates, from 20 in 0.1 s"  # 8 000 x 7.5 ms
        assert ended.out.splitlines()[-2] == line
        assert "None" not in ended.out
        for key in ("updates", "world_steps_per_run", "agent_steps_per_run", "replay_bytes"):
            assert f"{key:22} {planned[key]}" in ended.out.splitlines()
        assert planned["agent_steps_per_run"] == (8000 * 64 + 2048) * 2
        assert os.listdir(tmp_path) == []

    def test_a_dry_run_for_another_machine(self) -> None:
        ended = uavlab("train", "leader_follower", *SETTINGS[:-2], "--device", "cuda", "--dry-run", "--json")
        assert (ended.code, ended.json["estimate"]["error"]) == (0, "ConfigError")
        assert "time                   not measured: device: cuda requested" in ended.out

    def test_a_dry_run_measures(self, tmp_path: Path) -> None:
        ended = uavlab("train", "leader_follower", *SETTINGS, "--dry-run", "--json").json["estimate"]
        assert (ended["updates"], ended["measured"], ended["apart"]) == (8, 7, "")
        assert 0 < ended["minutes"] < 1
        assert os.listdir(tmp_path) == []

    @pytest.mark.usefixtures("pace")
    def test_minutes_alone_replace_the_presets_updates(self) -> None:
        dry = ("train", "leader_follower_quick", "--dry-run", "--json")
        cases: dict[tuple[str, ...], Any] = {
            (): (8000, None),
            ("--minutes", "3"): (None, 3.0),
            ("--minutes", "3", "--updates", "9"): (9, 3.0),
            ("--minutes", "3", "--set", "updates=7"): (7, 3.0),
            ("--set", "minutes=3"): (None, 3),
        }
        for given, expected in cases.items():
            plan = uavlab(*dry, *given).json
            assert (plan["updates"], plan["minutes"]) == expected, given

    def test_a_folder_in_use_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("all of it")
        ended = uavlab("train", "leader_follower", *SETTINGS, "--out", "mine")
        assert ended.code == 2
        assert ended.err.startswith("ConfigError: mine: not empty; choose a new folder")
        assert os.listdir(tmp_path / "mine") == ["thesis.tex"]
        (tmp_path / "empty").mkdir()
        assert uavlab("train", "leader_follower", *SETTINGS, "--out", "empty").code == 0

    def test_divergence_ends_with_4(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reward = LeaderFollower.reward
        monkeypatch.setattr(LeaderFollower, "reward", lambda *arguments: 1e30 * reward(*arguments))
        ended = uavlab("train", "leader_follower", *SETTINGS, "--out", "run")
        assert ended.code == 4
        assert ended.err.splitlines()[-1].startswith("DivergedError: training: reward of run 0, ")
        assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "diverged"

    def test_memory_that_ends_midway_ends_with_5(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def out_of_memory(self: Run) -> NoReturn:
            raise MemoryError("16 GB")

        monkeypatch.setattr(Run, "save", out_of_memory)
        ended = uavlab("train", "leader_follower", *SETTINGS, "--out", "run")
        assert ended.code == 5
        assert "ResourceError: out of memory: 16 GB; lower capacity" in ended.err


class TestResume:
    def test_a_complete_run_ends_at_once(self, finished: Path) -> None:
        own = (".lock", "run.json")
        before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file() and path.name not in own}
        ended = uavlab("resume", finished, "--json")
        assert (ended.code, ended.json["status"], ended.json["updates"]) == (0, "complete", 8)
        assert "nothing to do: the target was reached before; --updates sets a farther one." in ended.out
        assert {path: path.read_bytes() for path in before} == before

    def test_goes_to_the_runs_own_target(self, finished: Path, tmp_path: Path) -> None:
        shutil.copytree(finished, tmp_path / "run")
        shutil.rmtree(tmp_path / "run" / "checkpoints" / "ckpt-000000000008")
        ended = uavlab("resume", "run", "--json")
        assert (ended.code, ended.json["status"], ended.json["updates"]) == (0, "complete", 8)
        assert torch.equal(policy.load(tmp_path / "run").parameters, policy.load(finished).parameters)


class TestReaders:
    def test_evaluate(self, finished: Path, tmp_path: Path) -> None:
        command = ("evaluate", finished, "--episodes", "5", "--json")
        ended = uavlab(*command)
        assert ended.code == 0
        best = policy.load(finished).updates[0]
        assert ended.out.startswith(f"{finished}: policy of update {best}, 5 episodes x 1 run(s)\ncompletion ")
        assert set(ended.json) >= METRICS
        assert all(set(ended.json[name]) == {"mean", "low", "high"} for name in METRICS)
        assert (ended.json["episodes"], ended.json["seed"], ended.json["action"]) == (5, 0, "sampled")
        assert uavlab(*command).json == ended.json
        assert uavlab(*command, "--seed", "1").json["energy"] != ended.json["energy"]
        mean = uavlab(*command, "--mean-action").json
        assert (mean["action"], mean["energy"] != ended.json["energy"]) == ("mean", True)
        assert os.listdir(tmp_path) == []

    def test_evaluate_several_runs_into_one_record(self, finished: Path, tmp_path: Path) -> None:
        ended = uavlab("evaluate", finished, finished, "--episodes", "2", "--out", "record.json", "--json")
        record = json.loads((tmp_path / "record.json").read_text())
        assert record["rows"] == ended.json["rows"]
        assert len(record["rows"]) == len(record["trained"]) == 2
        assert record["command"] == f"uavlab evaluate {finished} {finished} --episodes 2 --out record.json --json"

    def test_nothing_is_evaluated_before_all_runs_are_read(self, finished: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for second, code in (("nobody", 2), ("./empty", 3)):
            ended = uavlab("evaluate", finished, second, "--episodes", "2")
            assert (ended.code, ended.out) == (code, "")

    def test_evaluate_a_baseline(self) -> None:
        ended = uavlab("evaluate", "leader_follower", "--policy", "random", "--episodes", "2", "--json")
        assert ended.out.startswith("leader_follower: random, 2 episodes\ncompletion ")
        assert [ended.json[key] for key in ("preset", "policy", "episodes", "seed")] == [
            "leader_follower",
            "random",
            2,
            0,
        ]

    def test_fly(self, finished: Path, tmp_path: Path) -> None:
        ended = uavlab("fly", finished, "--out", "deep/page.html", "--json")
        assert (ended.code, ended.json) == (0, {"page": "deep/page.html", "steps": 6})
        assert (tmp_path / "deep" / "page.html").read_text().startswith("<!DOCTYPE html>")
        (tmp_path / "file").write_text("")
        assert uavlab("fly", finished, "--out", "file/page.html").code == 5

    def test_a_baseline_of_a_run_or_a_preset(self, finished: Path, tmp_path: Path) -> None:
        row = uavlab("evaluate", finished, "--policy", "random", "--episodes", "2", "--json").json
        assert (row["run"], row["policy"]) == (str(finished), "random")
        ended = uavlab("fly", "leader_follower", "--policy", "random", "--json")
        assert (ended.code, ended.json["page"]) == (0, "leader_follower-random.html")
        assert (tmp_path / "leader_follower-random.html").exists()
        assert "did you mean 'random'" in uavlab("fly", finished, "--policy", "randm", "--out", "x.html").err

    def test_a_mapping_run_is_trained_scored_and_flown(self, tmp_path: Path) -> None:
        names = ("cells", "cell", "lattice", "uavs", "measurements")
        task = {name: getattr(TINY_MISSION, name) for name in names}
        small = {**task, "worlds": 2, "width": 8, "hidden": 8, "evaluate_episodes": 2}
        settings = [part for name, value in small.items() for part in ("--set", f"{name}={value}")]
        assert uavlab("train", "mapping_quick", "--updates", "1", "--out", "run", *settings).code == 0
        assert uavlab("evaluate", "run", "--episodes", "2").code == 0
        ended = uavlab("fly", "run", "--json")
        assert (ended.code, ended.json) == (0, {"page": "run/flight.html", "steps": TINY_MISSION.measurements - 1})
        assert "edge of the targets" in (tmp_path / "run" / "flight.html").read_text()

    def test_export(self, finished: Path) -> None:
        ended = uavlab("export", finished, "copy", "--json")
        assert (ended.code, ended.json) == (0, {"run": str(finished), "out": "copy"})
        figures = [uavlab("evaluate", run, "--episodes", "3", "--json").json for run in (finished, "./copy")]
        assert figures[0] == {**figures[1], "run": str(finished)}
        assert uavlab("export", finished, "copy").code == 2
        assert uavlab("resume", "copy").code == 3

    def test_export_of_a_file(self, finished: Path) -> None:
        ended = uavlab("export", finished, "leader.pt2", "--agent", "0", "--json")
        assert (ended.code, ended.json) == (0, {"run": str(finished), "out": "leader.pt2"})
        record = json.loads(Path("leader.pt2.json").read_text())
        assert (record["agent"], record["team"]["agents"]) == (0, 1)
        assert record["policy"]["run"]["digest"] == json.loads((finished / "run.json").read_text())["digest"]
        again = uavlab("export", finished, "leader.pt2")
        assert (again.code, "leader.pt2: exists" in again.err) == (2, True)
        assert uavlab("export", finished, "other.pt2", "--seed-index", "1").code == 2

    @pytest.mark.parametrize("command", [["evaluate"], ["fly"], ["resume"], ["export"]])
    def test_what_is_a_run_and_what_a_preset(self, tmp_path: Path, command: list[str]) -> None:
        (tmp_path / "folder").mkdir()
        after = ["copy"] if command == ["export"] else []
        for argument, code, message in (
            ("leader_follower", 2, "is a preset, expected a run; train it first: uavlab train leader_follower."),
            ("leader_folower", 2, "neither a run nor a preset (did you mean 'leader_follower'?)"),
            ("runs/leader_follower", 3, "FileError: runs/leader_follower/config.json"),
            ("folder", 3, "FileError: folder/config.json"),
        ):
            ended = uavlab(*command, argument, *after)
            assert ended.code == code, argument
            assert message in ended.err, argument
        assert os.listdir(tmp_path) == ["folder"]

    @pytest.mark.parametrize("command", ["evaluate", "fly", "resume"])
    def test_a_damaged_checkpoint_ends_with_3(self, finished: Path, tmp_path: Path, command: str) -> None:
        shutil.copytree(finished, tmp_path / "run")
        for path in (tmp_path / "run" / "checkpoints").glob("*/best.npz"):
            path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
        ended = uavlab(command, "run")
        assert ended.code == 3
        assert "best.npz is damaged" in ended.err


class TestCrossPlayOfPlans:
    def test_a_preset_is_the_task_and_no_player(self) -> None:
        plans = ["--policy", "chase", "--policy", "random"]
        play = uavlab("cross-play", "pursuit", *plans, "--episodes", "2", "--json").json
        assert [row["players"]["pursuers"] for row in play["rows"]] == ["chase", "chase", "random", "random"]

    def test_two_tasks_are_refused(self) -> None:
        ended = uavlab("cross-play", "pursuit", "pursuit_quick", "--policy", "random")
        assert ended.code == 2
        assert "got the presets pursuit, pursuit_quick; expected one task at most" in ended.err
