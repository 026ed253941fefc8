"""Every toggle usable on a CPU equals the plain reference within its class, for every learner that serves it.

Learners run in float64, so that equal up to rounding means equal to nine digits after several updates. Toggles that
lower the precision run in float32, which alone they change; there, changes of parameters are compared, relative to how
far plain moved, and gradients, part by part: parameters themselves are dominated by their initial values. Each learner
runs on its first registered environment; others where it runs code of its own, and settings that run other code, are
compared in ``tests/proofs/test_equality.py``, compiled code in ``tests/proofs/test_compiled.py``; the rest is left to
``make soak``.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from tests.support.changes import BROKEN, CHANGE, GRADIENT, Tables, change_errors, gradient_errors
from tests.support.fixtures_config import sizes, train_run
from uavlab.core.errors import FallbackWarning
from uavlab.experiment import build, run_state
from uavlab.experiment.build import ENVIRONMENTS, LEARNERS, task
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.runtime.grad_step import GradientStep
from uavlab.runtime.toggles import EAGER, TOGGLES, Toggle, Toggles, as_dict, resolve
from uavlab.training import training

Changes = dict[str, Any]

CPU = torch.device("cpu")
UPDATES = 5
TOLERANCES = {"rounding": 1e-9, "single": 1e-3}  # of each matrix's largest number
NUMBERS = {"interval": 2, "ratio": 2, "micro_batches": 3, "memory_fraction": 0.5, "threads": 2}
SEEDS = (0, 1)  # of comparisons in lower precision
SAME = ("slow_leader_follower",)  # another environment with a pause in each step
OWN_CODE = (("pursuit", "masac"),)  # learners that run other code than on their first task
ALIKE = ("ippo",)  # another learner with one setting changed
MEMORY = {"memory": 6}  # other networks, and sequences in place of rows


def tasks(own_code: bool = True) -> list[Any]:
    """Return every learner with its first environment and, with ``own_code``, those where it runs code of its own.

    Other environments are for the soak.
    """
    rows: list[Any] = []
    for learner, entry in LEARNERS.items():
        fits = [
            name for name, env in ENVIRONMENTS.items() if name not in SAME and not entry.unsupported(env.kind().spec)
        ]
        fits = [name for name in fits if own_code or (name, learner) not in OWN_CODE]
        later = [index > 0 and (name, learner) not in OWN_CODE for index, name in enumerate(fits)]
        marks = [[pytest.mark.soak] * (each or learner in ALIKE) for each in later]
        rows += [pytest.param(env, learner, marks=each) for env, each in zip(fits, marks, strict=True)]
    return rows


def cases(usable: bool, compiler: bool = False) -> list[Any]:
    """Return every value of every toggle that differs from plain and that a CPU can use, or cannot.

    The compiler is left to the soak, or with ``compiler`` only those of its modes that take minutes.
    """
    rows = []
    for toggle in TOGGLES.values():
        for value in toggle.choices or (NUMBERS.get(toggle.name, 2),):
            base = EAGER if toggle.name in ("compile", "graph") else {}
            changes = {**base, toggle.name: value}
            if value == getattr(Toggles(), toggle.name) or usable is bool(resolve(Toggles(**changes), CPU)[1]):
                continue
            long = usable and toggle.name == "compile" and not (compiler and value == "default")
            rows.append(pytest.param(toggle, changes, id=f"{toggle.name}={value}", marks=[pytest.mark.soak] * long))
            if usable and toggle.name == "compile":  # a set that is shipped uses both
                both = replace(toggle, equality="precision")
                name = f"compile={value}, precision=bf16"
                rows.append(pytest.param(both, {**changes, "precision": "bf16"}, id=name, marks=pytest.mark.soak))
    return rows


def served(runs: Iterable[Any], compiler: bool = False) -> list[Any]:
    """Return environments and learners, each with every usable value of the toggles that have an effect there.

    Others would compare plain with plain.
    """
    rows = []
    for run, case in product(runs, cases(usable=True, compiler=compiler)):
        env, learner = getattr(run, "values", run)
        if case.values[0].name not in task(env, learner).inapplicable:
            name, marks = f"{case.id}-{env}-{learner}", [*getattr(run, "marks", ()), *case.marks]
            rows.append(pytest.param(env, learner, *case.values, id=name, marks=marks))
    return rows


def config(env: str, changes: Changes) -> Config:
    more = {"step_ms": 0.0, "followers": 2, "alpha": 0.5}
    learner = changes.get("learner")
    own = {key: value for key, value in more.items() if key in configure(env, {"learner": learner}).values}
    return configure(env, sizes(env, learner), as_dict(Toggles()), own, changes)


def train(env: str, changes: Changes, dtype: torch.dtype = torch.float64, updates: int = UPDATES) -> Tables:
    """Make some updates; return the parameters of the policy and the critics, and Adam's first moments."""
    settings = config(env, changes)
    rt = build.runtime(settings.run, settings.toggles)
    rng = build.streams(settings.run, rt.device, dtype)
    with rt.scope(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # compared below
        warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)  # the compiler's own, as it tunes
        learner, source = settings.task.build(settings, rng, rt)
        for _ in training(source, learner, rng, rt, 0, updates):
            pass
    assert set(rt.fell_back) <= set(settings.task.inapplicable), rt.fell_back
    tables = {name: table for name, (table, _) in learner.tensors_to_check().items() if name.endswith("parameter")}
    moments = {name: table for name, table in learner.state_dict().items() if name.endswith("exp_avg")}
    tables = {name: table.clone() for name, table in {**tables, **moments}.items()}
    return {**tables, "steps": torch.tensor(getattr(source, "steps", updates))}


@cache
def reference(env: str, dtype: torch.dtype, updates: int = UPDATES, **changes: Any) -> Tables:
    """Train the plain learner, once for all cases."""
    return train(env, changes, dtype, updates)


def distances(tables: Tables, others: Tables) -> dict[str, float]:
    """Return the largest difference of each table, relative to its largest number."""
    others = {name: table for name, table in others.items() if not name.endswith("exp_avg")}
    assert set(others) <= set(tables)
    return {name: float((tables[name] - table).abs().max() / table.abs().max()) for name, table in others.items()}


def precision_errors(env: str, learner: str, changes: Changes, **own: Any) -> tuple[float, float]:
    """Return the largest error of changes after some updates, and of gradients in the first one, for the better seed.

    A gradient jumps where a ReLU or a minimum of two critics is within rounding of its kink. Another seed has its kinks
    elsewhere, but every mistake again.
    """
    errors: list[tuple[float, float]] = []
    for seed in SEEDS:
        own = {**own, "learner": learner, "seed": seed}
        first, plain, once = plain_tables(env, changes, own)
        low, low_once = (train(env, {**changes, **own}, torch.float32, updates) for updates in (UPDATES, 1))
        errors.append((max(change_errors(low, plain, first).values()), max(gradient_errors(low_once, once).values())))
        if max(errors[-1]) <= min(CHANGE, GRADIENT):
            break
    return min(errors, key=max)


def plain_tables(env: str, changes: Changes, own: Changes) -> tuple[Tables, Tables, Tables]:
    """Return the plain learner's tables before and after some updates, and after one in the form of ``changes``."""
    form = {name: changes[name] for name in ("update",) if name in changes}  # whose moments have the same names
    first, plain = (reference(env, torch.float32, updates, **own) for updates in (0, UPDATES))
    return first, plain, reference(env, torch.float32, 1, **own, **form)


@pytest.mark.parametrize(("env", "learner", "toggle", "changes"), served(tasks(own_code=False)))
def test_equal_to_plain(env: str, learner: str, toggle: Toggle, changes: Changes) -> None:
    check_equal(env, learner, toggle, changes)


def check_equal(env: str, learner: str, toggle: Toggle, changes: Changes, **own: Any) -> None:
    """Compare a learner trained with a toggle with the plain one, within the toggle's class."""
    if toggle.equality == "precision":
        change, gradient = precision_errors(env, learner, changes, **own)
        assert change <= CHANGE, change
        assert gradient <= GRADIENT, gradient
        assert change > 0 or toggle.name != "precision", "nothing ran in lower precision"
        return
    dtype = torch.float64
    result = train(env, {**changes, **own, "learner": learner}, dtype)
    if toggle.equality == "algorithm":
        assert all(table.isfinite().all() for table in result.values())
        return
    same = {toggle.name, *task(env, learner).inapplicable}
    inputs = {name: changes[name] for name in ("maps", "loader") if name in changes and name not in same}
    apart = distances(result, reference(env, dtype, learner=learner, **inputs, **own))
    assert max(apart.values()) <= TOLERANCES.get(toggle.equality, 0), apart


@pytest.mark.parametrize(("env", "learner"), tasks(own_code=False))
@pytest.mark.parametrize("mutant", BROKEN)
def test_a_broken_optimizer_is_not_equal_within_any_precision(
    env: str, learner: str, mutant: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_broken(env, learner, mutant, monkeypatch)


def check_broken(env: str, learner: str, mutant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train a learner whose optimizer is broken; it must be too far from the plain one."""
    for seed in SEEDS:  # before the optimizer is broken
        plain_tables(env, {}, {"learner": learner, "seed": seed})
    monkeypatch.setattr(GradientStep, "_apply", mutant)
    change, gradient = precision_errors(env, learner, {"precision": "bf16"})
    assert change > CHANGE or gradient > GRADIENT, (change, gradient)


@pytest.mark.parametrize(("env", "learner"), tasks())
def test_another_seed_is_farther_than_any_toggle(env: str, learner: str) -> None:
    seeds = (reference(env, torch.float64, learner=learner, **seed) for seed in ({"seed": 1}, {}))
    apart = distances(*seeds)
    assert max(apart.values()) > max(TOLERANCES.values())


@pytest.mark.parametrize(("toggle", "changes"), cases(usable=False))
def test_an_unusable_toggle_is_told_and_changes_nothing(toggle: Toggle, changes: Changes) -> None:
    base = {name: value for name, value in changes.items() if name != toggle.name}
    with pytest.warns(FallbackWarning, match=f"^{toggle.name}={changes[toggle.name]} fell back: ") as warned:
        run = short_run(changes)
    assert len(warned) == 1
    assert run_state.digest(run) == run_state.digest(short_run(base))


def short_run(changes: Changes) -> Run:
    return train_run(config("leader_follower", {**changes, "updates": 4}))


def refused(*args: Any, **kwargs: Any) -> Callable:
    def call(*inputs: Any) -> Any:
        raise TorchDynamoException("no C++ compiler found")

    return call


def absent(*args: Any, **kwargs: Any) -> Any:
    raise ImportError("no module named triton")


@pytest.mark.parametrize("compiler", [refused, absent])
def test_a_compiler_that_fails_is_told_and_changes_nothing(monkeypatch: pytest.MonkeyPatch, compiler: Callable) -> None:
    monkeypatch.setattr(torch, "compile", compiler)
    with pytest.warns(FallbackWarning, match="^compile=default fell back") as warned:
        run = short_run({**EAGER, "compile": "default"})
    assert len(warned) == 1
    assert list(run.rt.fell_back) == ["compile"]
    assert run_state.digest(run) == run_state.digest(short_run(EAGER))


def test_a_toggle_that_does_something_else_would_be_seen() -> None:
    """The mutant: a discount changed in the sixth digit is farther from plain than any exact or rounding toggle."""
    changed = train("leader_follower", {"gamma": 0.95 * (1 + 1e-6)})
    apart = distances(changed, train("leader_follower", {"gamma": 0.95}))
    assert apart["critic.parameter"] > TOLERANCES["rounding"]
