"""A run's folder records how it ended, an interruption changes no result, and the best policy is selected."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_config import TINY, tiny, train_tiny
from uavlab import evaluation
from uavlab.core.errors import ConfigError, DivergedError, FileError, ResourceError
from uavlab.experiment import build, policy, run_dir, scores
from uavlab.experiment import run as module
from uavlab.experiment.names import own_digest
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config, require_empty
from uavlab.runtime.toggles import EAGER
from uavlab.storage.files import json_digest


def status(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless(listed: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in listed]


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("ckpt-")) for path in (folder / "checkpoints").iterdir())


def everything(run: Run) -> dict[str, Tensor]:
    """All tensors on which the rest of a run and its result depend."""
    parts = {"learner": run.learner, "source": run.source, "streams": run.rng}
    state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    return {**state, "best": run.best, "best_score": run.best_score}


def until(run: Run, number: int) -> None:
    """Train up to an update and stop there as the command line does."""
    for progress in run.train():
        if progress.number == number:
            run.stop()


class TestFolder:
    def test_what_lies_in_it(self, finished: Path) -> None:
        names = sorted(os.listdir(finished))
        assert [name for name in names if not name.startswith("events.out.tfevents.")] == [
            ".lock",
            "checkpoints",
            "config.json",
            "metrics.jsonl",
            "run.json",
        ]
        assert len(names) == 6
        assert steps(finished) == [4, 8]
        stored = {"preset": "leader_follower", "environment": "leader_follower", "values": tiny().values}
        assert json.loads((finished / "config.json").read_text()) == {**stored, "sha256": json_digest(stored)}
        assert read_config(finished) == tiny()

    def test_rows_of_metrics(self, finished: Path) -> None:
        logged = rows(finished)
        assert [row["update"] for row in logged] == [1, 2, 4, 6, 8]
        assert ["eval/completion" in row for row in logged] == [False, True, True, True, True]
        assert all({"critic_loss", "q", "actor_loss", "entropy", "alpha"} <= set(row) for row in logged)
        assert all(before["seconds"] <= after["seconds"] for before, after in itertools.pairwise(logged))

    def test_the_record_of_how_it_ended(self, finished: Path) -> None:
        record = status(finished)
        machine, seconds, saves = record.pop("machine"), record.pop("seconds"), record.pop("saves")
        assert len(record.pop("digest")) == 64
        assert record == {
            "status": "complete",
            "reason": "",
            "command": "",
            "update": 8,
            "target": 8,
            "seeds": [0],
            "evaluate_mean_action": False,
            "not_exact": [],
            "symptoms": [],
            "toggles": {**EAGER, "fell_back": {}, "notes": {}},
            "retries": [],
        }
        assert (machine["threads"], seconds > 0) == (1, True)
        assert saves["count"] == 2  # of updates 4 and 8
        assert 0 < saves["mean_s"] <= saves["longest_s"] < seconds
        assert saves["last_bytes"] > 1000

    def test_only_the_last_checkpoints_are_kept(self, tmp_path: Path) -> None:
        train_tiny(tmp_path / "run", checkpoint_every=1, keep=3)
        assert steps(tmp_path / "run") == [6, 7, 8]

    @pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
    def test_a_folder_in_use_is_refused_and_left_alone(self, tmp_path: Path, make: Callable[[Path], None]) -> None:
        make(tmp_path / "thesis.tex")
        with pytest.raises(ConfigError) as refusal:
            Run(tiny(), tmp_path)
        assert str(refusal.value) == (f"{tmp_path}: not empty; choose a new folder.")
        assert os.listdir(tmp_path) == ["thesis.tex"]
        if make is Path.touch:
            with pytest.raises(ConfigError, match=r"thesis\.tex: a file; choose a new folder\."):
                require_empty(tmp_path / "thesis.tex")

    def test_another_run_is_not_overwritten(self, finished: Path) -> None:
        with pytest.raises(ConfigError, match="uavlab resume"):
            Run(tiny(seed=1), finished)
        assert read_config(finished) == tiny()

    def test_without_a_folder_nothing_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        run = train_tiny()
        assert (run.status, run.number, os.listdir(tmp_path)) == ("complete", 8, [])
        assert [row["update"] for row in run.recorder.rows] == [1, 2, 4, 6, 8]

    @pytest.mark.parametrize("content", ["{}", '{"preset": 1, "values": {}}', '{"preset": "x", "values": 3}', "[", ""])
    def test_a_folder_that_is_no_run(self, tmp_path: Path, content: str) -> None:
        with pytest.raises(FileError, match=r"config\.json"):
            Run.resume(tmp_path)
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(FileError, match=r"config\.json"):
            read_config(tmp_path)

    def test_settings_that_are_no_longer_valid(self, tmp_path: Path) -> None:
        stored = {"preset": "leader_follower", "values": {"wings": 2}}
        (tmp_path / "config.json").write_text(json.dumps({**stored, "sha256": own_digest(stored)}))
        with pytest.raises(ConfigError, match="unknown setting 'wings'"):
            read_config(tmp_path)


class TestEnds:
    def test_while_it_runs(self, tmp_path: Path) -> None:
        run = Run(tiny(), tmp_path / "run")
        assert status(tmp_path / "run")["status"] == run.status == "new"
        training = run.train()
        next(training)
        assert status(tmp_path / "run")["status"] == run.status == "running"
        training.close()

    def test_interrupted_between_a_file_and_the_memory_of_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, write = Run(tiny(), tmp_path / "run"), run_dir.write_json

        def then_interrupt(path: Path, value: Any) -> None:
            write(path, value)
            monkeypatch.setattr(run_dir, "write_json", write)
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(run_dir, "write_json", then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(run.train())
        assert len(list(run.train())) > 0
        assert run.status == "complete"

    @pytest.mark.parametrize("how", ["break", "stop", "interrupt"])
    def test_interrupted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        folder = tmp_path / "run"
        run = Run(tiny(evaluate_every=100), folder)
        if how == "stop":
            until(run, 3)
        elif how == "break":
            for progress in run.train():
                if progress.number == 3:
                    break
        else:
            learn = run.learner.update

            def update(*given: Any) -> Any:
                if run.number == 3:
                    raise KeyboardInterrupt
                return learn(*given)

            monkeypatch.setattr(run.learner, "update", update)
            with pytest.raises(KeyboardInterrupt):
                list(run.train())
            with pytest.raises(ConfigError, match="an update was cut in half, so there is no state to go on from"):
                next(run.train())
        record = status(folder)
        assert (record["status"], record["update"], record["reason"]) == ("interrupted", 3, "")
        if how == "interrupt":  # it came inside an update: half of one is nothing to go on from
            assert not (folder / "checkpoints").exists()
            assert torch.equal(run.trained().parameters, run.learner.parameters())
            return
        assert steps(folder) == [3]
        assert torch.equal(policy.load(folder).parameters, run.learner.parameters())  # no score yet: the newest policy

    def test_interrupted_while_it_says_that_it_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run, write = Run(tiny(), tmp_path / "run"), run_dir.write_json

        def written(path: Path, record: dict[str, Any]) -> None:
            write(path, record)
            if record["status"] == "running":
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(run_dir, "write_json", written)
        with pytest.raises(KeyboardInterrupt):
            next(run.train())
        assert (run.status, status(tmp_path / "run")["status"]) == ("interrupted", "interrupted")
        monkeypatch.setattr(run_dir, "write_json", write)
        assert [progress.number for progress in run.train()][-1] == 8
        assert run.status == "complete"

    def test_a_break_at_the_target_is_the_end(self, tmp_path: Path) -> None:
        run = Run(tiny(), tmp_path / "run")
        for progress in run.train():
            if progress.number == 8:
                break
        assert status(tmp_path / "run")["status"] == "complete"

    def test_a_run_shorter_than_its_first_score_is_scored_at_its_end(self, tmp_path: Path) -> None:
        run = train_tiny(tmp_path / "run", evaluate_every=100)
        scored = [row["update"] for row in rows(tmp_path / "run") if "eval/completion" in row]
        assert scored == [8]
        assert run.best_score.isfinite().all()

    def test_minutes_end_it_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = iter(range(0, 10_000, 25))  # each look at the clock comes 25 s after the last
        monkeypatch.setattr(module.time, "monotonic", lambda: float(next(ticks)))
        run = train_tiny(updates=None, minutes=2.0)
        assert (run.status, run.number, run.seconds) == ("complete", 3, 125.0)

    def test_numbers_that_are_not_finite(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        run = Run(tiny(runs=2, checkpoint_every=2), folder)
        training = run.train()
        for _ in range(3):
            next(training)
        run.learner.critic.parameter.data[-1, 5] = torch.nan  # type: ignore[union-attr]  # run 1, agent 1
        with pytest.raises(DivergedError) as refusal:
            next(training)
        assert str(refusal.value) == (
            "training: critic.parameter of run 1, agent 1 is nan at update 3; expected a finite number of at most "
            f"1e+18 in size. ckpt-000000000002 is the last good state: `uavlab resume {folder} --set lr=0.0005 --set "
            "critic_lr=0.0015 --set clip=0.5` goes on from it."
        )
        record = status(folder)
        assert (record["status"], record["update"], record["reason"]) == ("diverged", 3, str(refusal.value))
        assert steps(folder) == [2]  # what diverged is never saved
        assert json.loads((folder / "divergence.json").read_text()) == {
            **{"tensor": "critic.parameter", "value": "nan", "kind": "learner", "run": 1, "agent": 1, "update": 3},
            **{"expected": "a finite number of at most 1e+18 in size", "last_good_checkpoint": "ckpt-000000000002"},
        }
        resumed = Run.resume(folder, {"lr": 0.0005, "critic_lr": 0.0015})
        list(resumed.train())
        assert status(folder)["status"] == "complete"
        assert resumed.parts.not_exact_reasons == [
            "update 2: lr 0.001 -> 0.0005",
            "update 2: critic_lr 0.003 -> 0.0015",
        ]
        assert not (folder / "divergence.json").exists()

    def test_numbers_that_the_last_update_spoiled_are_not_saved(self, tmp_path: Path) -> None:
        run = Run(tiny(), tmp_path / "run")
        training = run.train()
        for _ in range(3):
            next(training)
        run.learner.target[0, 0] = torch.inf  # type: ignore[union-attr]
        with pytest.raises(
            DivergedError, match=r"target.parameter of run 0, agent 0 is inf at update 3.*Nothing was saved before"
        ):
            training.close()
        assert status(tmp_path / "run")["status"] == "diverged"
        assert not (tmp_path / "run" / "checkpoints").exists()

    @pytest.mark.parametrize("kind", [DivergedError, ZeroDivisionError])
    def test_a_disk_that_refuses_the_record_does_not_hide_the_cause(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
    ) -> None:
        run = Run(tiny(), tmp_path / "run")
        steps = run.train()
        next(steps)

        def full(*given: Any) -> None:
            raise ResourceError("no space")

        def update(*given: Any) -> None:
            raise ZeroDivisionError

        if kind is DivergedError:
            run.learner.target[0, 0] = torch.nan  # type: ignore[union-attr]
        monkeypatch.setattr(run_dir, "write_json", full)
        monkeypatch.setattr(run.learner, "update", update)
        with pytest.raises(kind):
            next(steps)
        assert run.status == ("diverged" if kind is DivergedError else "failed")

    def test_a_save_that_fails_leaves_a_state_to_go_on_from(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = Run(tiny(), tmp_path / "run")
        with monkeypatch.context() as patch:
            patch.setattr(module.resume, "save", lambda *given: (_ for _ in ()).throw(ResourceError("no space")))
            with pytest.raises(ResourceError, match="no space"):
                list(run.train())
        assert (run.number, status(tmp_path / "run")["status"]) == (4, "failed")
        list(run.train())  # after room was made
        assert (run.status, run.digest) == ("complete", train_tiny().digest)

    def test_a_checkpoint_before_the_first_score_keeps_the_newest_policy(self, tmp_path: Path) -> None:
        run = Run(tiny(evaluate_every=100, checkpoint_every=2), tmp_path / "run")
        steps = run.train()
        for _ in range(4):
            next(steps)
        loaded = policy.load(tmp_path / "run")  # as if the process had been killed now
        assert (loaded.update, loaded.score.tolist()) == (4, [-torch.inf])
        assert torch.equal(loaded.parameters, run.learner.parameters())
        assert not torch.equal(loaded.parameters, run.best_team.parameters)
        steps.close()

    def test_of_several_runs_each_unscored_one_keeps_its_own_newest(self) -> None:
        run = Run(tiny(runs=2))
        run.best_score[1] = 0.5
        next(run.train())
        newest = run.learner.parameters()
        assert torch.equal(run.best, torch.stack((newest[0], run.best_team.parameters[1])))

    def test_any_other_failure_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = Run(tiny(), tmp_path / "run")

        def update(*given: Any) -> None:
            raise ZeroDivisionError("oh")

        monkeypatch.setattr(run.learner, "update", update)
        with pytest.raises(ZeroDivisionError):
            list(run.train())
        record = status(tmp_path / "run")
        assert (record["status"], record["reason"]) == ("failed", "ZeroDivisionError: oh")


class TestPolicyKept:
    def test_it_is_each_runs_best(self, monkeypatch: pytest.MonkeyPatch) -> None:
        scripted = iter(torch.tensor([[[0.1], [0.9]], [[0.5], [0.2]], [[0.3], [0.9]]]))  # update, run, episode

        def episodes(*given: Any, **named: Any) -> dict[str, Tensor]:
            completion = next(scripted)
            return {"completion": completion, **{k: torch.zeros(2, 1) for k in ("formation_strict", "flight_time")}}

        monkeypatch.setattr(evaluation, "episodes", episodes)
        run, policies = Run(tiny(runs=2, updates=6)), {}
        for progress in run.train():
            policies[progress.number] = run.learner.parameters()
        assert torch.equal(run.best[0], policies[4][0])
        assert torch.equal(run.best[1], policies[2][1])  # of equal scores the first
        weight = run.config.evaluation.score["completion"]
        torch.testing.assert_close(run.best_score, weight * torch.tensor([0.5, 0.9]))

    def test_the_score_weighs_the_figures(self) -> None:
        run = train_tiny(updates=2)
        weights = run.config.evaluation.score
        row = run.recorder.rows[-1]
        expected = sum(weight * row[f"eval/{name}"] for name, weight in weights.items())
        assert run.best_score.item() == pytest.approx(expected, rel=1e-5)

    def test_it_is_chosen_on_starts_that_evaluation_never_uses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        choosing, judging = starts(monkeypatch)
        assert len(choosing) == 4 * TINY["evaluate_episodes"]
        assert choosing.isdisjoint(judging)

    def test_sharing_a_stream_would_be_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(build, "VALIDATION", "evaluate")  # the mutant
        choosing, judging = starts(monkeypatch)
        assert judging < choosing


def starts(monkeypatch: pytest.MonkeyPatch) -> tuple[set[bytes], set[bytes]]:
    """Collect where episodes start: those that choose a policy, and those that judge it with the same seed."""
    met: list[bytes] = []
    begin = evaluation.start_worlds

    def start_worlds(*given: Any) -> Any:
        worlds = begin(*given)
        met.extend(
            world.numpy().tobytes() for world in torch.cat((worlds.state.pos, worlds.state.heading[..., None]), -1)
        )
        return worlds

    monkeypatch.setattr(evaluation, "start_worlds", start_worlds)
    run = train_tiny()
    choosing = set(met)
    met.clear()
    scores.evaluate(run.trained(), TINY["evaluate_episodes"], seed=0, mean_action=False)
    return choosing, set(met)


def test_a_plan_is_arithmetic() -> None:
    config = tiny(runs=2, followers=3, world_steps=5, worlds=4, updates=10, learning_starts=20)
    planned = config.task.plan(config)
    floats = 4 * (7 + 2 + 1 + 7)  # of 4 agents: observation, action, reward and next observation
    row = 4 * floats + 2 * 8  # terminated of each agent, truncated: a word each
    assert planned == {
        "preset": "leader_follower",
        "updates": 10,
        "minutes": None,
        "runs": 2,
        "world_steps_per_run": 10 * 5 * 4 + 20,
        "agent_steps_per_run": (10 * 5 * 4 + 20) * 4,
        "replay_bytes": row * 32 * 2,
    }
    endless = config.task.plan(tiny(updates=None, minutes=3.0))
    assert (endless["updates"], endless["minutes"], endless["world_steps_per_run"]) == (None, 3.0, None)


def test_the_bytes_planned_are_the_bytes_taken() -> None:
    config = tiny(runs=2, followers=3)
    ring = Run(config).source.ring
    assert config.task.plan(config)["replay_bytes"] == ring.words.nbytes
