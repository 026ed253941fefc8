"""Every toggle usable on a CPU, on every task, equals the plain reference within its class; what fails, shows.

Learners run in float64, so that equal up to rounding means equal to nine digits after several updates.
"""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from tests.support.fixtures_config import sizes
from uavlab.core.errors import FallbackWarning
from uavlab.core.registry import ENVIRONMENTS
from uavlab.experiment import build, run_state
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.runtime.toggle_records import EAGER
from uavlab.runtime.toggles import TOGGLES, Toggles, as_dict, resolve
from uavlab.train import training

TASKS = tuple(ENVIRONMENTS)
CPU = torch.device("cpu")
UPDATES = 5
CLOSE = {"rounding": 1e-9, "single": 1e-3, "precision": 0.1}  # of each matrix's largest number
NUMBERS = {"interval": 2, "ratio": 2, "micro_batches": 3, "memory_fraction": 0.5, "threads": 2}
COMPILED = {"compile": ("default",)}  # other modes are the same code, tuned for minutes


def cases(usable: bool) -> list[Any]:
    found = []
    for toggle in TOGGLES.values():
        values = COMPILED.get(toggle.name, toggle.choices) or (NUMBERS[toggle.name],)
        for value in values:
            base = EAGER if toggle.name in ("compile", "graph") else {}
            asked = {**base, toggle.name: value}
            if value != getattr(Toggles(), toggle.name) and usable is not bool(resolve(Toggles(**asked), CPU)[1]):
                found.append(pytest.param(toggle, asked, id=f"{toggle.name}={value}"))
            if usable and toggle.name == "compile" and value != "off":  # together they are a set that is shipped
                both = replace(toggle, equality="precision")
                found.append(pytest.param(both, {**asked, "precision": "bf16"}, id=f"compile={value}, precision=bf16"))
    return found


def config(env: str, toggles: dict[str, Any]) -> Config:
    more = {"step_ms": 0.0, "followers": 2, "alpha": 0.5}
    own = {key: value for key, value in more.items() if key in configure(env).values}
    return configure(env, sizes(env), as_dict(Toggles()), own, toggles)


def trained(env: str, toggles: dict[str, Any]) -> dict[str, Tensor]:
    """Make some updates in float64, and give what the policy and the critics became."""
    made = config(env, toggles)
    rt = build.runtime(made.run, made.toggles)
    rng = build.streams(made.run, rt.device, torch.float64)
    with rt.scope(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # told below
        learner, source = made.task.build(made, rng, rt)
        for _ in training(source, learner, rng, rt, 0, UPDATES):
            pass
    assert set(rt.fell_back) <= set(made.task.unserved)
    tables = {name: table for name, (table, _) in learner.tensors_to_check().items() if name.endswith("parameter")}
    return {**tables, "steps": torch.tensor(getattr(source, "steps", UPDATES))}


@pytest.fixture(scope="module")
def plain() -> dict[str, dict[str, Tensor]]:
    return {env: trained(env, {}) for env in TASKS}


@pytest.mark.parametrize("env", TASKS)
@pytest.mark.parametrize(("toggle", "asked"), cases(usable=True))
def test_equal_to_plain(env: str, toggle: Any, asked: dict[str, Any], plain: dict[str, dict[str, Tensor]]) -> None:
    got, expected = trained(env, asked), plain[env]
    inputs = {name: asked[name] for name in ("maps", "loader") if name in asked and name != toggle.name}
    if env in ("mapping", "telemetry") and inputs:  # compared by themselves, with other digits
        expected = trained(env, inputs)
    assert set(got) == set(expected)
    if toggle.equality == "algorithm":
        assert all(table.isfinite().all() for table in got.values())
        return
    for name, table in expected.items():
        apart = (got[name] - table).abs().max() / table.abs().max()
        assert apart <= CLOSE.get(toggle.equality, 0), (name, apart)
    first = next(iter(expected))
    assert not torch.equal(expected[first], trained(env, {"seed": 1})[first])


@pytest.mark.parametrize(("toggle", "asked"), cases(usable=False))
def test_an_unusable_toggle_is_told_and_changes_nothing(toggle: Any, asked: dict[str, Any]) -> None:
    base = {name: value for name, value in asked.items() if name != toggle.name}
    with pytest.warns(FallbackWarning, match=f"^{toggle.name}={asked[toggle.name]} fell back: ") as told:
        got = ended(asked)
    assert len(told) == 1
    assert got == ended(base)


def ended(toggles: dict[str, Any]) -> str:
    """Train a run and give the digest of its state."""
    return run_state.digest(ran(toggles))


def ran(toggles: dict[str, Any]) -> Run:
    run = Run(config("leader_follower", {**toggles, "updates": 4}))
    for _ in run.train():
        pass
    return run


def refused(*given: Any, **named: Any) -> Any:
    def call(*inputs: Any) -> Any:
        raise TorchDynamoException("no C++ compiler found")

    return call


def absent(*given: Any, **named: Any) -> Any:
    raise ImportError("no module named triton")


@pytest.mark.parametrize("compiler", [refused, absent])
def test_a_compiler_that_fails_is_told_and_changes_nothing(monkeypatch: pytest.MonkeyPatch, compiler: Any) -> None:
    monkeypatch.setattr(torch, "compile", compiler)
    with pytest.warns(FallbackWarning, match="^compile=default fell back") as told:
        run = ran({**EAGER, "compile": "default"})
    assert len(told) == 1
    assert list(run.rt.fell_back) == ["compile"]
    assert run_state.digest(run) == ended(EAGER)


def test_a_toggle_that_does_something_else_would_be_seen(plain: dict[str, dict[str, Tensor]]) -> None:
    """The mutant: a discount changed in the eighth digit is farther from plain than any exact or rounding toggle."""
    got = trained("leader_follower", {"gamma": 0.95 * (1 + 1e-6)})
    name = "critic.parameter"
    expected = trained("leader_follower", {"gamma": 0.95})[name]
    assert (got[name] - expected).abs().max() / expected.abs().max() > CLOSE["rounding"]
