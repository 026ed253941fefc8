"""Each setting has a control or a reason, unusable values are not offered, and values are those that were chosen."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.fixtures_config import SMALL_ROLLOUTS, TINY, sizes
from tests.support.hostile import HARMLESS, HOSTILE, skeleton
from tests.support.registries import registered_outside
from uavlab.experiment.change import refusal
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.runtime.toggles import TOGGLES
from uavlab_lab.live import switches
from uavlab_lab.live.switches import FIRST, Switch, changeable

PPO = {"learner": "ippo", "device": "cpu", "worlds": 2, "hidden": 8, **SMALL_ROLLOUTS}
TASKS: dict[str, dict[str, Any]] = {
    "leader_follower": TINY,  # MASAC
    "mapping": {**sizes("mapping"), "device": "cpu"},  # COMA
    "telemetry": {**sizes("telemetry"), "device": "cpu"},  # the forecaster
    "spread": PPO,
}
OWN = {  # settings that are no toggles
    "leader_follower": ["batch", "worlds", "lr", "critic_lr", "updates"],
    "mapping": ["worlds", "lr", "critic_lr", "updates"],
    "telemetry": ["batch", "lr", "updates"],
    "spread": ["worlds", "lr", "critic_lr", "updates"],
}


def switches_of(run: Run, order: Any = None) -> dict[str, Switch]:
    return {each.name: Switch(each, run, order or (lambda name, value: None)) for each in changeable(run)}


def switch(run: Run, name: str, order: Any = None) -> Switch:
    return switches_of(run, order)[name]


def small(**settings: Any) -> Run:
    return Run(configure("leader_follower", TINY, settings))


@pytest.mark.parametrize("preset", TASKS)
class TestEachTask:
    def test_every_toggle_and_rate_has_a_control(self, preset: str) -> None:
        run = Run(configure(preset, TASKS[preset]))
        names = [each.name for each in changeable(run)]
        assert sorted(names) == sorted([*TOGGLES, *OWN[preset]])
        assert names[:2] == ["precision", "compile"]
        assert [name for name in names if name in FIRST] == [name for name in FIRST if name in names]

    def test_what_is_offered_can_be_used_and_what_is_not_has_a_reason(self, preset: str) -> None:
        run = Run(configure(preset, TASKS[preset]))
        for name, each in switches_of(run).items():
            value = run.config.values[name]
            if each.choices:
                assert value in each.control.options
                usable = {other for other in each.choices if other == value or not refusal(run, **{name: other})}
                nothing = name in run.config.task.inapplicable
                assert {*each.control.options} == ({value} if nothing else usable)
                left_out = [other for other in each.choices if other not in each.control.options]
                assert all(f"not {', '.join(left_out)}" in each.note.value or each.control.disabled for _ in left_out)
            assert each.control.value == value
            assert each.control.disabled or any(not refusal(run, **{name: other}) for other in each.others(value))

    def test_a_control_without_effect_says_why(self, preset: str) -> None:
        run = Run(configure(preset, TASKS[preset]))
        controls = switches_of(run)
        for name, reason in run.config.task.inapplicable.items():
            assert controls[name].control.disabled
            assert f"no effect: {reason}" in controls[name].note.value.replace("&#x27;", "'")
        assert run.config.task.inapplicable or preset == "leader_follower"

    def test_each_has_a_name_and_a_tooltip(self, preset: str) -> None:
        for name, each in switches_of(Run(configure(preset, TASKS[preset]))).items():
            assert (each.control.description, bool(each.control.tooltip)) == (name, True)


class TestReasons:
    def test_of_values_that_need_a_gpu(self) -> None:
        each = switch(small(), "precision")
        assert each.control.options == ("fp32", "bf16", "fp16")
        assert "not tf32: tf32 needs a CUDA device, this run is on cpu" in each.note.value

    def test_of_one_that_cannot_change(self) -> None:
        with registered_outside():
            each = switch(Run(configure("drift_quick", {"device": "cpu"})), "doubled")
        assert each.control.disabled
        assert each.note.value.endswith("it cannot change within a run; start a new one for it</small>")

    def test_of_all_other_values(self) -> None:
        each = switch(small(), "graph")
        assert each.control.disabled
        assert each.note.value.endswith("<br>a CUDA graph needs a CUDA device, this run is on cpu</small>")

    def test_what_would_lose_another_toggle_is_not_offered(self) -> None:
        run = small(compile="default")
        assert "fp16" not in switch(run, "precision").control.options
        assert switch(run, "micro_batches").control.disabled
        assert "a compiled update takes its batch whole" in switch(run, "micro_batches").note.value
        assert not switch(small(), "micro_batches").control.disabled

    def test_claims_and_what_results_are_equal_to(self) -> None:
        note = switch(small(), "compile").note.value
        assert "claimed: +5-15 %; equal up to rounding" in note
        assert "claimed" not in switch(small(), "adam").note.value
        assert "Adam&#x27;s learning rate" in switch(small(), "lr").note.value


class TestNumbers:
    @pytest.mark.parametrize("batch", [1, 16, 32])
    def test_one_at_its_limit_can_change(self, batch: int) -> None:
        """The capacity is 32."""
        each = switch(small(batch=batch), "batch")
        assert not each.control.disabled
        assert "not" not in each.note.value

    def test_a_target_by_minutes_has_no_number_yet(self) -> None:
        each = switch(small(updates=None, minutes=1.0), "updates")
        assert (each.control.value, each.control.disabled) == (0, False)

    def test_whole_numbers_and_others(self) -> None:
        each = switches_of(small())
        kinds = {name: type(one.control).__name__ for name, one in each.items() if not one.choices}
        whole = {"batch", "worlds", "updates", "interval", "ratio", "micro_batches", "threads"}
        assert {name for name, kind in kinds.items() if kind == "IntText"} == whole
        assert {name for name, kind in kinds.items() if kind == "FloatText"} == {"lr", "critic_lr", "memory_fraction"}


class TestValues:
    def test_a_choice_is_an_order(self) -> None:
        orders: list[Any] = []
        each = switches_of(small(), lambda *order: orders.append(order))
        each["precision"].control.value = "bf16"
        each["batch"].control.value = 12
        each["lr"].control.value = 0.5
        assert orders == [("precision", "bf16"), ("batch", 12), ("lr", 0.5)]

    def test_showing_one_is_none(self) -> None:
        orders: list[Any] = []
        run = small()
        each = switch(run, "precision", lambda *order: orders.append(order))
        each.control.value = "bf16"
        each.show(run)  # the order was refused
        assert each.control.value == "fp32"
        run.change(compile="default")  # so that there are fewer options
        each.show(run)
        assert (each.control.value, each.control.options) == ("fp32", ("fp32", "bf16"))
        assert orders == [("precision", "bf16")]

    def test_showing_one_aloud_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Switch, "_chosen", lambda self, change: self.order(self.setting.name, change["new"]))
        with pytest.raises(AssertionError):
            self.test_showing_one_is_none()

    def test_the_one_that_was_chosen_counts_not_that_of_a_slice(self) -> None:
        run = small()
        each = switch(run, "precision")
        each.show(run, {**run.config.values, "precision": "bf16"})
        assert (each.control.value, each.control.options) == ("bf16", ("fp32", "bf16", "fp16"))


def notes(words: tuple[str, ...]) -> Iterator[str]:
    """Yield the notes of a toggle whose texts are these words."""
    run = small()
    setting = next(each for each in changeable(run) if each.name == "graph")
    for word in words:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(TOGGLES, "graph", replace(TOGGLES["graph"], claim=word))
            patch.setattr(switches, "refusal", lambda run, word=word, **values: f"{word}: {word}")
            each = Switch(setting._replace(about=word), run, lambda name, value: None)
        yield each.note.value
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(switches, "refusal", lambda run, word=word, **values: word)
            yield Switch(setting._replace(name="lr", about=word, kind=float), run, lambda name, value: None).note.value


def test_texts_of_others_stay_text() -> None:
    hostile, harmless = (skeleton("".join(notes(words))) for words in (HOSTILE, HARMLESS))
    assert {*hostile} <= {*harmless}


def test_a_note_that_does_not_escape_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "markup", str)
    with pytest.raises(AssertionError):
        test_texts_of_others_stay_text()
