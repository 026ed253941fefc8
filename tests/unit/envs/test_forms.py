"""An environment that returns other types or shapes later, or raises, ends in one line that names the function."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import uavlab as ul
from tests.support.cli_runner import uavlab
from tests.support.plain_collector import collector
from tests.support.registries import outside, registered_outside
from uavlab.collectors.off_policy import OffPolicyCollector, ReplayConfig
from uavlab.collectors.on_policy import OnPolicyCollector, RolloutConfig
from uavlab.collectors.world_source import survey
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import tensors
from uavlab.envs import autoreset
from uavlab.envs.autoreset import describe_error
from uavlab.evaluation import episodes
from uavlab.runtime.runtime import Runtime

FAULT: dict[str, Callable[..., Any]] = {}
"""What a function of the environment returns instead of its result, by name."""


class Spoilt:
    """Spoils the results of an environment from the moment at which there is a fault."""

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, name)
        return (lambda *args: FAULT[name](own(*args))) if name in FAULT else own


@dataclass(frozen=True)
class Late(Spoilt, outside.Drift):
    """An environment that keeps its word at first."""


@tensors
class Other:
    pos: Tensor
    step: Tensor


def state_with(change: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    return lambda state: type(state)(pos=change(state.pos), step=state.step)


AS_IT_WAS = r"Keep types and shapes at every step; see `uavlab check`\.$"
REWARD = r"expected torch\.float32 of shape \(6, 2\)\. "
FAULTS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "scalar": ("reward", lambda it: it.sum(), r"got torch\.float32 of shape \(\); " + REWARD),
    "number": ("reward", lambda it: 0.5, r"got a float; expected a tensor of shape \(6, 2\)\. "),
    "half": ("reward", lambda it: it[::2], r"got torch\.float32 of shape \(3, 2\); " + REWARD),
    "integer": ("reward", lambda it: it.long(), r"got torch\.int64 of shape \(6, 2\); " + REWARD),
    "double": ("reward", lambda it: it.double(), r"got torch\.float64 of shape \(6, 2\); " + REWARD),
    "team": ("reward", lambda it: it.mean(1), r"got torch\.float32 of shape \(6,\); " + REWARD),
    "weights": ("terminated", lambda it: it.float(), r"got torch\.float32 .*; expected torch\.bool of shape \(6, 2\)"),
    "wide": ("observe", lambda it: it.repeat(1, 1, 2), r"got .* \(6, 2, 2\); expected .* \(6, 2, 1\)\. "),
    "typed": ("observe", lambda it: it.double(), r"got torch\.float64 .*; expected torch\.float32"),
    "parts": ("observe", lambda it: (it,), r"got a tuple; expected a tensor of shape \(6, 2, 1\)\. "),
    "grown": ("transition", state_with(lambda pos: pos[:, :1]), r"\.pos: got .* \(6, 1\); expected .* \(6, 2\)\. "),
    "kind": ("transition", lambda it: Other(pos=it.pos, step=it.step), r": got a Other; expected a State\. "),
}


@pytest.fixture(autouse=True)
def no_fault() -> Iterator[None]:
    yield
    FAULT.clear()


def policy(obs: Tensor, noise: Tensor | None) -> Tensor:
    return torch.zeros_like(obs)


def replay() -> OffPolicyCollector:
    sizes = ReplayConfig(worlds=3, batch=4, capacity=400, learning_starts=6)
    return collector(Late(), policy, sizes, Streams((0, 1)), Runtime())


def rollouts() -> OnPolicyCollector:
    return OnPolicyCollector(Late(), policy, RolloutConfig(worlds=3), Streams((0, 1)), Runtime())


@pytest.mark.parametrize("make", [replay, rollouts])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_result_of_another_form_is_refused_when_it_comes(make: Callable[[], Any], fault: str) -> None:
    source = make()
    source.next()
    name, change, message = FAULTS[fault]
    FAULT[name] = change
    with pytest.raises(ConfigError, match=rf"^Late\.{name}.*{message}.*{AS_IT_WAS}"):
        source.next()


@pytest.mark.parametrize(("make", "calls"), [(replay, 40), (rollouts, 1)])
def test_new_worlds_of_another_form_are_refused(make: Callable[[], Any], calls: int) -> None:
    source = make()
    source.next()
    FAULT["initial"] = state_with(lambda pos: pos.double())

    def collect() -> None:
        for _ in range(calls):
            source.next()
            source.after_cycle()

    with pytest.raises(ConfigError, match=r"Late\.initial\.pos: got torch\.float64 .* expected torch\.float32 of"):
        collect()


def test_evaluation_and_survey_check_too() -> None:
    rng = Streams((0,))
    for name, spoil in (("measure", lambda it: {}), ("measure", lambda it: {"distance": it["distance"].sum()})):
        FAULT[name] = spoil
        with pytest.raises(ConfigError, match=r"Late\.measure\['distance'\]: got .*; expected .* of shape \(4,\)\. "):
            episodes(Late(), policy, rng, 4)
    FAULT.clear()
    FAULT["transition"] = FAULTS["kind"][1]
    with pytest.raises(ConfigError, match=r"Late\.transition: got a Other; expected a State\."):
        survey(Late(), rng)


def test_a_step_that_is_not_checked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(env: Any, state: Any, action: Tensor, after: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        return env.reward(state, action, after), env.terminated(after)

    monkeypatch.setattr(autoreset, "judge", judge)
    for fault, error in (("integer", RuntimeError), ("half", RuntimeError), ("number", TypeError)):
        FAULT.clear()
        source = replay()
        source.next()
        FAULT["reward"] = FAULTS[fault][1]
        with pytest.raises(error):  # as it was: wherever the number is used first
            source.next()


@pytest.fixture
def late() -> Iterator[None]:
    with registered_outside():
        ul.env("late")(Late)
        ul.preset("late_quick", "late", {"learner": "reinforce", "worlds": 3, "updates": 9})
        yield


def test_a_run_that_is_broken_by_its_environment_has_failed(tmp_path: Path, late: None) -> None:
    run = ul.start(Late(), out=tmp_path / "run", settings={"learner": "reinforce", "worlds": 3, "updates": 9})
    next(iter(run))
    FAULT["reward"] = FAULTS["integer"][1]
    with pytest.raises(ConfigError, match=r"Late\.reward: got torch\.int64 of shape \(3, 2\)"):
        list(run)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_an_error_of_an_environment_is_one_line(tmp_path: Path, late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls = iter(range(100))

    def reward(self: Late, state: Any, action: Tensor, after: Any) -> Tensor:
        if next(calls) > 60:
            raise ValueError("no gain\nframe #0: <unknown>")
        return -after.pos.abs()

    monkeypatch.setattr(outside.Drift, "reward", reward)
    ended = uavlab("train", "late_quick", "--out", "run")
    message = r"ConfigError: Late\.reward: raised ValueError: no gain at test_forms\.py:\d+; expected a result\. See .*"
    assert (ended.code, bool(re.fullmatch(message, ended.err.splitlines()[-1]))) == (2, True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_an_error_of_ours_is_not_laid_on_the_environment(late: None) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2).view(3)
    assert describe_error(caught.value) == ""
