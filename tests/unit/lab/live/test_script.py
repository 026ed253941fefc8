"""Scripts of changes are parsed strictly, leave out what was undone, and act at their updates."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.support.live_runs import drift, followed, trained
from tests.support.registries import registered_outside
from uavlab.core.errors import ConfigError
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change, Progress
from uavlab_lab.live.trainer import Script, follow, parse_script, script_of

Follow = Callable[[Run, Script], Iterator[Progress]]


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    with registered_outside():
        yield


NONSENSE = [
    (None, "entry 1: got None"),
    ("text", "entry 1: got 'text'"),
    ({3: {"worlds": 3}}, "entry 1: got {3: "),
    ([[3, {"worlds": 3}], 4], "entry 2: got 4"),
    ([[3]], "entry 1: got [3]"),
    ([[3, {}, {}]], "entry 1: got [3, {}, {}]"),
    ([[-1, {}]], "entry 1: got [-1, {}]"),
    ([[1.0, {}]], "entry 1: got [1.0, {}]"),
    ([["1", {}]], "entry 1: got ['1', {}]"),
    ([[True, {}]], "entry 1: got [True, {}]"),
    ([[3, ["worlds", 3]]], "entry 1: got ['worlds', 3]; expected a mapping"),
    ([[3, {4: 3}]], "entry 1: got {4: 3}; expected a mapping of names"),
]


class TestParse:
    def test_entries_come_in_the_order_of_updates(self) -> None:
        script = parse_script([[5, {"worlds": 3}], (2, {"lr": 0.1}), [5, {"worlds": 4}], [0, {}]])
        assert script == [(0, {}), (2, {"lr": 0.1}), (5, {"worlds": 3}), (5, {"worlds": 4})]

    def test_the_settings_are_a_copy(self) -> None:
        settings = {"worlds": 3}
        parse_script([(1, settings)])[0][1]["worlds"] = 5
        assert settings == {"worlds": 3}

    def test_none_at_all(self) -> None:
        assert parse_script([]) == parse_script(()) == []

    @pytest.mark.parametrize(("value", "message"), NONSENSE)
    def test_nonsense_is_refused(self, value: Any, message: str) -> None:
        with pytest.raises(ConfigError) as error:
            parse_script(value)
        assert f"script, {message}" in str(error.value)


def test_a_script_is_what_holds_of_the_changes() -> None:
    changes = [
        Change(2, {"worlds": (2, 3), "lr": (0.1, 0.2)}),
        Change(4, {"adam": ("fused", "single")}, undone="RuntimeError: boom"),
        Change(5, {"precision": ("fp32", "bf16")}, by="comparison", measured={"stopped": "training ended"}),
    ]
    assert script_of(changes) == [(2, {"worlds": 3, "lr": 0.2}), (5, {"precision": "bf16"})]


def changed(settings: Mapping[int, Mapping[str, Any]]) -> Run:
    """Return a run that was trained with changes after these updates, by hand."""
    run = Run(drift())
    run.change(**settings.get(0, {}))
    for progress in run.train():
        run.change(**settings.get(progress.number, {}))
    return run


SETTINGS = {0: {"lr": 0.1}, 3: {"worlds": 3}, 17: {"worlds": 4, "lr": 0.01}, 40: {"worlds": 2}}


def at_their_updates(kind: Follow) -> None:
    """Follow a script; each change takes effect after its update, the first before training, the last at its end."""
    run = Run(drift())
    numbers = [progress.number for progress in kind(run, [*SETTINGS.items()])]
    assert numbers == list(range(1, 41))
    assert [(change.update, change.by) for change in run.changes] == [(at, "script") for at in SETTINGS]
    assert run.digest == changed(SETTINGS).digest


def one_late(run: Run, script: Script) -> Iterator[Progress]:
    """A broken way to follow a script: one update too late."""
    yield from follow(run, [(update + 1, settings) for update, settings in script])


class TestFollow:
    def test_changes_take_effect_at_their_updates(self) -> None:
        at_their_updates(follow)

    def test_a_late_change_is_caught(self) -> None:
        with pytest.raises(AssertionError):
            at_their_updates(one_late)

    def test_a_run_in_the_middle_leaves_out_what_is_past(self) -> None:
        run = Run(drift())
        for progress in run.train():
            if progress.number == 10:
                run.stop()
        for _ in follow(run, [(3, {"worlds": 3}), (10, {"worlds": 5}), (12, {"worlds": 4})]):
            pass
        assert [(change.update, change.settings["worlds"]) for change in run.changes] == [(10, (2, 5)), (12, (5, 4))]

    def test_nonsense_is_refused_before_training(self) -> None:
        run = Run(drift())
        with pytest.raises(ConfigError, match="script, entry 1"):
            next(follow(run, [(1, None)]))  # type: ignore[list-item]
        assert (run.number, run.status) == (0, "new")

    @pytest.mark.parametrize("settings", [{"worlds": 0}, {"nope": 1}, {"by": 1}, {"seed": 4}])
    def test_a_refused_change_ends_training_with_a_checkpoint(self, settings: dict[str, Any], tmp_path: Any) -> None:
        run = Run(drift(), tmp_path / "run")
        with pytest.raises(ConfigError, match=next(iter(settings))):
            [*follow(run, [(3, settings)])]
        assert (run.number, run.status) == (3, "interrupted")
        assert Run.resume(tmp_path / "run").number == 3

    def test_without_entries_it_is_training(self) -> None:
        assert followed(drift(), []).digest == trained(drift()).digest
