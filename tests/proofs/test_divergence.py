"""A number that is not finite is located within an update, and reaches neither replay nor a checkpoint."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_config import train_tiny
from tests.support.nan_injection import ENV, SITES, VALUES, WORLD, WORLDS, Seams, build, fine, inject, refused
from uavlab.collectors.off_policy import OffPolicyCollector
from uavlab.collectors.world_source import survey
from uavlab.core.protocols import CheckedTensors
from uavlab.core.rng import Streams
from uavlab.core.types import leaves
from uavlab.envs.leader_follower.env import LeaderFollower, State
from uavlab.learners.masac.masac import MASAC
from uavlab.runtime.runtime import Runtime
from uavlab.training import check_state


def failures(
    kind: Any = MASAC, seams: type[Seams] = Seams, source: type[OffPolicyCollector] = OffPolicyCollector
) -> dict[str, str]:
    """Inject every value at every site; return what failed."""
    results = {
        f"{name} {value:g}": inject(kind, name, value, seams, source) for name in SITES[kind] for value in VALUES
    }
    return {case: failure for case, failure in results.items() if failure}


def test_every_number_is_found_in_its_place_and_contained(proof: Callable) -> None:
    for kind in SITES:
        assert failures(kind) == {}
    counts = " and ".join(f"{len(sites)} sites of {kind.__name__}" for kind, sites in SITES.items())
    proof("divergence is located and contained", f"{counts}, {len(VALUES)} values each, 0 missed or misplaced")


class OnlyLosses(Seams):
    def check(self, numbers: CheckedTensors) -> None:
        super().check({name: entry for name, entry in numbers.items() if name.endswith("_loss")})


class NotBelow(Seams):
    def check(self, numbers: CheckedTensors) -> None:
        super().check({name: (tensor.clamp(min=-1), axes) for name, (tensor, axes) in numbers.items()})


class OnlyInfinite(Seams):
    def check(self, numbers: CheckedTensors) -> None:
        super().check({name: (tensor.where(~tensor.isfinite(), 0), axes) for name, (tensor, axes) in numbers.items()})


class NoState(Seams):
    def check(self, numbers: CheckedTensors) -> None:
        super().check({name: entry for name, entry in numbers.items() if "." not in name})


class WritesFirst(OffPolicyCollector):
    """Checks once the row is in replay."""

    def _step_and_store(self, explore: bool) -> None:
        checked: list[CheckedTensors] = []
        check, self._check = self._check, checked.append
        super()._step_and_store(explore)
        self._check = check
        for numbers in checked:
            check(numbers)


@pytest.mark.parametrize(
    ("mutant", "caught"),
    [
        (
            {"seams": OnlyLosses},
            {"reward nan": "replay holds it", "actor.exp_avg_sq inf": "not found within one update"},
        ),
        ({"seams": NotBelow}, {"reward -inf": "replay holds it", "critic.parameter -inf": "located as "}),
        ({"seams": OnlyInfinite}, {"next_obs 1e+38": "replay holds it", "critic.exp_avg_sq 1e+38": "not found"}),
        ({"seams": NoState}, {"actor.parameter nan": "located as ", "critic.exp_avg_sq inf": "not found"}),
        ({"source": WritesFirst}, {f"{name} {value:g}": "replay holds it" for name in WORLD for value in VALUES}),
    ],
    ids=["losses alone", "not below", "infinite alone", "no state", "written first"],
)
def test_a_guard_with_a_gap_is_caught(mutant: dict[str, Any], caught: dict[str, str]) -> None:
    texts = failures(**mutant)
    assert {case: texts.get(case, "")[: len(start)] for case, start in caught.items()} == caught


def test_networks_that_agents_share_are_named_as_such() -> None:
    t = build(share=True)  # one network for the leader, one for both followers
    t.learner.actor.state_dict()["exp_avg"].view(3, 2, -1)[2, 1, 0] = math.nan
    error = refused(lambda: next(t.steps))
    assert str(error) == (
        "training: actor.exp_avg of run 2, network 1 is nan at update 3; expected a finite number of at most 1e+18 in "
        "size. Go on from the last good checkpoint with a lower rate: `uavlab resume RUN --set lr=...`."
    )


def test_a_bad_reward_is_reported_as_the_environments() -> None:
    t = build()
    t.run, t.world, t.agent = 1, 3, 2
    WORLD["reward"](t, -math.inf)
    error = refused(lambda: next(t.steps))
    assert str(error) == (
        "training: reward of run 1, world 3, agent 2 is -inf at update 4; expected a finite number of at most 1e+09 in "
        "size. The environment made it: see `uavlab check PRESET`."
    )
    assert error is not None
    assert error.record == {
        "tensor": "reward", "value": "-inf", "expected": "a finite number of at most 1e+09 in size",
        "kind": "environment", "run": 1, "world": 3, "agent": 2, "update": 4,
    }  # fmt: skip


def test_a_bad_start_in_the_pool_is_found_before_it_is_seen() -> None:
    t = build()
    pool = t.source.pool.obs.view(-1, t.runs, WORLDS, ENV.spec.agents, ENV.spec.obs)
    pool[:, 1, 2, 0, 4] = math.nan
    error = refused(lambda: [next(t.steps) for _ in range(ENV.horizon + 1)])
    assert error is not None
    assert [error.record[key] for key in ("tensor", "run", "world", "agent", "feature")] == ["obs", 1, 2, 0, 4]
    assert fine(leaf for _, leaf in leaves(t.source.ring.rows))
    verdict = refused(lambda: check_state(t.source, t.learner, t.rt, 5))
    assert verdict is not None
    assert [verdict.record[key] for key in ("tensor", "run", "world", "update")] == ["worlds.obs", 1, 2, 5]


def test_a_hidden_part_of_the_worlds_reaches_no_checkpoint() -> None:
    t = build()
    t.source.worlds.state.action.view(3, WORLDS, ENV.spec.agents, 2)[2, 3, 1] = math.inf  # no observation shows it
    verdict = refused(lambda: check_state(t.source, t.learner, t.rt, 3))
    assert verdict is not None
    assert [verdict.record[key] for key in ("tensor", "run", "world")] == ["worlds.state.action", 2, 3]
    assert verdict.record["kind"] == "environment"


def test_an_environment_that_shows_nan_from_the_start_is_named() -> None:
    class Blinking(LeaderFollower):
        def observe(self, state: State) -> Tensor:
            return torch.where(state.step[:, None, None] == 3, math.nan, super().observe(state))

    error = refused(lambda: survey(Blinking(), Streams((3,))))
    assert error is not None
    assert [error.record[key] for key in ("tensor", "kind")] == ["obs", "environment"]


def test_healthy_runs_raise_no_alarm(monkeypatch: pytest.MonkeyPatch, proof: Callable) -> None:
    checks, check = [], Runtime.check
    monkeypatch.setattr(Runtime, "check", lambda rt, numbers: checks.append(check(rt, numbers)))
    kinds: list[dict[str, Any]] = [{}, {"runs": 2}, {"followers": 3}, {"update": "loop"}]
    runs = [train_tiny(seed=seed, updates=25, evaluate_every=25, **kinds[seed % 4]) for seed in range(20)]
    assert [run.number for run in runs] == [25] * 20
    proof("divergence: false alarms", f"0 in 20 healthy runs, {20 * 25} updates, {len(checks)} checks")
