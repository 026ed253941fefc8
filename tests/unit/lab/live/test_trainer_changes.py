"""Changes of a run that trains: refused, measured to and fro, undone, fallen back, and by a script."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import Unsupported

from tests.support.live_runs import PATIENCE, drift, failing, finish, followed, step, trained, wait_for, watch_threads
from tests.support.registries import registered_outside
from uavlab.core.errors import ConfigError, FallbackWarning, ResourceError
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config
from uavlab_lab.live import trainer as comparison
from uavlab_lab.live.trainer import Trainer, measured_rows, unmeasured


@pytest.fixture(autouse=True)
def quick_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slices of one update, of which the first one is left out; no thread stays."""
    monkeypatch.setattr(comparison, "SLICE", 1e-9)
    with registered_outside(), watch_threads():
        yield


class TestChange:
    def test_a_refused_one_leaves_run_and_thread_as_they_were(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 4)
        for settings in ({"worlds": 0}, {"seed": 3}, {"nope": 1}, {"graph": "update"}, {"run": 1}):
            before = each.run.config, each.run.rt, each.run.learner
            with pytest.raises(ConfigError, match=next(iter(settings))):
                each.change(**settings)
            assert before == (each.run.config, each.run.rt, each.run.learner)
        assert (each.state, each.run.changes, each.comparison) == ("paused", [], None)
        finish(each)
        assert each.run.digest == trained(drift()).digest

    def test_a_refused_one_does_not_end_a_comparison(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 4)
        each.change(precision="bf16")
        measured = each.comparison
        with pytest.raises(ConfigError, match="worlds"):
            each.change(worlds=0)
        assert each.comparison is measured is not None
        each.stop(PATIENCE)

    def test_it_goes_to_and_fro_and_ends_with_the_new_setting(self) -> None:
        each = Trainer(Run(drift(updates=200)))
        step(each, 3)
        change = each.change(precision="bf16")
        assert change is not None
        assert each.comparison is not None
        step(each, 3)  # a slice takes 2 updates
        assert (each.run.config.toggles.precision, each.values["precision"]) == ("fp32", "bf16")
        step(each, 197)
        assert each.state == "complete"
        first, *slices = each.run.changes
        assert [each.by for each in slices] == ["comparison"] * 12  # 6 to, 6 fro
        assert [entry.update for entry in each.run.changes] == [3 + 2 * n for n in range(13)]
        assert each.run.config.toggles.precision == "bf16"
        assert (first.measured["how"], first.measured["slices"]) == ("interleaved", 6)
        assert 0 < first.measured["low"] <= first.measured["ratio"] <= first.measured["high"]

    def test_one_without_measuring_is_one_change(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 3)
        each.change("panel", measure=False, precision="bf16")
        assert each.change(precision="bf16") is None
        step(each, 10)
        each.stop(PATIENCE)
        assert [(entry.by, dict(entry.measured)) for entry in each.run.changes] == [("panel", {})]

    def test_another_one_ends_the_comparison(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 3)
        each.change(precision="bf16")
        step(each, 3)
        each.change(worlds=3)
        first, *_, last = each.run.changes
        assert first.measured == {"stopped": "another change"}
        assert last.settings == {"worlds": (2, 3)}
        assert each.run.config.toggles.precision == "bf16"
        each.stop(PATIENCE)

    @pytest.mark.parametrize("updates", [3, 37])  # before the change; then a stop, and the target, end training
    def test_a_checkpoint_in_a_slice_of_before_has_the_setting_after(self, updates: int, tmp_path: Path) -> None:
        each = Trainer(Run(drift(), tmp_path / "run"))
        step(each, updates)
        each.change(precision="bf16")
        step(each, 3)  # the third one is in a slice with the former setting
        each.stop(PATIENCE)
        assert [each.run.config.toggles.precision, each.values["precision"]] == ["bf16", "bf16"]
        assert read_config(tmp_path / "run").toggles.precision == "bf16"
        assert Run.resume(tmp_path / "run").config.toggles.precision == "bf16"
        assert each.run.changes[0].measured == {"stopped": "training ended"}

    def test_the_slices_before_are_of_the_settings_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each update is a sample: 3 before the first change, 4 after it, the first of which may have compiled."""
        monkeypatch.setattr(comparison, "EVERY", 1e-9)
        each = Trainer(Run(drift()))
        step(each, 3)
        each.change(worlds=3)
        assert each.comparison is not None
        assert len(each.comparison.before) == 3
        step(each, 4)
        each.change(worlds=4)
        assert len(each.comparison.before) == 3
        each.change(worlds=5)
        assert each.comparison.before == []
        each.stop(PATIENCE)

    def test_a_save_that_was_ordered_is_no_time_of_training(self) -> None:
        each = Trainer(Run(drift(evaluate_every=10**6)))
        step(each, 3)
        each.order(lambda: each.run.pauses.append(1e6)).result(PATIENCE)  # the seconds of a save
        step(each, 3)
        each.stop(PATIENCE)
        each.order(lambda: each.run.pauses.append(1e6)).result(PATIENCE)
        step(each, 3)
        each.stop(PATIENCE)
        assert each.history.net == pytest.approx(each.run.seconds)

    def test_before_training_it_is_not_measured(self) -> None:
        each = Trainer(Run(drift()))
        each.change(precision="bf16")
        assert each.comparison is None
        step(each, 2)
        assert each.fresh == ()
        each.stop(PATIENCE)
        assert each.run.changes[0].measured == {}

    def test_one_that_is_ordered_when_training_has_ended_is_not_measured(self) -> None:
        each, changes = Trainer(Run(drift(updates=2))), []
        end = each.run._end

        def order_and_end() -> None:
            changes.append(each.order(lambda: each._change({"worlds": 3}, "panel", True)))
            end()

        each.run._end = order_and_end
        each.start()
        wait_for(each, "complete")
        each.join(PATIENCE)
        assert each.comparison is None
        assert changes[0].result(0) is not None

    def test_the_digest_is_that_of_its_script(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 5)
        each.change(precision="bf16")
        step(each, 7)
        each.change(worlds=3, lr=0.003)
        finish(each)
        changes = each.run.changes
        assert each.run.digest == followed(drift(), changes).digest
        without = [entry for entry in changes if "worlds" not in entry.settings]
        assert each.run.digest != followed(drift(), without).digest


def broken_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each compilation fail at the first call, as that of a learner that cannot be compiled does."""

    def refuse(*args: Any) -> None:
        raise Unsupported("a learner that cannot be compiled")

    monkeypatch.setattr(torch, "compile", lambda fn, **options: refuse)


class TestFallback:
    def test_a_change_that_fell_back_is_changed_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broken_compiler(monkeypatch)
        each = Trainer(Run(drift()))
        step(each, 3)
        each.stop(PATIENCE)
        each.change(compile="default")
        each.change(measure=False, worlds=3)  # before the next update
        with pytest.warns(FallbackWarning, match="compile=default fell back"):
            finish(each)
        compiled, _, back = each.run.changes
        assert compiled.measured["stopped"].startswith("compile fell back: environment: Unsupported: a learner that")
        assert (back.by, back.settings) == ("fallback", {"compile": ("default", "off")})
        assert (each.run.config.toggles.compile, each.run.config.source.worlds) == ("off", 3)
        assert each.run.digest == followed(drift(), [each.run.changes[1]]).digest

    def test_code_that_cannot_be_compiled_is_changed_back_while_training_goes_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken_compiler(monkeypatch)
        each = Trainer(Run(drift()))
        step(each, 3)
        each.change(compile="default")
        with pytest.warns(FallbackWarning, match="compile=default fell back"):
            finish(each)
        assert [entry.by for entry in each.run.changes] == ["python", "fallback"]
        assert each.run.digest == trained(drift()).digest

    def test_one_that_falls_back_later_ends_its_comparison(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 3)
        each.change(adam="single")
        step(each, 1)
        assert each.comparison is not None
        with pytest.warns(FallbackWarning, match="broken"):
            each.order(lambda: each.run.rt.fall_back("adam", "broken")).result(PATIENCE)
        step(each, 1)
        each.stop(PATIENCE)
        assert each.run.changes[0].measured == {"stopped": "adam fell back: broken"}
        assert each.run.config.toggles.adam == "fused"

    def test_a_change_that_was_undone_is_not_measured(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 3)

        def break_it() -> None:
            each._change({"precision": "bf16"}, "python", True)
            failing(each.run, RuntimeError("boom"))

        each.order(break_it).result(PATIENCE)
        step(each, 2)
        assert (each.state, each.comparison) == ("paused", None)
        assert [entry.undone for entry in each.run.changes] == ["RuntimeError: boom"]
        finish(each)
        assert each.run.digest == trained(drift()).digest

    def test_a_slice_that_was_undone_ends_the_comparison(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 3)
        each.change(precision="bf16")
        step(each, 2)  # now with the former setting
        each.order(lambda: failing(each.run, RuntimeError("boom"))).result(PATIENCE)
        step(each, 1)
        each.stop(PATIENCE)
        assert each.run.changes[0].measured == {"stopped": "a slice was undone"}
        assert each.run.config.toggles.precision == "bf16"

    def test_a_comparison_that_cannot_go_on_does_not_end_training(self, monkeypatch: pytest.MonkeyPatch) -> None:
        each = Trainer(Run(drift()))
        step(each, 3)
        each.change(precision="bf16")
        monkeypatch.setattr(Run, "change", lambda *args, **settings: 1 / 0)
        step(each, 2)
        finish(each)
        assert each.run.changes[0].measured == {"stopped": "ZeroDivisionError: division by zero"}
        assert each.state == "complete"


class TestPlay:
    def test_it_stops_when_the_last_change_is_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(comparison, "EVERY", 1e-9)  # each update is a sample, beginning with that of update 0
        each = Trainer(Run(drift(updates=10**6)))
        each.play([(4, {"precision": "bf16"}), (2, {"worlds": 3})])
        each.join(PATIENCE)
        mine = [entry for entry in each.run.changes if entry.by == "script"]
        assert [next(iter(entry.settings)) for entry in mine] == ["worlds", "precision"]
        assert mine[0].update == 6
        assert [entry.measured["slices"] for entry in mine] == [6, 6]
        assert (each.state, each.run.config.toggles.precision) == ("ready", "bf16")

    def test_each_change_waits_for_enough_slices_before_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each update is a sample, a slice takes 2: 12 slices after the first change, then 7 samples, then 6 slices."""
        monkeypatch.setattr(comparison, "EVERY", 1e-9)
        each = Trainer(Run(drift(updates=10**6)))
        each.play([(1, {"precision": "bf16"}), (1, {"worlds": 3}), (1, {"lr": 0.003})])
        each.join(PATIENCE)
        mine = [entry for entry in each.run.changes if entry.by == "script"]
        assert [entry.update for entry in mine] == [1, 1 + 24 + 7, 1 + 24 + 7 + 12]
        assert [row["setting"] for row in measured_rows(mine)] == ["precision=bf16", "worlds=3", "lr=0.003"]
        assert unmeasured(mine) == []

    def test_one_that_falls_back_is_a_row_and_the_rest_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broken_compiler(monkeypatch)
        each = Trainer(Run(drift(updates=10**6)), pairs=2)
        each.play([(2, {"compile": "default"}), (2, {"graph": "update"}), (2, {"precision": "bf16"})])
        with pytest.warns(FallbackWarning, match="compile=default fell back"):
            each.join(PATIENCE)
        mine = [entry for entry in each.run.changes if entry.by == "script"]
        compiled, graph, low = mine
        assert compiled.measured["stopped"].startswith("compile fell back: environment: Unsupported: a learner")
        assert graph.undone.startswith("graph=update: ")
        assert (graph.settings, low.measured["slices"]) == ({"graph": ("off", "update")}, 2)
        assert unmeasured(mine) == [f"{compiled}: {compiled.measured['stopped']}", f"{graph}"]

    def test_one_that_memory_refuses_is_a_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        each, change = Trainer(Run(drift(updates=10**6)), pairs=2), Run.change

        def refuse(run: Run, by: str = "python", /, **settings: Any) -> Any:
            if "worlds" in settings:
                raise ResourceError("no memory")
            return change(run, by, **settings)

        monkeypatch.setattr(Run, "change", refuse)
        each.play([(2, {"worlds": 3}), (2, {"precision": "bf16"})])
        each.join(PATIENCE)
        assert [entry.undone for entry in each.run.changes if entry.by == "script"] == ["no memory", ""]

    def test_what_training_does_not_come_to_is_a_row(self) -> None:
        each = Trainer(Run(drift(updates=5)))
        each.play([(2, {"worlds": 3}), (50, {"lr": 0.003}), (60, {"worlds": 2})])
        each.join(PATIENCE)
        assert [(entry.settings, entry.undone) for entry in each.run.changes] == [
            ({"worlds": (2, 3)}, "training ended before it"),
            ({"lr": (0.01, 0.003)}, "training ended before it"),
        ]

    def test_an_empty_one_is_one_update(self) -> None:
        each = Trainer(Run(drift()))
        each.play([])
        each.join(PATIENCE)
        assert each.run.number == 1

    def test_one_that_is_refused_ends_training_and_itself(self) -> None:
        each = Trainer(Run(drift()))
        each.play([(1, {"worlds": 0}), (2, {"worlds": 3})])
        with pytest.raises(ConfigError, match="worlds"):
            each.join(PATIENCE)
        finish(each)
        assert (each.state, each.run.changes) == ("complete", [])

    def test_nonsense_starts_nothing(self) -> None:
        each = Trainer(Run(drift()))
        with pytest.raises(ConfigError, match="script, entry 1"):
            each.play([(1,)])  # type: ignore[list-item]
        assert each.state == "ready"

    def test_a_pause_does_not_end_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(comparison, "EVERY", 1e-9)
        each = Trainer(Run(drift(updates=10**6)))
        each.play([(30, {"worlds": 3})])
        each.pause()
        wait_for(each, "paused")
        finish(each)
        assert [entry.update for entry in each.run.changes] == [30]
