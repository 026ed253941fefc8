"""Files of sweeps are read whole; what is wrong with them is in the catalogue (``tests/support/bad_sweeps.py``)."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.registries import registered, registered_outside
from uavlab.core.errors import ConfigError
from uavlab.core.registry import ENVIRONMENTS
from uavlab.sweeps import spec
from uavlab.sweeps.spec import read_sweep

FILE = """
presets: [leader_follower, pursuit]
settings: {batch: auto, toggles: plain, curriculum: null}
grid:
  lr: [1e-3, 3e-4]
  learner: [mappo, ippo]
seeds: 2
scale: {pursuit: [0, 12.5]}
"""


def test_a_file_and_a_table_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(FILE.replace("batch: auto", "minibatches: auto"))
    sweep = read_sweep(path)
    assert read_sweep(str(path)) == read_sweep(sweep.stored()) == sweep
    assert (sweep.count, sweep.all_seeds, sweep.episodes, sweep.engine) == (16, [0, 1], 100, "local")
    assert sweep.grid == {"lr": [1e-3, 3e-4], "learner": ["mappo", "ippo"]}
    assert "workers" not in sweep.stored()


def test_a_setting_must_fit_each_learner(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(FILE)
    with pytest.raises(ConfigError, match=r"leader_follower: unknown setting 'batch' from .*s\.yaml:3"):
        read_sweep(tmp_path / "s.yaml")  # of learners with replay


def test_a_search_counts_its_trials() -> None:
    search = {"ranges": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "hidden": {"values": [8, 16]}}, "trials": 5}
    sweep = read_sweep({"presets": ["leader_follower"], "search": search, "seeds": [3, 4]})
    assert (sweep.count, sweep.all_seeds) == (10, [3, 4])


def test_an_external_environment_is_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from tests.support.strangers import Hill as make")
    names = ["mine.py:make,moves=3", "mine.py:make,moves=4"]
    with registered():
        sweep = read_sweep({"presets": names, "settings": {"learner": "mappo", "workers": 1}, "seeds": 1})
        assert sweep.presets == names
        assert ENVIRONMENTS[names[1]].learner == "mappo"
        with pytest.raises(ConfigError, match=r"mine\.py:make,moves=4: unknown setting 'obstacles'"):
            read_sweep({"presets": [names[1]], "settings": {"obstacles": 3}})
        with pytest.raises(ConfigError, match="absent"):
            read_sweep({"presets": ["mine.py:absent"]})


def test_what_trials_do_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {"presets": ["drift_quick"], "settings": {"learner": "reinforce", "doubled": 2}}
    with registered_outside():
        with pytest.raises(ConfigError) as raised:
            read_sweep(mine)
        named = "preset 'drift_quick', environment 'drift', learner 'reinforce', toggle 'doubled'"
        assert f"{named}: registered in this process alone, expected in those of trials, too" in str(raised.value)
        with pytest.raises(ConfigError, match="learner 'reinforce': registered"):
            read_sweep({"presets": ["spread"], "grid": {"learner": ["masac", "reinforce"]}})
        monkeypatch.setattr(spec, "entry", lambda: ["mine.py"])  # whose process the driver is, too
        assert read_sweep(mine).presets == ["drift_quick"]


@pytest.mark.parametrize("what", [None, 3, ["leader_follower"]])
def test_something_else_is_refused(what: object) -> None:
    with pytest.raises(ConfigError, match="expected a YAML file or a table"):
        read_sweep(what)  # type: ignore[arg-type]


def test_what_json_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="settings: "):
        read_sweep({"presets": ["leader_follower"], "settings": {"lr": object()}})


ALONE = "expected numbers low and high, with log or step, or a list of values alone, got"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"low": 1, "high": 2}, ""),
        ({"low": -1.0, "high": 2, "step": 0.5}, ""),
        ({"low": 1e-5, "high": 1.0, "log": True}, ""),
        ({"values": [None, "a", 1, 0.5, True]}, ""),
        ({"low": 2, "high": 1}, "`low <= high` must hold, but got (low=2, high=1)"),
        ({"low": 0, "high": 1, "log": True}, "`low >= 1` must hold for `log=True`, but got (low=0, high=1)"),
        ({"low": 0.0, "high": 1, "log": True}, "`low > 0` must hold for `log=True`, but got (low=0.0, high=1)"),
        ({"low": 1, "high": 9, "log": True, "step": 2}, "Samplers and other components in Optuna only accept step"),
        ({"low": 1, "high": 9, "step": 0}, "`step > 0` must hold, but got step=0"),
        ({"values": [1], "low": 0}, f"{ALONE} {{'low': 0, 'values': [1]}}"),
        ({"high": 1}, f"{ALONE} {{'high': 1}}"),
        ({}, f"{ALONE} {{}}"),
        ({"low": 1, "high": 2, "lwo": 3}, f"{ALONE} {{'high': 2, 'low': 1, 'lwo': 3}}"),
        ({"low": 1, "high": None}, f"{ALONE} {{'high': None, 'low': 1}}"),
        ({"low": "1", "high": 2}, f"{ALONE} {{'high': 2, 'low': '1'}}"),
        ({"values": 5}, f"{ALONE} {{'values': 5}}"),
        ({"values": []}, "The `choices` must contain one or more elements"),
    ],
)
def test_a_range_is_whole_or_refused(given: dict[str, Any], problem: str) -> None:
    found = [*spec._search_problems({"ranges": {"x": given}})]
    assert [key for key, _ in found] == ["search.ranges.x"] * bool(problem)
    assert "".join(text for _, text in found).startswith(problem)


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        ({"ranges": {"lr": {"values": [1]}}, "trials": 0}, "trials: input should be greater than or equal to 1, got 0"),
        ({"ranges": {"lr": {"values": [1]}}, "prune": "yes"}, "prune: input should be a valid boolean, got 'yes'"),
        *((given, "ranges: ") for given in ({}, {"ranges": 5}, {"ranges": {"lr": 5}}, {"ranges": {}})),
    ],
)
def test_a_search_without_ranges_or_with_other_numbers_is_refused(search: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"^sweep: search: {problem}"):
        read_sweep({"presets": ["pursuit"], "search": search})
