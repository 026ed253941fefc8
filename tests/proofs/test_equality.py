"""Every toggle usable on a CPU equals the plain reference for learners with settings that run other code, too.

Of the compiler, what it traces is compared, which takes seconds.
"""

from collections.abc import Callable

import pytest
import torch

from tests.contracts.test_equality import (
    MEMORY,
    OWN_CODE,
    TOLERANCES,
    Changes,
    check_broken,
    check_equal,
    distances,
    reference,
    served,
    train,
)
from tests.support.changes import BROKEN
from uavlab.runtime.toggles import EAGER, Toggle


@pytest.mark.parametrize(("env", "learner", "toggle", "changes"), served(OWN_CODE))
def test_code_of_its_own_is_equal_to_plain(env: str, learner: str, toggle: Toggle, changes: Changes) -> None:
    check_equal(env, learner, toggle, changes)


@pytest.mark.parametrize(("env", "learner"), OWN_CODE)
@pytest.mark.parametrize("mutant", BROKEN)
def test_a_broken_optimizer_is_not_equal_there_either(
    env: str, learner: str, mutant: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_broken(env, learner, mutant, monkeypatch)


@pytest.mark.usefixtures("only_traced")
@pytest.mark.parametrize(("env", "learner", "toggle", "changes"), served([("spread", "mappo")], compiler=True))
def test_a_memory_is_equal_to_plain(env: str, learner: str, toggle: Toggle, changes: Changes) -> None:
    check_equal(env, learner, toggle, changes, **MEMORY)


@pytest.mark.usefixtures("only_traced")
@pytest.mark.parametrize(("env", "learner", "toggle", "changes"), served([("leader_follower", "masac")], compiler=True))
def test_targets_of_one_step_are_equal_to_plain(env: str, learner: str, toggle: Toggle, changes: Changes) -> None:
    check_equal(env, learner, toggle, changes, n_step=1)


@pytest.mark.usefixtures("only_traced")
@pytest.mark.parametrize(
    ("env", "learner", "toggle", "changes"), served([("leader_follower", "masac"), ("spread", "mappo")], compiler=True)
)
def test_shared_critics_are_equal_to_plain(env: str, learner: str, toggle: Toggle, changes: Changes) -> None:
    check_equal(env, learner, toggle, changes, critic="shared")


@pytest.mark.parametrize(("env", "learner", "toggle", "changes"), served([("assignment", "mappo")]))
def test_attention_is_equal_to_plain(env: str, learner: str, toggle: Toggle, changes: Changes) -> None:
    check_equal(env, learner, toggle, changes)


@pytest.mark.usefixtures("only_traced")
@pytest.mark.parametrize(
    ("env", "learner", "toggle", "changes"),
    served([("spread", "mappo"), pytest.param("assignment", "mappo", marks=pytest.mark.soak)], compiler=True),
)
def test_noise_on_weights_is_equal_to_plain(env: str, learner: str, toggle: Toggle, changes: Changes) -> None:
    check_equal(env, learner, toggle, changes, noisy=True)


@pytest.mark.usefixtures("only_traced")
@pytest.mark.parametrize(("env", "learner"), [("leader_follower", "masac"), ("pursuit", "masac"), ("spread", "mappo")])
def test_compiled_updates_follow_the_schedule_of_rates(env: str, learner: str) -> None:
    changes: Changes = {"learner": learner, "lr_to": 0.1, "lr_updates": 3}
    plain, constant = train(env, changes), reference(env, torch.float64, learner=learner)
    compiled = train(env, {**changes, **EAGER, "compile": "default"})
    assert max(distances(compiled, plain).values()) <= TOLERANCES["rounding"]
    assert max(distances(compiled, constant).values()) > 1e-5
