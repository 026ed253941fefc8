"""The lean files equal the package in float64: worlds, whole loops and updates, from the same random numbers.

The lean files draw their numbers from an object that ``PackageNoise`` replaces by the package's streams. They take
their type from torch's default, which is float64 here.
"""

import ast
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.core.rng import Streams
from uavlab.envs.leader_follower import steer
from uavlab.evaluation import episodes
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.lean import masac, ppo
from uavlab.training import training

PRESET = "leader_follower_quick"
EQUAL = 1e-9  # largest difference of any parameter
LOOP, ROWS = 20, 200  # updates of the whole loop, and on the package's rows
SMALL = {"hidden": 16, "worlds": 16, "horizon": 38, "evaluate_episodes": 20, "device": "cpu"}
MASAC = {**SMALL, "batch": 32, "learning_starts": 800, "capacity": 1000}  # full after 13 updates
PPO = {**SMALL, "rollout_steps": 4, "epochs": 2, "minibatches": 2, "target_kl": 1e-5, "entropy_updates": 15}

Numbers = dict[str, Tensor]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class PackageNoise:
    """Random numbers of the package's streams, in the form that the lean files take.

    Attributes:
        streams: Those of one run.
    """

    def __init__(self, seed: int = 0) -> None:
        self.streams = Streams([seed], dtype=torch.float64)

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Draw uniform numbers; those of a new world without the course of its obstacle, which rests."""
        *lead, last = shape
        start = last == masac.START_NUMBERS
        return self.streams.uniform(name, *lead, last + start)[0][..., :last]

    def normal(self, name: str, *shape: int) -> Tensor:
        return self.streams.normal(name, *shape)[0]

    def integers(self, name: str, limit: int, *shape: int) -> Tensor:
        return self.streams.integers(name, *shape)[0] % limit


@dataclass(frozen=True)
class Lean:
    """A lean file and what it is compared with.

    Attributes:
        module: The file.
        learner: Name of the learner in the package.
        small: Settings that make runs small.
        kind: The class of its learner.
        numbers: The numbers of its learner, by their names in the package.
        rows: Rows of the package as those of the file.
        rows_settings: Settings of many updates, with fewer gradient steps.
        lengths: Defaults that are not those of the preset, whose updates are shorter.
    """

    module: ModuleType
    learner: str
    small: dict[str, Any]
    kind: type[Any]
    numbers: Callable[[Any], Numbers]
    rows: Callable[[Any], Any]
    rows_settings: dict[str, Any]
    lengths: tuple[str, ...] = ()

    def config(self, **changes: Any) -> Config:
        return configure(PRESET, {"learner": self.learner}, self.small, changes)

    def settings(self, config: Config, **changes: Any) -> Any:
        known = {field.name: config.values[field.name] for field in fields(self.module.Settings)}
        return self.module.Settings(**{**known, **changes})


def masac_numbers(learner: masac.MASAC) -> Numbers:
    return {
        "actor.parameter": learner.actor,
        "critic.parameter": learner.critic,
        "target.parameter": learner.target_critic,
        "temperature.parameter": learner.log_alpha,
    }


def ppo_numbers(learner: ppo.PPO) -> Numbers:
    return {"actor.parameter": learner.actor, "critic.parameter": learner.critic}


def as_transitions(data: Any) -> masac.Transitions:
    """Return rows of the package's replay as those of the lean file."""
    return masac.Transitions(data.obs[0], data.action[0], data.reward[0], data.next_obs[0], data.terminated[0, :, 0])


def as_steps(data: Any) -> ppo.Steps:
    """Return steps of the package's worlds as those of the lean file."""
    ends = data.terminated[0, ..., 0], data.ended[0, ..., 0]
    return ppo.Steps(data.obs[0], data.action[0], data.reward[0], data.next_obs[0], *ends)


LENGTHS = ("updates", "evaluate_every")
FILES = [
    Lean(masac, "masac", MASAC, masac.MASAC, masac_numbers, as_transitions, {}),
    Lean(ppo, "mappo", PPO, ppo.PPO, ppo_numbers, as_steps, {"minibatches": 1}, LENGTHS),
]
KINDS = ("MASAC", "MAPPO")
EACH = pytest.mark.parametrize("lean", FILES, ids=lambda lean: lean.learner)


def package(config: Config) -> tuple[Any, Any, Any, Streams]:
    """Return learner, source, runtime and streams of the package in float64."""
    rt = build.runtime(config.run, config.toggles)
    rng = build.streams(config.run, rt.device, torch.float64)
    return *config.task.build(config, rng, rt), rt, rng


def package_numbers(learner: Any) -> Numbers:
    """Return the parameters of a learner of the package, whose only run is the first."""
    tables = {name: table for name, (table, _) in learner.tensors_to_check().items() if name.endswith("parameter")}
    return {name: table[0].detach().clone() for name, table in tables.items()}


def largest_difference(lean: Numbers, package: Numbers) -> float:
    assert lean.keys() == package.keys()
    return max(float((table.detach() - package[name]).abs().max()) for name, table in lean.items())


@cache
def package_loop(name: str) -> Numbers:
    """Train by the package; return the parameters after the last update."""
    (lean,) = (lean for lean in FILES if lean.learner == name)
    learner, source, rt, rng = package(lean.config(updates=LOOP))
    for _ in training(source, learner, rng, rt, 0, LOOP):
        pass
    return package_numbers(learner)


def loop_difference(lean: Lean, **changes: Any) -> float:
    """Train by both from the same numbers; return the largest difference after the last update."""
    settings = lean.settings(lean.config(updates=LOOP), **changes)
    *_, (_, learner, _) = lean.module.train(settings, PackageNoise())
    return largest_difference(lean.numbers(learner), package_loop(lean.learner))


@EACH
def test_a_file_needs_torch_and_the_standard_library_alone(lean: Lean) -> None:
    tree = ast.parse(inspect.getsource(lean.module))
    plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules = plain + [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in modules} <= {"torch", *sys.stdlib_module_names}


@EACH
def test_defaults_are_those_of_the_preset(lean: Lean) -> None:
    values = configure(PRESET, {"learner": lean.learner}).values
    defaults = {field.name: field.default for field in fields(lean.module.Settings)}
    assert {name for name, value in defaults.items() if values[name] != value} == set(lean.lengths)


def test_both_files_have_the_same_text_where_they_do_the_same() -> None:
    names = "start_worlds whole_number move observe outcome reward distance Worlds where_worlds MLP survey main"
    texts = [[inspect.getsource(getattr(lean.module, name)) for name in names.split()] for lean in FILES]
    masac_texts, ppo_texts = (
        [text.replace(name, "") for text in sources] for sources, name in zip(texts, KINDS, strict=True)
    )
    assert masac_texts == ppo_texts


@EACH
def test_worlds_are_those_of_the_package(lean: Lean) -> None:
    """Half of the leaders fly to their goals, the others at random; every kind of reward occurs."""
    env, rng, module = lean.config().env, Streams([0], dtype=torch.float64), lean.module
    unit = rng.uniform("start", 400, env.spec.initial_noise)[0]
    state, worlds = env.initial(unit), module.start_worlds(unit[:, : module.START_NUMBERS])
    plan, outcomes = (torch.arange(400) < 200)[:, None, None], []
    for _ in range(60):
        action = torch.where(plan, steer(env, state, unit[:, :2]), 2 * rng.uniform("act", 400, 2, 2)[0] - 1)
        before, state, worlds = state, env.transition(state, action, unit[:, :0]), module.move(worlds, action)
        won, crashed = module.outcome(worlds)
        torch.testing.assert_close(module.observe(worlds), env.observe(state), rtol=0, atol=1e-13)
        torch.testing.assert_close(module.reward(worlds), env.reward(before, action, state), rtol=0, atol=1e-10)
        assert (won | crashed).equal(env.terminated(state).all(-1))
        assert won.equal(env.measure(before, action, state)["completion"].bool())
        outcomes.append((won, crashed, state.clearance[:, 1] < 40, state.gap[:, 0] < 50, state.pos[:, 1, 0] <= 100))
    assert all(torch.stack(kind).any() for kind in zip(*outcomes, strict=True))


@EACH
def test_the_whole_loop_equals_the_package(lean: Lean) -> None:
    assert loop_difference(lean) <= EQUAL


@EACH
def test_updates_on_rows_of_the_package_equal_it(lean: Lean) -> None:
    """All kinds of ends occur in the rows, and steps of single actors are left out."""
    config = lean.config(updates=ROWS, **lean.rows_settings)
    learner, source, _, rng = package(config)
    lean_learner, noise = lean.kind(lean.settings(config), PackageNoise()), PackageNoise()
    ends, shares = 0, []
    for _ in range(ROWS):
        batch = source.next()
        update = learner.update(batch, learner.update_noise(rng, batch.index.shape[1]))
        source.after_cycle()
        rows = lean.rows(batch.data)
        lean_learner.update(rows, noise)
        ends += int(rows.terminated.sum())
        shares.append(update.metrics.get("step_share", torch.tensor(0.5)))
    assert largest_difference(lean.numbers(lean_learner), package_numbers(learner)) <= EQUAL
    assert ends > 0
    assert 0 < torch.stack(shares).mean() < 1


@EACH
def test_scores_are_those_of_the_package(lean: Lean) -> None:
    config = lean.config(updates=1, horizon=200)
    learner, source, rt, rng = package(config)
    (_,) = training(source, learner, rng, rt, 0, 1)
    ((_, lean_learner, _),) = lean.module.train(lean.settings(config), noise := PackageNoise())
    policy, count = learner.policy(config.env.spec), config.run.evaluate_episodes
    figures = episodes(config.env, policy, rng, count, stream=build.VALIDATION)
    completion, collision = lean.module.evaluate(lean_learner, noise)
    assert completion == pytest.approx(float(figures["completion"].mean()))
    assert collision == pytest.approx(float(figures["collision"].mean()))
    assert 0 < completion + collision < 1


def wrong_sign_of_entropy(learner: masac.MASAC, batch: masac.Transitions, normal: Tensor) -> Tensor:
    """Return targets that add the log density."""
    action, log_prob = learner.sample_actions(batch.next_obs, normal)
    value = learner.values(learner.target_critic, batch.next_obs, action).amin(1)
    soft = value + learner.log_alpha.exp() * log_prob.T
    return (batch.reward.T + learner.settings.gamma * ~batch.terminated * soft).detach()


def advantages_past_ends(steps: ppo.Steps, *args: Any) -> Tensor:
    """Return advantages that go on past a time limit."""
    return ADVANTAGES(dataclasses.replace(steps, ended=steps.terminated), *args)


ADVANTAGES = ppo.advantages
BROKEN = [
    (FILES[0], masac.MASAC, "target", wrong_sign_of_entropy),
    (FILES[0], masac, "POOL_STEPS", 64),
    (FILES[1], ppo, "advantages", advantages_past_ends),
    (FILES[1], ppo, "RETURN_MEMORY", 0.901),
    *((lean, lean.module, "APART_COST", 0.00501) for lean in FILES),
]


@pytest.mark.parametrize(("lean", "owner", "name", "broken"), BROKEN, ids=lambda part: getattr(part, "learner", None))
def test_a_broken_variant_is_not_equal(
    lean: Lean, owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert loop_difference(lean) > EQUAL


@EACH
def test_a_discount_that_differs_in_the_sixth_digit_is_not_equal(lean: Lean) -> None:
    assert loop_difference(lean, gamma=0.95 * (1 + 1e-6)) > EQUAL
