"""Runs of several ranks, here threads: equal learners, other worlds, folders, and how they go on."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import tiny
from tests.support.lockstep import ThreadRank, small, together
from uavlab.core.errors import ConfigError, FallbackWarning, FileError, RankError
from uavlab.experiment import rank_runs, run_state
from uavlab.experiment import run as run_module
from uavlab.experiment.config import Config
from uavlab.experiment.rank_runs import is_restart, require_same_settings, totals
from uavlab.experiment.run import Run
from uavlab.storage import checkpoint

Watch = Callable[[Run, int], None]


def nothing(run: Run, rank: int) -> None:
    """Let a run go on."""


def train(folder: Path, config: Config, size: int = 2, watch: Watch = nothing) -> list[Run]:
    """Train a run of several ranks; ``watch`` is called after each update of each."""

    def work(rank: ThreadRank) -> Run:
        run = Run(config, folder, rank)
        for _ in run.train():
            watch(run, rank.rank)
        return run

    return together(work, size)


def resume(folder: Path, size: int = 2, **how: Any) -> list[Run]:
    """Go on with a run to its end."""

    def work(rank: ThreadRank) -> Run:
        run = Run.resume(folder, ranks=rank, **how)
        for _ in run.train():
            pass
        return run

    return together(work, size)


def stop_at(number: int) -> Watch:
    """Return a function that asks rank 1 to stop after an update."""

    def watch(run: Run, rank: int) -> None:
        if run.number == number and rank == 1:
            run.stop()

    return watch


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """A complete run of two ranks."""
    return train(tmp_path_factory.mktemp("runs") / "whole", tiny())


def digests(runs: list[Run]) -> list[str]:
    return [run.digest for run in runs]


def test_ranks_have_equal_learners_and_other_worlds(whole: list[Run], tmp_path: Path) -> None:
    first, second = whole
    assert run_state.learner_digest(first) == run_state.learner_digest(second)
    assert torch.equal(first.best, second.best)
    assert torch.equal(first.best_score, second.best_score)
    assert not torch.equal(first.source.ring.rows.obs, second.source.ring.rows.obs)
    assert digests(train(tmp_path / "again", tiny())) == digests(whole)


def test_each_rank_keeps_its_part_and_rank_0_the_run(whole: list[Run]) -> None:
    folder = whole[0].folder
    assert folder is not None
    assert whole[1].folder == folder / "ranks" / "1"
    for part in (folder, folder / "ranks" / "1"):
        record = json.loads((part / "run.json").read_text())
        assert (record["status"], record["ranks"], record["update"]) == ("complete", 2, 8)
        assert record["learner_digest"] == run_state.learner_digest(whole[0])
        assert len((part / "metrics.jsonl").read_text().splitlines()) == 5
    rows = [[row["target"] for row in run.recorder.rows if "target" in row] for run in whole]
    assert rows[0] != rows[1]  # each logs its own rows
    saved = checkpoint.newest(folder / "checkpoints")
    assert saved.meta["learner_digest"] == run_state.learner_digest(whole[0])


def test_a_step_that_one_rank_takes_alone_is_noticed(tmp_path: Path) -> None:
    def disturb(run: Run, rank: int) -> None:
        if rank == 1 and run.number == 5:
            run.learner.actor.parameter.data.add_(1e-6)

    with pytest.raises(RankError, match="update 8: the learners of 2 ranks differ"):
        train(tmp_path / "run", tiny(), watch=disturb)
    assert checkpoint.newest(tmp_path / "run" / "checkpoints").step == 4


def test_a_toggle_that_falls_back_on_one_rank_alone_ends_all(tmp_path: Path) -> None:
    def lose_the_compiler(run: Run, rank: int) -> None:
        if run.number == 5 and rank == 1:
            with pytest.warns(FallbackWarning):
                run.rt.fall_back("compile", "update: no compiler")

    message = r"compile=off fell back on rank 1 and not on all: update: no compiler; .* --toggle compile=off"
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "run", tiny(), watch=lose_the_compiler)
    records = [json.loads((tmp_path / "run" / part / "run.json").read_text()) for part in (".", "ranks/1")]
    assert [(each["status"], each["update"]) for each in records] == [("failed", 6)] * 2


def test_ranks_that_each_lose_another_toggle_end_too(tmp_path: Path) -> None:
    def lose_one(run: Run, rank: int) -> None:
        if run.number == 5:
            run.rt.fell_back[("compile", "prefetch")[rank]] = "lost"

    with pytest.raises(ConfigError, match=r"compile=off fell back on rank 0 and not on all: lost"):
        train(tmp_path / "run", tiny(), watch=lose_one)


def test_a_toggle_that_falls_back_on_all_ranks_ends_none(tmp_path: Path) -> None:
    def lose_the_compiler(run: Run, rank: int) -> None:
        if run.number == 5:
            run.rt.fell_back["compile"] = "update: no compiler"

    assert [run.number for run in train(tmp_path / "run", tiny(), watch=lose_the_compiler)] == [8, 8]


def test_all_ranks_end_after_one_update(tmp_path: Path) -> None:
    runs = train(tmp_path / "run", tiny(updates=40), watch=stop_at(6))
    assert {run.status for run in runs} == {"interrupted"}
    assert {run.number for run in runs} == {7}  # rank 0 learns of it with the next update
    assert {run.seconds for run in runs} == {runs[0].seconds}


def test_ranks_go_on_to_the_same_bits(whole: list[Run], tmp_path: Path) -> None:
    train(tmp_path / "run", tiny(), watch=stop_at(2))
    resumed = resume(tmp_path / "run")
    assert digests(resumed) == digests(whole)
    assert [run.parts.not_exact_reasons for run in resumed] == [[], []]


KINDS: dict[str, Callable[[], Config]] = {
    "priorities": lambda: tiny(priorities="mean", prefetch="overlap", seed=3),
    "plateau, warm-up": lambda: tiny(plateau={"patience": 0}, warmup=5, lr_scale="sqrt", runs=2),
    "patience": lambda: tiny(patience=1, updates=40),
    "half precision": lambda: tiny(precision="fp16"),
    "mappo, memory": lambda: small("mappo", memory=4, noisy=True),
    "forecaster": lambda: small("forecaster"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_run_ends_alike_on_all_ranks_and_goes_on(kind: str, tmp_path: Path) -> None:
    config = KINDS[kind]()
    left_alone = train(tmp_path / "whole", config)
    assert len({(run.status, run.number, run.parts.evals_since_best) for run in left_alone}) == 1
    assert len({run_state.learner_digest(run) for run in left_alone}) == 1
    assert torch.equal(*(run.best_score for run in left_alone))
    train(tmp_path / "run", config, watch=stop_at(2))
    assert digests(resume(tmp_path / "run")) == digests(left_alone)


def test_all_ranks_end_when_the_slowest_has_used_its_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = threading.local()

    def clock() -> float:
        own.now = getattr(own, "now", 0.0) + getattr(own, "step", 0.0)
        return own.now

    def slow_down(run: Run, rank: int) -> None:
        own.step = 10.0 * rank  # seconds between two looks at the clock

    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=clock, perf_counter=time.perf_counter))
    runs = train(tmp_path / "run", tiny(updates=None, minutes=0.5), watch=slow_down)
    # of rank 1, the second update takes 10 s, the work after it 10, the third update 10
    assert {(run.status, run.number, run.seconds) for run in runs} == {("complete", 3, 30.0)}


def test_what_a_rank_forgets_is_noticed(whole: list[Run], tmp_path: Path) -> None:
    train(tmp_path / "run", tiny(), watch=stop_at(2))
    other = tmp_path / "other"
    train(other, tiny(seed=9), watch=stop_at(2))
    name = Path("checkpoints", checkpoint.folder_name(3))
    shutil.rmtree(tmp_path / "run" / "ranks" / "1" / name)
    shutil.copytree(other / "ranks" / "1" / name, tmp_path / "run" / "ranks" / "1" / name)
    with pytest.raises((RankError, FileError, ConfigError)):
        resume(tmp_path / "run")


def test_all_go_on_from_a_checkpoint_that_all_have(whole: list[Run], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, tiny(updates=10), watch=stop_at(8))
    broken = folder / "ranks" / "1" / "checkpoints" / checkpoint.folder_name(9) / "source.npz"
    broken.write_bytes(b"")
    with pytest.warns(UserWarning, match="All ranks go on from an earlier checkpoint"):
        resumed = resume(folder)
    assert digests(resumed) == digests(train(tmp_path / "left alone", tiny(updates=10)))


def test_a_rank_without_a_checkpoint_ends_all(tmp_path: Path) -> None:
    train(tmp_path / "run", tiny(), watch=stop_at(2))
    shutil.rmtree(tmp_path / "run" / "ranks" / "1" / "checkpoints")
    with (
        pytest.warns(UserWarning, match="All ranks go on"),
        pytest.raises(FileError, match="holds no intact checkpoint"),
    ):
        resume(tmp_path / "run")


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (1, 2)])
def test_another_number_of_ranks_goes_on(before: int, after: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if before == 1:
        run = Run(tiny(), folder)
        for progress in run.train():
            if progress.number == 3:
                run.stop()
    else:
        train(folder, tiny(), before, stop_at(2))
    runs = resume(folder, after)
    assert {run.status for run in runs} == {"complete"}
    assert {run_state.learner_digest(run) for run in runs} == {run_state.learner_digest(runs[0])}
    reason = f"update 3: ranks {before} -> {after}, each with its own worlds and batch"
    assert all(reason in run.parts.not_exact_reasons for run in runs)
    for run in runs[before:]:  # new ones fill their replay
        assert run.source._stored == 16 + 5 * 4
        assert run.recorder.rows[0]["update"] == 4


def test_a_new_rank_flies_other_worlds(tmp_path: Path) -> None:
    train(tmp_path / "run", tiny(), 2, stop_at(2))
    runs = resume(tmp_path / "run", 3)
    worlds = [run.source.worlds.obs for run in runs]
    assert not any(torch.equal(worlds[a], worlds[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_settings_of_all_ranks_are_compared() -> None:
    def work(rank: ThreadRank) -> None:
        require_same_settings(rank, "leader_follower", {"lr": 0.1 * (1 + rank.rank // 2), "seed": 1})

    together(work, 2)
    with pytest.raises(
        ConfigError, match=r"ranks 0 and 2 have other settings: lr 0.1 and 0.2; start all by one command"
    ):
        together(work, 3)


def test_settings_that_a_message_does_not_list_are_counted() -> None:
    def work(rank: ThreadRank) -> None:
        require_same_settings(rank, "leader_follower", {f"s{number}": rank.rank for number in range(8)})

    with pytest.raises(ConfigError, match=r"s3 0 and 1, s4 0 and 1 and 3 more; start all by one command"):
        together(work, 2)


def test_a_run_that_torchrun_starts_again_is_known_by_its_settings(
    whole: list[Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, config = whole[0].folder, tiny()
    assert folder is not None
    assert not is_restart(folder, config.preset, config.values)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert is_restart(folder, config.preset, config.values)
    assert not is_restart(tmp_path, config.preset, config.values)
    with pytest.raises(ConfigError, match="holds a run with another hidden, lr; expected the one that torchrun"):
        is_restart(folder, config.preset, tiny(hidden=16, lr=0.5).values)
    many = {"lr": 0.5, "gamma": 0.5, "tau": 0.5, "hidden": 16, "batch": 4, "horizon": 7, "n_step": 2}
    with pytest.raises(ConfigError, match=r"and 2 more; expected the one"):
        is_restart(folder, config.preset, tiny(**many).values)


def test_sizes_of_all_ranks_are_planned() -> None:
    assert totals(tiny(), 1) == {}
    expected = {"batch": 16, "worlds": 8, "capacity": 64, "learning_starts": 32}
    assert totals(tiny(), 2) == {"ranks": 2, **{f"{name}_of_all_ranks": size for name, size in expected.items()}}


def test_settings_do_not_change_within_a_run_of_ranks(tmp_path: Path) -> None:
    def change(run: Run, rank: int) -> None:
        with pytest.raises(ConfigError, match="2 ranks train this run; end it"):
            run.change(lr=0.5)

    train(tmp_path / "run", tiny(updates=2), watch=change)


def test_the_part_of_a_rank_is_no_run_to_resume(whole: list[Run]) -> None:
    part = whole[1].folder
    assert part is not None
    with pytest.raises(
        ConfigError, match=r"ranks/1: the part of one rank; resume the run that it belongs to, .*whole\."
    ):
        Run.resume(part)


def test_a_folder_in_use_is_refused_for_all(whole: list[Run]) -> None:
    folder = whole[0].folder
    assert folder is not None
    with pytest.raises(ConfigError, match="not empty"):
        train(folder, tiny())


def test_torchrun_hears_of_an_error_before_a_rank_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, heard = tmp_path / "error.json", list[str]()

    class Rank(ThreadRank):
        def close(self) -> None:
            heard.append(json.loads(file.read_text())["message"]["message"])

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    monkeypatch.setattr(rank_runs, "join", lambda *arguments: Rank(0, 2))
    with pytest.raises(ValueError, match="wind"), rank_runs.connected(tiny().run, "cpu"):
        raise ValueError("no wind")
    assert heard == ["ValueError: no wind"]
    file.unlink()
    with pytest.raises(RankError), rank_runs.connected(tiny().run, "cpu"):
        raise RankError("another rank ended")
    assert not file.exists()  # the reason is that of the other


def test_ranks_whose_launcher_is_gone_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadRank, "deserted", property(lambda rank: rank.rank == 1))
    runs = train(tmp_path / "run", tiny())
    assert {(run.status, run.number) for run in runs} == {("interrupted", 1)}
