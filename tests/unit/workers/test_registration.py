"""An external environment is registered under its name, with the learner that fits and its own horizon."""

import os
from pathlib import Path

import pytest
import torch

import uavlab as ul
from tests.support import strangers
from tests.support.registries import registered
from uavlab.core.errors import ConfigError
from uavlab.core.registry import ENVIRONMENTS
from uavlab.experiment.config import configure
from uavlab.experiment.names import presets, require_names
from uavlab.workers.pool import close_all
from uavlab.workers.registration import register


def test_a_name_registers_an_environment_and_a_preset() -> None:
    with registered():
        name = ul.external(strangers.Meadow, moves=False, length=9)
        assert name == "tests.support.strangers:Meadow,moves=false,length=9"
        assert presets()[name].env == name
        first = ENVIRONMENTS[name]
        register(name)
        assert ENVIRONMENTS[name] is first  # no second one
        config = configure(name, {"workers": 3, "timeout_s": 5.0})
        assert (config.env.workers, config.env.horizon, config.task.learner) == (3, 9, "masac")
        assert ul.make(name, horizon=4).spec.horizon == 4
    assert name not in ENVIRONMENTS


def test_moves_are_learned_by_mappo_and_settings_have_ranges() -> None:
    with registered():
        require_names({"preset": "tests.support.strangers:Meadow"})
        config = configure("tests.support.strangers:Meadow")
        assert config.task.learner == "mappo"
        with pytest.raises(ConfigError, match="workers: input should be greater than or equal to 0, got -1"):
            configure("tests.support.strangers:Meadow", {"workers": -1})


def test_what_cannot_be_served_registers_nothing() -> None:
    before = dict(ENVIRONMENTS)
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'M'.*correct its name or its arguments"):
        register("pettingzoo:mpe2.simple_spread_v3,M=3")
    assert dict(ENVIRONMENTS) == before


def test_a_file_that_changed_is_made_again_when_it_is_named_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = "from tests.support.strangers import Meadow\n\ndef make():\n    return Meadow({})\n"
    with registered():
        for number, moves in enumerate((False, True)):
            file.write_text(text.format(moves))
            os.utime(file, ns=(number, number))
            name = ul.external(f"{file}:make")
            env = configure(name, {"workers": 1}).env
            assert env.spec.choices == 3 * moves
            assert env.initial(torch.zeros(1, 2)).key.tolist() != [0]
            same = ENVIRONMENTS[name]
            assert ENVIRONMENTS[ul.external(f"{file}:make")] is same  # nothing changed
    close_all()


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tests.support.strangers import Hill\n\ndef make(n=3):\n    return Hill(n)\n"
    )
    with registered():
        assert configure(ul.external(f"{tmp_path}/mine.py:make", n=2)).env.spec.obs == 4
