"""Settings to change are checked as a run would check them; what is refused stays where it was typed."""

from collections.abc import Callable
from typing import Any

import pytest

import uavlab as ul
from uavlab.core.errors import ConfigError
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.config import configure, parts
from uavlab.experiment.names import presets
from uavlab.experiment.settings import describe_settings
from uavlab_lab.explore import presets as module
from uavlab_lab.explore.presets import PresetPicker


def picker(preset: str = "leader_follower_quick", **changes: str) -> PresetPicker:
    """Return a picker with a preset and changes, each typed as a person would."""
    result = PresetPicker(preset)
    for name, text in changes.items():
        result.entry.value = f"{name}={text}"
    return result


def rows(shown: PresetPicker) -> dict[str, str]:
    """Return the values in the table by name."""
    cells = [row.split("</td>") for row in shown.table.value.split("<tr>")[2:]]
    return {row[0].rpartition(">")[2]: row[1].rpartition(">")[2] for row in cells}


class TestContents:
    def test_all_presets_are_there_with_their_sentences(self) -> None:
        shown, known = PresetPicker(), presets()
        assert [value for _, value in shown.preset.options] == [*known]
        assert all(known[value].about in label for label, value in shown.preset.options)
        shown.preset.value = "mapping_quick"
        assert known["mapping_quick"].about in shown.about.value
        assert shown.config() == configure("mapping_quick")

    def test_every_setting_has_its_row(self) -> None:
        config = configure("leader_follower_quick")
        expected = describe_settings(parts(config.task.settings), config.values)
        shown = picker()
        assert list(rows(shown)) == [row["name"] for row in expected]
        assert rows(shown)["batch"] == str(config.values["batch"])
        assert f"{len(expected)} of {len(expected)} settings of leader_follower_quick" in shown.status.value

    def test_a_task_offers_the_presets_of_its_environment(self) -> None:
        shown = PresetPicker("mapping_mappo")
        assert shown.preset.value == "mapping_mappo"
        assert {presets()[value].env for _, value in shown.preset.options} == {"mapping"}

    def test_an_environment_brings_its_own_parameters_alone(self) -> None:
        shown = PresetPicker(LeaderFollower(followers=3, horizon=40))
        assert shown.settings() == {"followers": 3, "horizon": 40}
        assert shown.config().env == LeaderFollower(followers=3, horizon=40)

    @pytest.mark.parametrize("task", ["leader_folower", 5, LeaderFollower])
    def test_what_is_no_task_is_refused(self, task: Any) -> None:
        with pytest.raises(ConfigError):
            PresetPicker(task)


class TestFilter:
    def test_every_word_must_occur_in_name_or_meaning(self) -> None:
        shown = picker()
        shown.search.value = "WEIGHT  moving"
        assert list(rows(shown)) == ["tau"]
        assert "1 of" in shown.status.value

    def test_nothing_passes(self) -> None:
        shown = picker()
        shown.search.value = "no such word"
        assert (shown.table.value, "0 of" in shown.status.value) == ("", True)


class TestChanges:
    def test_a_change_is_a_setting_of_the_run(self) -> None:
        shown = picker(lr="5e-4", tau=" 0.02 ")
        assert shown.settings() == {"lr": 5e-4, "tau": 0.02}
        assert shown.config() == configure("leader_follower_quick", {"lr": 5e-4, "tau": 0.02})
        assert (rows(shown)["lr"], shown.entry.value) == ("0.0005", "")
        assert "changed: lr, tau" in shown.status.value
        assert ul.start(shown.preset.value, settings={**shown.settings(), "capacity": 5_000}).config.learner.tau == 0.02

    def test_the_button_adds_what_is_typed_once(self) -> None:
        shown = picker()
        shown.button.click()
        assert (shown.fields, "alert" in shown.status.value) == ({}, False)

    def test_a_name_again_changes_its_field(self) -> None:
        shown = picker(lr="5e-4")
        shown.entry.value = "lr=2e-3"
        assert (shown.settings(), len(shown.changes.children)) == ({"lr": 2e-3}, 1)

    def test_remove_returns_to_the_preset(self) -> None:
        shown = picker(lr="5e-4", tau="0.02")
        shown.changes.children[0].children[1].click()
        assert (shown.settings(), [*shown.fields]) == ({"tau": 0.02}, ["tau"])
        assert rows(shown)["lr"] == str(configure("leader_follower_quick").values["lr"])

    @pytest.mark.parametrize(
        ("typed", "message"),
        [
            ("wronk=2", "unknown setting &#x27;wronk&#x27;"),
            ("batch_sise=4", "did you mean"),
            ("lr", "expected key=value"),
            ("=3", "expected key=value"),
            ("lr=fast", "lr"),
            ("lr=-1", "lr"),
            ("lr=[", "not readable as YAML"),
            ("lr=!!python/name:os.system", "tag"),
            ("batch=900000", "raise capacity"),
            ("learner=coma", "cannot learn"),
        ],
    )
    def test_what_a_run_refuses_stays_in_the_field(self, typed: str, message: str) -> None:
        shown = picker(tau="0.02")
        shown.entry.value = typed
        assert message in shown.status.value
        assert "role='alert'" in shown.status.value
        assert (shown.entry.value, shown.settings()) == (typed, {"tau": 0.02})
        shown.entry.value = "lr=5e-4"
        assert ("alert" in shown.status.value, shown.settings()) == (False, {"tau": 0.02, "lr": 5e-4})

    def test_a_field_that_is_edited_wrongly_says_so_until_it_is_right(self) -> None:
        shown = picker(lr="5e-4")
        shown.fields["lr"].value = "-1"
        assert "role='alert'" in shown.status.value
        assert rows(shown)["lr"] == str(configure("leader_follower_quick").values["lr"])
        with pytest.raises(ConfigError, match="lr"):
            shown.config()
        shown.fields["lr"].value = "0.5"
        assert (rows(shown)["lr"], "alert" in shown.status.value) == ("0.5", False)

    def test_another_preset_that_lacks_a_setting_says_so_and_nothing_is_lost(self) -> None:
        shown = picker(tau="0.02")
        shown.preset.value = "leader_follower_mappo"
        assert "unknown setting" in shown.status.value
        assert "tau" not in rows(shown)
        assert shown.fields["tau"].value == "0.02"
        shown.preset.value = "leader_follower_quick"
        assert shown.config().learner.tau == 0.02


class TestBrokenVariants:
    def test_a_field_for_anything_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def add(self: PresetPicker, _: Any = None) -> None:
            name, _, text = self.entry.value.partition("=")
            self._field(name, text)
            self.entry.value = ""

        monkeypatch.setattr(PresetPicker, "_add", add)
        self.require_caught(lambda: TestChanges().test_what_a_run_refuses_stays_in_the_field("wronk=2", "unknown"))

    def test_changes_that_are_not_in_the_table_are_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "configure", lambda preset, *layers: configure(preset))
        self.require_caught(TestChanges().test_a_change_is_a_setting_of_the_run)

    def test_a_table_without_the_filter_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "matches", lambda query, texts: True)
        self.require_caught(TestFilter().test_every_word_must_occur_in_name_or_meaning)

    def require_caught(self, test: Callable[[], None]) -> None:
        with pytest.raises(AssertionError):
            test()
