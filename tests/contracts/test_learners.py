"""Every registered learner, on the first environment that it fits: exact resume, whole state, one policy, R runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_config import checkpoint_leaves, sizes, stop_and_resume, train_run
from uavlab.core.types import EnvSpec
from uavlab.experiment import build
from uavlab.experiment.build import ENVIRONMENTS, LEARNERS
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.testing import check_learner

UPDATES = 4
SHARED = {"critic": "shared", "followers": 2}
SETTINGS = pytest.mark.parametrize(
    ("learner", "changes"),
    [
        *((name, {}) for name in LEARNERS),
        ("masac", SHARED),
        ("masac", {"n_step": 1}),
        ("mappo", SHARED),
        ("mappo", {**SHARED, "memory": 6}),
    ],
)


def first_environment(learner: str) -> str:
    entry = LEARNERS[learner]
    return next(name for name, env in ENVIRONMENTS.items() if entry.unsupported(env.kind().spec) is None)


def first_spec(learner: str) -> Any:
    return ENVIRONMENTS[first_environment(learner)].kind().spec


def small(learner: str, **changes: Any) -> Config:
    env, layer = first_environment(learner), {"learner": learner}
    return configure(env, layer, sizes(env, learner), {"updates": UPDATES, "checkpoint_every": 2, **changes})


@SETTINGS
def test_a_run_that_was_stopped_ends_in_the_bits_of_a_whole_one(
    tmp_path: Path, learner: str, changes: dict[str, Any]
) -> None:
    whole = train_run(small(learner, **changes), tmp_path / "whole")
    resumed = stop_and_resume(small(learner, **changes), tmp_path / "run")
    assert (resumed.number, resumed.digest) == (UPDATES, whole.digest)


@pytest.mark.parametrize("learner", LEARNERS)
def test_an_update_changes_the_policy_and_its_state_holds_it(learner: str) -> None:
    run = Run(small(learner))
    before, leaves = run.learner.parameters(), checkpoint_leaves(run)
    for _ in run.train():
        pass
    after = checkpoint_leaves(run)
    assert not torch.equal(run.learner.parameters(), before)
    assert [name for name in leaves if name.startswith("learner/") and not torch.equal(leaves[name], after[name])]


@pytest.mark.parametrize("learner", LEARNERS)
def test_saved_parameters_act_as_the_learner_does(learner: str) -> None:
    config = small(learner)
    _, _, trained, source = build.assemble(config)
    obs = observations(source)
    loaded = config.task.algorithm.load_policy(config.learner, config.env.spec, config.env.spec, trained.parameters())
    torch.testing.assert_close(loaded(obs, None), trained.policy(config.env.spec)(obs, None))


@SETTINGS
def test_each_run_is_as_it_is_alone(learner: str, changes: dict[str, Any]) -> None:
    settings = ({"runs": 2, "seed": 3}, {"seed": 4}, {"seed": 5})
    together, alone, other = (train_run(small(learner, **size, **changes)) for size in settings)
    torch.testing.assert_close(together.learner.parameters()[1], alone.learner.parameters()[0], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(other.learner.parameters(), alone.learner.parameters(), rtol=1e-4, atol=1e-6)


@SETTINGS
def test_the_contract_of_a_learner(learner: str, changes: dict[str, Any]) -> None:
    if not isinstance(first_spec(learner), EnvSpec):
        pytest.skip("it has no team")
    config = small(learner, **changes)
    report = check_learner(learner, config.env, vars(config.learner))
    assert report.numbers > 0


def observations(source: Any) -> Tensor:
    """Return what a policy sees: of worlds what their agents observe, of logs the inputs of a batch."""
    if hasattr(source, "observations"):
        return source.observations()
    return source.next().data.inputs
