"""A change of settings between two updates does, to the bit, what a resumed run with this change does."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from uavlab.core.errors import ConfigError, DivergedError, FallbackWarning, ResourceError
from uavlab.experiment import change, run_dir, run_state
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config, read_status, store_config
from uavlab.experiment.run_state import Change, Item, Parts

Settings = dict[str, Any]

OFTEN: Settings = {"updates": 16, "log_every": 4, "evaluate_every": 8, "evaluate_episodes": 1, "checkpoint_every": 100}
TINY: Settings = {
    **OFTEN,
    "horizon": 30,
    "hidden": 8,
    "batch": 8,
    "worlds": 4,
    "learning_starts": 32,
    "capacity": 64,
    "threads": 1,
}
PPO: Settings = {**OFTEN, "learner": "ippo", "hidden": 8, "worlds": 4, "rollout_steps": 4}
LOGS: Settings = {**OFTEN, "flights": 12, "batch": 8, "evaluate_episodes": 2}
ROUNDS: Settings = {**TINY, "prefetch": "overlap", "interval": 2, "ratio": 2}
AT = 6

CASES = [
    ("leader_follower_quick", TINY, {"precision": "bf16"}),
    ("leader_follower_quick", TINY, {"worlds": 8}),
    ("leader_follower_quick", TINY, {"prefetch": "overlap", "interval": 3}),
    ("leader_follower_quick", TINY, {"priorities": "mean"}),
    ("leader_follower_quick", TINY, {"update": "vmap"}),
    ("spread", PPO, {"worlds": 6, "lr": 1e-4}),
]
MORE_CASES = [  # of a proof
    ("leader_follower_quick", {**TINY, "log_episodes": True}, {"worlds": 3, "batch": 12}),
    ("leader_follower_quick", {**TINY, "priorities": "mean"}, {"worlds": 5}),
    ("leader_follower_quick", ROUNDS, {"prefetch": "off", "worlds": 2, "ratio": 1}),
    ("leader_follower_quick", ROUNDS, {"worlds": 6}),
    ("leader_follower_quick", {**TINY, "prefetch": "on"}, {"batch": 12}),
    ("leader_follower_quick", {**TINY, "prefetch": "on"}, {"prefetch": "off"}),
    ("leader_follower_quick", TINY, {"placement": "host", "lr": 1e-4, "adam": "single", "acting": "loop"}),
    ("leader_follower_quick", TINY, {"plateau": {}, "evaluate_every": 4}),
    ("leader_follower_quick", {**TINY, "priorities": "max"}, {"priorities": "off", "worlds": 3}),
    ("leader_follower_quick", {**TINY, "update": "loop"}, {"update": "batched", "optimizers": "many"}),
    ("spread", {**PPO, "memory": 4}, {"worlds": 2}),
    ("mapping", {**OFTEN, "worlds": 1, "updates": 8}, {"worlds": 2, "maps": "device"}),
    ("telemetry", LOGS, {"batch": 12, "loader": "per_item"}),
]


def train(run: Run, changes: dict[int, Settings] | None = None, until: int = 10**9) -> Run:
    """Train a run with changes after some updates, to its target or to an earlier update."""
    steps = run.train()
    for progress in steps:
        if settings := (changes or {}).get(progress.number):
            run.change(**settings)
        if progress.number == until:
            steps.close()
    return run


@pytest.mark.parametrize(("preset", "base", "settings"), CASES)
def test_a_change_is_a_resumed_run(preset: str, base: Settings, settings: Settings, tmp_path: Path) -> None:
    require_equal_bits(preset, base, settings, tmp_path)


def require_equal_bits(preset: str, base: Settings, settings: Settings, tmp_path: Path) -> None:
    """Fail if a run that is changed differs from one that is saved, ended and resumed with the change."""
    config = configure(preset, base)
    changed = train(Run(config), {AT: settings})
    train(Run(config, tmp_path / "run"), until=AT)
    resumed = train(Run.resume(tmp_path / "run", settings))
    assert changed.digest == resumed.digest
    assert changed.parts.not_exact_reasons == resumed.parts.not_exact_reasons
    assert [each.settings for each in changed.changes] == [each.settings for each in resumed.changes]
    assert changed.digest != train(Run(config)).digest or settings.keys() <= {"placement"}


PLATEAU = {"plateau": {"patience": 1}, "evaluate_every": 2, "updates": 30}


@pytest.mark.parametrize(
    ("part", "settings"),
    [*((part, {"worlds": 8, "batch": 4}) for part in ("learner", "rng", "source")), ("schedules", PLATEAU)],
)
def test_a_part_that_stays_behind_is_noticed(
    part: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = configure("leader_follower_quick", TINY)
    right = train(Run(config), {AT: settings}).digest
    run, build_parts = Run(config), change.build_parts

    def build_others(config: Config) -> Parts:
        return replace(build_parts(config), **{part: getattr(run.parts, part)})

    monkeypatch.setattr(change, "build_parts", build_others)
    try:
        wrong = train(run, {AT: settings}).digest
    except Exception:  # parts of two runs do not fit each other
        return
    assert wrong != right


REUSED = [({"precision": "bf16"}, TINY), ({"adam": "single", "acting": "loop"}, ROUNDS), ({"update": "vmap"}, TINY)]
BUILT = [
    ({"worlds": 8}, TINY),
    ({"prefetch": "off"}, ROUNDS),
    ({"priorities": "mean"}, TINY),
    ({"priorities": "off"}, {**TINY, "priorities": "max"}),
    ({"plateau": None}, {**TINY, "plateau": {"patience": 1}, "evaluate_every": 2}),
]


@pytest.mark.parametrize(
    ("settings", "base", "reused"), [*((*each, True) for each in REUSED), *((*each, False) for each in BUILT)]
)
def test_a_change_back_uses_the_parts_of_before_where_they_hold_nothing_else(
    settings: Settings, base: Settings, reused: bool, tmp_path: Path
) -> None:
    config = configure("leader_follower_quick", base)
    back = {name: config.values[name] for name in settings}
    flips = {3: settings, 5: back, 8: settings, 9: back, 12: settings}
    run = Run(config)
    first = run.rt
    digest = train(run, flips).digest
    assert run.spare is not None
    assert (run.spare.rt is first) is reused
    train(Run(config, tmp_path / "run"), until=3)
    for update, after in zip(flips, [*flips, 10**9][1:], strict=False):
        resumed = train(Run.resume(tmp_path / "run", flips[update]), until=after)
    assert resumed.digest == digest


def test_parts_with_a_state_of_their_own_would_be_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(change, "alternates", lambda names: True)
    with pytest.raises(AssertionError):
        test_a_change_back_uses_the_parts_of_before_where_they_hold_nothing_else(*BUILT[2], True, tmp_path)


def test_patience_counts_from_the_change_that_sets_it(tmp_path: Path) -> None:
    config = configure("leader_follower_quick", {**TINY, "evaluate_every": 2, "updates": 40})
    run = train(Run(config), {12: {"patience": 4}})
    train(Run(config, tmp_path / "run"), until=12)
    resumed = train(Run.resume(tmp_path / "run", {"patience": 4}))
    assert run.number == resumed.number > 12 + 2


def test_a_complete_run_that_goes_on_says_that_it_was_scored() -> None:
    run = train(Run(configure("leader_follower_quick", {**TINY, "updates": 5})))
    assert run.parts.forced
    run.change(updates=8)
    assert not run.parts.forced
    assert run.parts.not_exact_reasons == ["update 5: it was scored once more, at its former target"]
    run.change(minutes=5.0)
    assert run.parts.not_exact_reasons[-1] == run_state.TIMED


def test_going_to_and_fro_stores_nothing_and_adds_no_reason(tmp_path: Path) -> None:
    run = Run(configure("leader_follower_quick", TINY), tmp_path / "run")
    for progress in run.train():
        if progress.number in (4, 6, 8):
            run.change(
                "python" if progress.number == 4 else "comparison", precision=("bf16", "fp32")[progress.number % 4 // 2]
            )
            assert read_config(tmp_path / "run").values["precision"] == "bf16"
    assert run.parts.not_exact_reasons == ["update 4: precision fp32 -> bf16"]
    assert [each.by for each in run.changes] == ["python", "comparison", "comparison"]


REFUSED = [
    ({"hidden": 16}, "cannot go on with hidden 8 -> 16"),
    ({"precision": "tf32"}, "precision=tf32: tf32 needs a CUDA device"),
    ({"graph": "update"}, "graph=update: a CUDA graph needs a CUDA device"),
    ({"batch": 0}, "batch: input should be greater than or equal to 1"),
    ({"batch": 65}, r"batch 65 > capacity 64.*\(capacity from this run\)"),
    ({"nope": 1}, "unknown setting 'nope'"),
    ({"seed": 3}, "cannot go on with seed 0 -> 3"),
    ({"by": "me"}, "unknown setting 'by'"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_a_refused_change_leaves_the_run_as_it_was(settings: Settings, message: str) -> None:
    config = configure("leader_follower_quick", TINY)
    run = Run(config)
    for progress in run.train():
        if progress.number == AT:
            before = run_state.digest(run)
            with pytest.raises(ConfigError, match=message):
                run.change(**settings)
            assert run_state.digest(run) == before
    assert run.changes == []
    assert run.parts.not_exact_reasons == []
    assert run.digest == train(Run(config)).digest


def test_a_change_that_would_lose_another_toggle_is_refused() -> None:
    run = Run(configure("leader_follower_quick", {**TINY, "compile": "default"}))
    with pytest.raises(ConfigError, match="compile=default: a compiled update takes its batch whole"):
        run.change(micro_batches=2)
    assert (run.config.toggles.micro_batches, run.changes) == (1, [])
    assert change.refusal(run, micro_batches=2).startswith("compile=default: ")
    assert change.refusal(run, micro_batches=2, compile="off") == ""


def test_a_toggle_that_fell_back_before_does_not_refuse_others() -> None:
    with pytest.warns(FallbackWarning, match="compile=default fell back"):
        run = Run(configure("leader_follower_quick", {**TINY, "compile": "default", "micro_batches": 2}))
    with pytest.warns(FallbackWarning, match="compile=default fell back"):
        assert run.change(worlds=5) is not None


def test_a_change_that_cannot_be_stored_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(configure("leader_follower_quick", TINY), tmp_path / "run")

    def full(*given: Any) -> None:
        raise ResourceError("no space")

    for progress in run.train():
        if progress.number == AT:
            parts = run.parts
            for file in ("write_config", "write_json"):  # settings, and the record after them
                with monkeypatch.context() as patch:
                    patch.setattr(run_dir, file, full)
                    with pytest.raises(ResourceError, match="no space"):
                        run.change(batch=12)
                assert run.parts is parts
                assert run.changes == []
            store_config(run)  # after room was made
    assert run.digest == train(Run(configure("leader_follower_quick", TINY))).digest
    assert read_config(tmp_path / "run").source.batch == 8
    assert run.obstacle == ""


def test_nothing_changes_where_values_are_equal() -> None:
    run = Run(configure("leader_follower_quick", TINY))
    parts = run.parts
    assert run.change(batch=8, lr=run.config.learner.lr) is None
    assert run.changes == []
    assert run.parts is parts


def test_a_change_within_an_update_is_refused() -> None:
    run = Run(configure("leader_follower_quick", TINY))
    update = run.learner.update

    def change_inside(*args: Any) -> Any:
        run.change(batch=4)
        return update(*args)

    run.learner.update = change_inside
    with pytest.raises(ConfigError, match="an update is in progress"):
        train(run)


class TestUndo:
    ERRORS: tuple[Callable[[], Exception], ...] = (
        lambda: MemoryError("no room"),
        lambda: ConfigError(),
        lambda: RuntimeError("boom"),
        lambda: DivergedError({"tensor": "reward", "value": 1e9, "expected": "less", "kind": "learner"}, "Stop."),
    )

    @pytest.mark.parametrize("make", ERRORS)
    def test_a_change_whose_first_update_fails_is_undone(self, make: Callable[[], Exception], tmp_path: Path) -> None:
        config = configure("leader_follower_quick", TINY)
        run = Run(config, tmp_path / "run")
        for progress in run.train():
            if progress.number == AT:
                run.change(batch=12)
                self.break_update(run, make())
        assert run.config.source.batch == 8
        assert run.parts.not_exact_reasons == []
        assert run.changes[0].undone
        assert read_status(tmp_path / "run")["changes"][0]["undone"] == run.changes[0].undone
        assert read_config(tmp_path / "run").values["batch"] == 8
        assert run.digest == train(Run(config)).digest

    def test_a_later_failure_ends_the_run(self) -> None:
        run = Run(configure("leader_follower_quick", TINY))
        with pytest.raises(RuntimeError, match="boom"):
            self.train_and_break(run, {AT: {"batch": 12}}, AT + 1)
        assert run.status == "failed"
        assert run.config.source.batch == 12

    def test_a_second_failure_in_a_row_ends_the_run(self) -> None:
        run = Run(configure("leader_follower_quick", TINY))
        self.break_update(run, RuntimeError("boom"))
        run.change(batch=12)  # which fails, so that the broken learner of before is back
        self.break_update(run, RuntimeError("boom"))
        with pytest.raises(RuntimeError, match="boom"):
            train(run)
        assert run.config.source.batch == 8

    def train_and_break(self, run: Run, changes: dict[int, Settings], at: int) -> None:
        for progress in run.train():
            if settings := changes.get(progress.number):
                run.change(**settings)
            if progress.number == at:
                self.break_update(run, RuntimeError("boom"))

    @staticmethod
    def break_update(run: Run, error: Exception) -> None:
        def fail(*args: Any) -> None:
            raise error

        run.learner.update = fail


EVENT: Settings = {"update": 3, "settings": {"lr": [1, 2]}, "by": "panel", "undone": "", "measured": {"ratio": 1.5}}


class TestRecord:
    def test_a_change_is_an_event_that_a_resumed_run_knows(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        run = Run(configure("leader_follower_quick", TINY), folder)
        for progress in run.train():
            if progress.number == AT:
                run.change("panel", batch=12, lr=1e-4)
                assert read_config(folder).values["batch"] == 12  # before the next checkpoint
                event = {"update": AT, "settings": {"batch": [8, 12], "lr": [1e-3, 1e-4]}, "by": "panel", "undone": ""}
                assert read_status(folder)["changes"] == [{**event, "measured": {}}]
        resumed = Run.resume(folder, {"updates": 20})
        assert resumed.changes[0] == run.changes[0]
        assert str(resumed.changes[0]).startswith(f"update {AT}: batch 8 -> 12")
        assert resumed.config.source.batch == 12
        assert resumed.parts.not_exact_reasons[:2] == run.parts.not_exact_reasons[:2]

    def test_a_kill_after_a_change_resumes_with_it(self, tmp_path: Path) -> None:
        folder, settings = tmp_path / "run", {**TINY, "checkpoint_every": 4}
        run = Run(configure("leader_follower_quick", settings), folder)
        steps = run.train()
        for progress in steps:
            if progress.number == AT:
                run.change(worlds=8)
            if progress.number == AT + 1:
                break
        shutil.copytree(folder, tmp_path / "copy")  # as a kill leaves it
        resumed = Run.resume(tmp_path / "copy")  # from update 4, with the settings that the run had last
        assert resumed.number == 4
        assert resumed.config.source.worlds == 8
        assert train(resumed).status == "complete"
        steps.close()

    def test_a_change_before_training_is_stored_when_it_begins(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        run = Run(configure("leader_follower_quick", TINY), folder)
        run.change(batch=12)
        assert read_config(folder).values["batch"] == 8
        train(run)
        assert read_config(folder).values["batch"] == 12

    @pytest.mark.parametrize(
        "value",
        [
            *(None, 3, [3], [{"update": 1}, {}], [{"settings": {"a": 1}, "update": 1}], "text"),
            *([{**EVENT, **part}] for part in ({"update": "1"}, {"update": True}, {"by": 3}, {"undone": None})),
            *([{**EVENT, **part}] for part in ({"measured": []}, {"measured": None}, {"settings": {"lr": [1, 2, 3]}})),
            [{**EVENT, "more": 1}],
        ],
    )
    def test_events_that_cannot_be_read_are_left_out(self, value: Any) -> None:
        assert run_state.parse_changes(value) == []

    def test_others_are_read(self) -> None:
        assert run_state.parse_changes([EVENT, {**EVENT, "by": 1}]) == [Change(**EVENT | {"settings": {"lr": (1, 2)}})]


def test_a_state_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(Run(configure("leader_follower_quick", TINY)), until=4)
    items_of, before = change.items_of, run.parts

    def without_streams(parts: Parts) -> list[Item]:
        return items_of(parts)[:-1] if parts is before else items_of(parts)

    monkeypatch.setattr(change, "items_of", without_streams)
    with pytest.raises(ConfigError, match="does not fit"):
        run.change(batch=12)
    assert run.config.source.batch == 8
    assert run.changes == []
