"""Every learner describes itself by metrics that it reports and settings that exist, with values that are allowed."""

import dataclasses
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from annotated_types import Ge, Gt, Le, Lt

from tests.support.fixtures_config import sizes, train_run
from tests.support.registries import registered_outside
from tests.support.uneven import Uneven
from uavlab.core.symptoms import Remedy, Symptom, higher, longer_view, lower, move_range, times
from uavlab.core.text import yaml_value
from uavlab.core.types import EnvSpec
from uavlab.experiment.build import ENVIRONMENTS, LEARNERS
from uavlab.experiment.config import configure
from uavlab.experiment.settings import settings_of
from uavlab.learners.learner import Learner

NUDGE = 1e-9
SLACK = 0.35  # of an estimate from few samples (nats); a range that forgets a dimension is off by log 2
SPEC = EnvSpec(3, 5, 2, 400, 1.0, 1, 0, (0, 1, 1))
MOVES = EnvSpec(3, 5, 1, 400, 1.0, 1, 0, (0, 1, 1), choices=6)


def try_value(remedy: Remedy, spec: Any = SPEC, **settings: float | None) -> float | None:
    return remedy.value(SimpleNamespace(**settings), spec)


def pairs() -> Iterator[tuple[str, str]]:
    """Yield every learner with the first environment of each kind of actions that it learns."""
    with registered_outside():
        for learner, entry in LEARNERS.items():
            fits = {}
            for name, env in ENVIRONMENTS.items():
                if not entry.unsupported(spec := env.kind().spec):
                    kind = (bool(spec.choices), bool(spec.side)) if isinstance(spec, EnvSpec) else type(spec)
                    fits.setdefault(kind, name)
            yield from ((learner, env) for env in fits.values())


def extremes(entry: type[Learner], name: str) -> list[float]:
    """Return smallest and largest value of a setting, and its default."""
    (setting,) = (each for each in settings_of(entry.settings) if each.name == name)
    limits = get_args(setting.kind)[1:]
    lowest = [getattr(each, "ge", None) for each in limits if isinstance(each, Ge)]
    lowest += [getattr(each, "gt", 0) + NUDGE for each in limits if isinstance(each, Gt)]
    largest = [getattr(each, "le", None) for each in limits if isinstance(each, Le)]
    largest += [getattr(each, "lt", 0) - NUDGE for each in limits if isinstance(each, Lt)]
    return [setting.default, *lowest, *largest]


@pytest.mark.parametrize(("learner", "env"), list(pairs()))
def test_what_a_learner_says_of_itself_is_true(learner: str, env: str) -> None:
    with registered_outside():
        entry, watch = LEARNERS[learner], LEARNERS[learner].symptoms
        config = configure(env, sizes(env, learner), {"learner": learner, "updates": 2, "log_every": 1})
        rows = train_run(config).recorder.rows
        entropy = watch.entropy
        for name in (entropy.metric if entropy else "", watch.loss, watch.returns):
            assert not name or all(name in row for row in rows)
        if entropy:
            low, high = entropy.range(config.learner, config.env.spec)
            assert low < high
            assert all(low <= row[entropy.metric] <= high + SLACK for row in rows)
            assert all((entropy.limit in row) is bool(config.env.spec.choices) for row in rows)
            limits = [row[entropy.limit] for row in rows if entropy.limit in row]
            assert all(
                row[entropy.metric] <= limit + SLACK / 10 <= high + SLACK
                for row, limit in zip(rows, limits, strict=False)
            )
        assert watch.remedies.keys() <= set(get_args(Symptom))
        for remedy in (remedy for remedies in watch.remedies.values() for remedy in remedies):
            for now in extremes(entry, remedy.setting):
                hyper = dataclasses.replace(config.learner, **{remedy.setting: now})
                value = remedy.value(hyper, config.env.spec)
                if value is not None:
                    assert value != pytest.approx(now)
                    if isinstance(value, str):
                        value = yaml_value(value, remedy.setting)
                    configure(env, sizes(env, learner), {"learner": learner, remedy.setting: value})


def test_every_learner_of_a_team_is_described() -> None:
    for name, entry in LEARNERS.items():
        known = {"scores_still", "loss_grows"} | ({"entropy_high", "entropy_low"} if name != "forecaster" else set())
        known |= {"target_high"} if name == "masac" else set()
        assert entry.symptoms.remedies.keys() == known
        assert bool(entry.symptoms.entropy) is (name != "forecaster")


class TestRanges:
    def test_of_a_squashed_gaussian(self) -> None:
        bounds = LEARNERS["masac"].symptoms.entropy.range(LEARNERS["masac"].settings(), SPEC)  # type: ignore[union-attr]
        assert bounds.high == pytest.approx(2 * math.log(2))  # uniform in [-1, 1]^2
        assert bounds.low == pytest.approx(2 * (-5 + 1.4189385))
        wide = LEARNERS["masac"].settings(log_std_low=0.0)
        assert LEARNERS["masac"].symptoms.entropy.range(wide, SPEC).low == 0  # type: ignore[union-attr]

    def test_of_a_gaussian_before_squashing(self) -> None:
        bounds = LEARNERS["mappo"].symptoms.entropy.range(LEARNERS["mappo"].settings(), SPEC)  # type: ignore[union-attr]
        assert bounds == pytest.approx((2 * (-2.5 + 1.4189385), 2 * 1.4189385))

    @pytest.mark.parametrize("learner", ["masac", "mappo", "ippo", "coma"])
    def test_of_moves(self, learner: str) -> None:
        entry = LEARNERS[learner]
        assert entry.symptoms.entropy.range(entry.settings(), MOVES) == (0, math.log(6))  # type: ignore[union-attr]

    def test_of_groups_with_different_widths(self) -> None:
        """Agents of 2, 2 and 3 dimensions: the mean over agents has 7/3, that over the actors of two groups 5/2."""
        for learner, own in (("masac", 7 / 3), ("mappo", 5 / 2)):
            entry = LEARNERS[learner]
            bounds = entry.symptoms.entropy.range(entry.settings(), Uneven.spec)  # type: ignore[union-attr]
            assert bounds.low == pytest.approx(own * ({"masac": -5, "mappo": -2.5}[learner] + 1.4189385))
            assert bounds.high == pytest.approx(own * (math.log(2) if learner == "masac" else 1.4189385))
        own_actor = LEARNERS["mappo"].settings(share=False)
        assert LEARNERS["mappo"].symptoms.entropy.range(own_actor, Uneven.spec).high == pytest.approx(7 / 3 * 1.4189385)  # type: ignore[union-attr]

    def test_two_moves(self) -> None:
        assert move_range(dataclasses.replace(MOVES, choices=2)) == (0, math.log(2))


class TestRemedies:
    def test_a_factor(self) -> None:
        assert try_value(times("alpha", 0.1, least=0.01), alpha=1.0) == 0.1
        assert try_value(times("alpha", 0.1, least=0.01), alpha=0.02) == 0.01
        assert try_value(times("alpha", 0.1, least=0.01), alpha=0.01) is None
        assert try_value(times("alpha", 0.1, least=0.01), alpha=0.001) is None  # never in the wrong direction
        assert try_value(times("entropy", 10, least=0.01, most=0.1), entropy=0.0) == 0.01
        assert try_value(times("entropy", 10, least=0.01, most=0.1), entropy=0.05) == 0.1
        assert try_value(times("entropy", 10, least=0.01, most=0.1), entropy=0.2) is None

    def test_limits(self) -> None:
        assert try_value(lower("tau", 0.05, 0.01), tau=1.0) == 0.01
        assert try_value(lower("tau", 0.05, 0.01), tau=0.05) is None
        assert try_value(higher("lr", 1e-4, 1e-3), lr=1e-6) == 1e-3
        assert try_value(higher("lr", 1e-4, 1e-3), lr=1e-4) is None

    def test_a_discount_that_sees_little_of_an_episode(self) -> None:
        assert try_value(longer_view(), gamma=0.9) == 0.975  # 10 of 400 steps become 40
        assert try_value(longer_view(), gamma=0.96) is None  # 25 of 400 steps
        long = dataclasses.replace(SPEC, horizon=10**6)
        assert [try_value(longer_view(), long, gamma=gamma) for gamma in (0.9, 0.999, 1.0)] == [0.999, None, None]
        assert try_value(longer_view(), dataclasses.replace(SPEC, horizon=25), gamma=0.5) is None

    def test_the_target_entropy_of_masac(self) -> None:
        entry = LEARNERS["masac"]
        first = {name: entry.symptoms.remedies[name][0] for name in ("entropy_high", "entropy_low")}  # type: ignore[index]
        for target, high, low in ((-2.0, None, None), (1.3, -2.0, None), (-30.0, None, -2.0), (None, None, None)):
            hyper = SimpleNamespace(log_std_low=-5.0, target_entropy=target)
            assert first["entropy_high"].value(hyper, SPEC) == high
            assert first["entropy_low"].value(hyper, SPEC) == low
        wide = SimpleNamespace(log_std_low=-5.0, target_entropy=1.7)
        assert first["entropy_high"].value(wide, Uneven.spec) == pytest.approx(-7 / 3)
        moves = SimpleNamespace(log_std_low=-5.0, target_entropy=1.7)
        assert first["entropy_high"].value(moves, MOVES) is None
        (above,) = entry.symptoms.remedies["target_high"]
        assert above.value(moves, MOVES) == "null"
        assert above.value(SimpleNamespace(target_entropy=None), MOVES) is None
