"""Decisions of curricula: by hand, and against a machine that looks at all scores again each time."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from uavlab.experiment import curriculum
from uavlab.experiment.curriculum import (
    ADVANCE,
    Curriculum,
    Fallback,
    Position,
    Stage,
    decide,
    learning_rate,
    shares,
    threshold,
)

FALLBACK = Fallback()
CONSERVATIVE, AGGRESSIVE = (Stage({}, **ADVANCE[name]) for name in ("conservative", "aggressive"))
STREAMS = 1000  # ten times as many are a proof
NAN = math.nan


def follow(scores: list[float], stages: Sequence[Stage] = (CONSERVATIVE,) * 3, rules: Fallback = FALLBACK) -> list[str]:
    """Return a letter for each decision: s(tay), a(dvance), f(all back), c(omplete)."""
    position, kinds = Position(), []
    for score in scores:
        position, decision = decide(position, score, stages, rules)
        kinds.append(decision.kind[0])
    return kinds


# ---- by hand ----


def test_a_run_advances_after_passes_in_a_row() -> None:
    assert "".join(follow([0.8, 0.9, 0.7, *[0.8] * 5, 0.0])) == "sssssssas"
    assert "".join(follow([0.7] * 3, [AGGRESSIVE] * 3)) == "ssa"


def test_a_run_that_gets_no_better_advances_after_its_patience() -> None:
    assert "".join(follow([0.5] * 11)) == "s" * 10 + "a"
    assert "".join(follow([0.5] * 9 + [0.6] + [0.5] * 10)) == "s" * 19 + "a"
    assert "a" not in follow([0.5] * 50, [replace(CONSERVATIVE, patience=0)] * 3)


def test_a_run_falls_back_after_failures_in_a_row_once_it_has_settled() -> None:
    stages = [Stage({}, 0.8, passes=3, patience=0)] * 3
    assert "".join(follow([1.0] * 3 + [0.5] * 5, stages)) == "ssassssf"  # not before the fifth score
    assert "".join(follow([1.0] * 3 + [0.7] * 4 + [0.5, 0.7, 0.5, 0.5, 0.5], stages)) == "ssa" + "s" * 8 + "f"
    assert "f" not in follow([1.0] * 3 + [0.6] * 20, stages)  # at the margin


def test_a_run_falls_back_twice_at_most() -> None:
    stages = [Stage({}, 0.8, passes=1, patience=0)] * 3
    assert "".join(follow([1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0], stages, Fallback(settle=1, failures=1))) == "afafass"


def test_the_last_stage_is_completed() -> None:
    assert "".join(follow([1.0, 1.0, 1.0, 1.0], [Stage({}, 0.8, passes=1)] * 3)) == "aacc"


def test_stages_have_marks_of_their_own() -> None:
    stages = [Stage({}, 0.9, passes=1, patience=2), Stage({}, 0.2, passes=2, patience=0), Stage({})]
    assert "".join(follow([0.8, 0.7, 0.6, 0.2, 0.2, 0.2], stages)) == "ssasas"


def test_the_highest_stage_stays_known() -> None:
    stages, position = [Stage({}, 0.8, passes=1, patience=0)] * 3, Position()
    for score, expected in ((1.0, (1, 1)), (0.0, (0, 1)), (1.0, (1, 1)), (1.0, (2, 2)), (0.0, (1, 2))):
        position, _ = decide(position, score, stages, Fallback(settle=1, failures=1))
        assert (position.stage, position.reached) == expected


def test_shares_and_rates_of_stages() -> None:
    plan = Curriculum("score", (Stage({}, rate=1.0), Stage({}, rate=0.5, mix=(0.7, 0.3)), Stage({}, mix=(0.6, 0.4))))
    assert [shares(plan, stage) for stage in range(3)] == [[1, 0, 0], [0.3, 0.7, 0], [0.2, 0.2, 0.6]]
    assert learning_rate(plan, Position(stage=1, fallbacks=2)) == 0.125


@pytest.mark.parametrize(
    ("final", "expected"), [(1.0, 0.6), (0.1, 0.06), (0.05, 0.01), (0.0, -0.04), (-0.05, -0.09), (-1.0, -1.4)]
)
def test_margins_of_scores_of_either_sign(final: float, expected: float) -> None:
    assert threshold(final, Fallback()) == pytest.approx(expected)


def test_a_score_that_is_no_number_is_a_failure() -> None:
    stages = [Stage({}, 0.8, passes=2, patience=0)] * 3
    assert "".join(follow([0.9, NAN, 0.9, 0.9, NAN, NAN, NAN], stages, Fallback(settle=3))) == "sssassf"
    position, _ = decide(Position(), NAN, stages, FALLBACK)
    assert (position.best, position.stale, position.passed) == (-math.inf, 1, 0)


def test_reasons_are_figures() -> None:
    position = Position(stage=1, scores=4, failed=2, finals=(1.0,), best=0.5)
    _, decision = decide(position, 0.5, [CONSERVATIVE] * 3, FALLBACK)
    assert decision == ("fall_back", "3 scores in a row below 0.6, 0.6 of the stage before")


# ---- against a machine that keeps all scores ----


class Machine:
    """Holds every score of every visit to a stage, and counts from the last one backwards."""

    def __init__(self, stages: Sequence[Stage], rules: Fallback) -> None:
        self.stages, self.rules = stages, rules
        self.visits: list[tuple[int, list[float]]] = [(0, [])]
        self.finals: dict[int, float] = {}
        self.falls = 0

    def decide(self, score: float) -> str:
        stage, scores = self.visits[-1]
        scores.append(score)
        here, rules, last = self.stages[stage], self.rules, stage == len(self.stages) - 1
        if self.tail(scores, lambda s: s >= here.mark) >= here.passes:
            return "c" if last else self.leave(stage + 1, "a", score)
        if stage > 0 and len(scores) >= rules.settle and self.falls < rules.fallbacks:
            final = self.finals[stage - 1]
            low = final - (1 - rules.margin) * max(abs(final), rules.scale)
            if self.tail(scores, lambda s: not s >= low) >= rules.failures:
                self.falls += 1
                return self.leave(stage - 1, "f", NAN)
        numbers = [s for s in scores if not math.isnan(s)]
        best = max(numbers, default=-math.inf)
        since = len(scores) - 1 - scores.index(best) if numbers else len(scores)
        if here.patience and since >= here.patience and not last:
            return self.leave(stage + 1, "a", best)
        return "s"

    def leave(self, stage: int, kind: str, final: float) -> str:
        if kind == "a":
            self.finals[self.visits[-1][0]] = final
        self.visits.append((stage, []))
        return kind

    @staticmethod
    def tail(scores: list[float], holds: Callable[[float], bool]) -> int:
        count = 0
        while count < len(scores) and holds(scores[-1 - count]):
            count += 1
        return count


def stream(dice: random.Random) -> tuple[list[float], list[Stage], Fallback]:
    """Draw a stream of scores around a drifting level, with zeros, negative numbers and some that are none."""
    level, scores = dice.uniform(-1, 1), []
    for _ in range(dice.randrange(1, 120)):
        level += dice.gauss(0, 0.2)
        score = dice.choice([level, level, level, round(level, 1), 0.0, -abs(level)])
        scores.append(NAN if dice.random() < 0.03 else score)
    stages = [
        Stage({}, dice.uniform(-1, 1), passes=dice.randrange(1, 6), patience=dice.choice([0, 3, 10]))
        for _ in range(dice.randrange(1, 5))
    ]
    rules = Fallback(
        settle=dice.randrange(1, 8),
        failures=dice.randrange(1, 5),
        margin=dice.uniform(0, 1),
        scale=dice.choice([1e-3, 0.1, 1.0]),
        fallbacks=dice.randrange(0, 4),
    )
    return scores, stages, rules


def differences(count: int) -> tuple[int, set[str]]:
    """Return how many streams are decided differently, and the decisions that occurred."""
    dice, wrong, kinds = random.Random(7), 0, set()
    for _ in range(count):
        scores, stages, rules = stream(dice)
        machine = Machine(stages, rules)
        expected = [machine.decide(score) for score in scores]
        kinds |= set(expected)
        wrong += follow(scores, stages, rules) != expected
    return wrong, kinds


def test_no_stream_is_decided_differently() -> None:
    assert differences(STREAMS) == (0, set("safc"))


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("threshold", lambda final, rules: rules.margin * final),
        ("threshold", lambda final, rules: final - (1 - rules.margin) * abs(final)),
        ("_next", lambda here, final: Position(stage=here.stage + 1, finals=(*here.finals, final))),
        ("_next", lambda here, final: replace(here, stage=here.stage + 1, finals=(*here.finals, final))),
    ],
    ids=["ratio of signed scores", "no size near zero", "fallbacks forgotten", "counts carried on"],
)
def test_a_broken_rule_is_seen(monkeypatch: pytest.MonkeyPatch, name: str, broken: object) -> None:
    monkeypatch.setattr(curriculum, name, broken)
    assert differences(300)[0] > 0
