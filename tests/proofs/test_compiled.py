"""Every learner equals the plain reference in the code that the compiler generates, not only in what it traces.

What is compiled at the first stage of a curriculum serves all stages.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch

from tests.contracts.test_equality import check_equal, tasks
from tests.support.device_checks import known
from tests.support.fixtures_config import sizes
from tests.unit.nets import test_attention as attention
from uavlab.collectors import off_policy
from uavlab.experiment.config import configure
from uavlab.experiment.curriculum import Progression
from uavlab.experiment.run import Run
from uavlab.runtime.toggles import EAGER, TOGGLES

SLOTS = {"slots": [4, 3, 2]}
STAGES = [  # three smaller ones, then the task itself
    *({"uavs": [n, n], "targets": [1, n], "obstacles": [0, 1], "variance": 0.1 * n, **SLOTS} for n in (1, 2, 3)),
    {},
]


@pytest.mark.parametrize(("env", "learner"), tasks())
def test_generated_code_equals_plain(env: str, learner: str) -> None:
    check_equal(env, learner, TOGGLES["compile"], {**EAGER, "compile": "default"})


@pytest.mark.parametrize("recompute", [0, math.inf])
def test_one_graph_holds_the_whole_network(recompute: float) -> None:
    net = replace(attention.NET, recompute=recompute)
    theta, x = attention.parameters(net).requires_grad_(), attention.inputs(attention.THINGS)
    compiled = torch.compile(lambda *args: net(*args), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(theta, x), net(theta, x), **attention.EXACT)
    (got,), (expected,) = (torch.autograd.grad(f(theta, x).square().sum(), theta) for f in (compiled, net))
    torch.testing.assert_close(got, expected, **attention.EXACT)


def compiled_functions(env: str, learner: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the name of each function that a run compiled, once for each time."""
    names: list[str] = []
    plain, numbers = torch.compile, count()

    def compile_traced(fn: Any, **options: Any) -> Any:
        name = f"{fn.__name__} {next(numbers)}"  # several may have one name

        def backend(graph: Any, inputs: Any) -> Callable:
            names.append(name)
            return graph.forward

        return plain(fn, **options | {"mode": None}, backend=backend)

    monkeypatch.setattr(torch, "compile", compile_traced)
    monkeypatch.setattr(off_policy, "POOL_STEPS", 2)
    own = {"updates": 6, "evaluate_every": 1000, **EAGER, "compile": "default"}
    own |= known((env, learner), {"minibatches": 1})  # of one size
    run = Run(configure(env, {"learner": learner}, sizes(env, learner), own))
    for progress in run.train():
        if progress.number == 5:  # the last one is scored
            break
    assert run.rt.fell_back == {}
    return names


@pytest.mark.parametrize(("env", "learner"), tasks())
def test_each_function_is_compiled_once(env: str, learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors have the same form at the start, after random and learned actions, and from a new pool."""
    names = compiled_functions(env, learner, monkeypatch)
    assert sorted(names) == sorted(set(names))


def compilations(learner: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many graphs were compiled up to each update of a run that advances by a stage at each."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Callable:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(Progression, "judge", advance(Progression.judge))
    rules = {"passes": 1, "mark": 0.9}
    table = {"metric": "completion", "stages": [{**stage, **rules} for stage in STAGES]}
    small = {"uavs": [4, 4], "targets": [3, 3], "obstacles": [2, 2], "evaluate_every": 1, "updates": 5}
    own = {"learner": learner, "curriculum": table, **small, **EAGER, "compile": "default"}
    run = Run(configure("assignment", {"learner": learner}, sizes("assignment", learner), own))
    counts = [len(graphs) for _ in run.train()]
    assert [row["eval/stage"] for row in run.recorder.rows if "eval/stage" in row] == [1, 2, 3, 4, 4]
    assert run.rt.fell_back == {}
    return counts


def advance(judge: Callable) -> Callable:
    return lambda self, scores, update: judge(self, [1.0] * len(scores), update)


@pytest.mark.parametrize("learner", ["mappo", "masac"])
def test_all_stages_of_a_curriculum_share_what_is_compiled(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = compilations(learner, monkeypatch)
    assert counts[0] > 0
    assert len(set(counts)) == 1


def test_a_stage_with_an_environment_of_its_own_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Progression.apply

    def rebuild(self: Progression, source: Any) -> None:
        apply(self, source)
        source.env = self.scored[self.stages[0]]

    monkeypatch.setattr(Progression, "apply", rebuild)
    counts = compilations("mappo", monkeypatch)
    assert counts[-1] > counts[0]
