"""Rules warn of curves that ail and stay silent on healthy ones; a run warns once per symptom, across resumes too."""

import json
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_config import sizes
from uavlab.core.errors import TrainingWarning
from uavlab.core.symptoms import Symptoms
from uavlab.experiment import diagnostics
from uavlab.experiment.config import Config, configure
from uavlab.experiment.diagnostics import Finding, Point, changes, findings, parse, quarters
from uavlab.experiment.run import Run

Shape = Callable[[int], float]  # from an update to a value
Rows = list[dict[str, Any]]
ROOT = Path(__file__).parents[3]

MASAC = configure("spread", {"device": "cpu"})  # 10,000 updates; the largest entropy is 2 log 2 = 1.386
MAPPO = configure("pursuit", {"device": "cpu"})  # five moves, some of them closed: at most log 5 = 1.609
MOVES = configure("pursuit", {"device": "cpu", "learner": "masac"})


def make_rows(last: int = 10_000, log: int = 100, every: int = 500, config: Config = MASAC, **shapes: Shape) -> Rows:
    """Return the rows of a run: metrics every ``log`` updates, figures of evaluations every ``every``.

    Shapes without a name here are figures; ``score`` stands for the first figure of the score.
    """
    metrics = {"entropy", "entropy_limit", "target_share", "critic_loss", "return_"}
    score = next(iter(config.evaluation.score))
    rows: Rows = []
    for update in (1, *range(log, last + 1, log)):
        row: dict[str, Any] = {"update": update, "seconds": 0.01 * update}
        row |= {name.rstrip("_"): shape(update) for name, shape in shapes.items() if name in metrics}
        if update % every == 0:
            figures = dict.fromkeys(config.evaluation.score, 0.0)
            figures |= {
                score if name == "score" else name: f(update) for name, f in shapes.items() if name not in metrics
            }
            row |= {f"eval/{name}": value for name, value in figures.items()}
        rows.append(row)
    return rows


def noisy(shape: Shape, size: float, seed: int = 0) -> Shape:
    """Add noise with a standard deviation to a curve."""
    return lambda update: shape(update) + random.Random(f"{seed}/{update}").gauss(0, size)


def ramp(first: float, last: float, begin: int, end: int) -> Shape:
    """Return a curve that goes straight from one value to another between two updates."""
    return lambda update: first + (last - first) * min(max((update - begin) / (end - begin), 0.0), 1.0)


def flat(value: float) -> Shape:
    return lambda update: value


def loss(size: float = 1.0) -> Shape:
    """Return a healthy loss, whose single rows may be a thousand times larger."""
    return lambda update: size * (1000 if random.Random(update).random() < 0.1 else 1) * (1 + update % 7)


SPIKES = {3900: 10.0, 5900: 100.0, 7900: 1000.0, 10_000: 1e4}  # at the ends of the quarters that are compared at last


def growing(update: int) -> float:
    return 0.1 * 10 ** (update / 1500)


CURVES: dict[str, tuple[Rows, Config]] = {}
EXPECTED: dict[str, set[str]] = {}


def curve(name: str, *expected: str, config: Config = MASAC, **shapes: Any) -> None:
    CURVES[name], EXPECTED[name] = (make_rows(config=config, **shapes), config), set(expected)


RISING, STILL = noisy(ramp(0.1, 0.9, 0, 9000), 0.05), noisy(flat(0.1), 0.05)
FALLING = noisy(ramp(1.3, -2, 1000, 6000), 0.02)

# what ails
curve("a temperature that is too high", "entropy_high", entropy=noisy(flat(1.345), 0.03), score=RISING)
curve("nothing but noise", "entropy_high", "scores_still", entropy=noisy(flat(1.36), 0.01), score=STILL)
curve("a policy that stays as it is", "scores_still", entropy=noisy(flat(1.1), 0.02), score=STILL)
curve(
    "moves that stay as they are",
    *("entropy_high", "scores_still"),
    config=MAPPO,
    **{"entropy": noisy(flat(1.2), 0.02), "score": STILL, "return_": ramp(0, -1, 0, 3000)},
    entropy_limit=noisy(flat(1.22), 0.02),
)
curve("scores that are equal", "scores_still", entropy=FALLING, score=flat(0.0), other=flat(3.0))
curve("a collapse", "entropy_low", entropy=ramp(1.3, -7, 100, 3000), score=noisy(ramp(0.5, 0.2, 0, 3000), 0.05))
curve("a collapse at once", "entropy_low", entropy=flat(-7.0), score=noisy(ramp(0.5, 0.2, 0, 3000), 0.05))
curve("divergence", "loss_grows", entropy=FALLING, critic_loss=growing, score=noisy(ramp(0.5, 0.2, 0, 9000), 0.05))
curve(
    "divergence after learning",
    "loss_grows",
    **{"entropy": FALLING, "critic_loss": growing},
    score=noisy(lambda update: math.sin(math.pi * update / 10_000), 0.05),
)
RANDOM: dict[str, Any] = {
    "entropy": noisy(flat(0.69), 0.002),
    "entropy_limit": noisy(flat(0.695), 0.002),
    "score": RISING,
}
curve("moves that stay random", "entropy_high", config=MAPPO, **RANDOM)
curve("a target above what masks allow", "target_high", config=MOVES, target_share=noisy(flat(1.4), 0.05), **RANDOM)
curve("a target far below what masks allow", "entropy_high", config=MOVES, target_share=flat(0.25), **RANDOM)
curve(
    "moves that collapse",
    "entropy_low",
    config=MAPPO,
    **{
        "entropy": ramp(1.4, 0.08, 0, 1000),
        "score": noisy(flat(0.5), 0.05),
        "return_": noisy(ramp(0.1, 0, 0, 500), 0.1),
    },
)

curve(
    "few moves that collapse",
    "entropy_low",
    config=MAPPO,
    **{"entropy": ramp(0.6, 0.02, 0, 1000), "entropy_limit": flat(0.69), "score": noisy(flat(0.5), 0.05)},
)

# what does not
curve(
    "few moves as certain as they should be",
    config=MAPPO,
    **{"entropy": ramp(0.6, 0.12, 0, 1000), "entropy_limit": flat(0.69), "score": noisy(flat(0.5), 0.05)},
)
curve("no choice at all", config=MAPPO, entropy=flat(0.0), entropy_limit=flat(0.0), score=RISING)
curve(
    "a target out of reach in most rows",
    config=MOVES,
    target_share=lambda n: 0.5 if n % 500 == 0 else 1.4,
    score=RISING,
)
curve("a target out of reach in few rows", last=600, config=MOVES, target_share=flat(1.4), score=RISING)
curve("a healthy run", entropy=noisy(ramp(1.38, -2, 1200, 6000), 0.02), critic_loss=loss(), score=RISING)
curve("a loss that grows with the score", entropy=FALLING, critic_loss=growing, score=RISING)
curve("a first rise of the loss", entropy=FALLING, critic_loss=ramp(1e-4, 5, 0, 1500), score=STILL)
curve("a reward that is found late", entropy=FALLING, critic_loss=lambda n: 1e-4 if n < 6000 else 0.5, score=STILL)
curve("single rows are far off", entropy=FALLING, critic_loss=lambda n: SPIKES.get(n, 1.0), score=STILL)
curve("a loss that grows by one order", entropy=FALLING, critic_loss=lambda n: 10 ** (n / 7000), score=STILL)
curve("a loss below its beginning", entropy=FALLING, critic_loss=lambda n: growing(n) if n > 100 else 1e6, score=STILL)
curve("learned before the first score", entropy=FALLING, score=noisy(flat(0.9), 0.05))
curve("learned by the second score", entropy=noisy(flat(1.1), 0.02), score=noisy(lambda n: -5 * (n <= 500), 0.5))
curve(
    "collapsed after the second score",
    **{"entropy": ramp(1.3, -7, 100, 3000), "score": noisy(lambda n: -5 * (n <= 500), 0.5)},
)
curve("one figure moves", entropy=noisy(flat(1.1), 0.02), score=STILL, other=noisy(ramp(0, 1, 0, 9000), 0.1))
curve("a random policy early on", last=4500, entropy=flat(1.38), score=RISING)
curve("a random policy until the middle", entropy=ramp(1.38, 0.5, 4000, 7000), score=RISING)
curve("random again at the end", entropy=lambda n: 1.38 if n > 7000 else 0.5, score=RISING)
curve("few scores", last=5000, every=600, entropy=noisy(flat(1.1), 0.02), score=STILL)
curve("three scores", every=3000, entropy=flat(1.38), critic_loss=growing, score=flat(0.0))
curve("five scores", every=2000, entropy=flat(-7.0), score=flat(0.0))
curve("a narrow policy that learns", entropy=ramp(1.3, -7, 100, 3000), score=RISING)
curve(
    "a converged policy of moves",
    config=MAPPO,
    **{"entropy": ramp(1.4, 0.05, 0, 4000), "score": noisy(flat(0.97), 0.01), "return_": ramp(-1, 3, 0, 400)},
)
curve("masks close moves", config=MAPPO, entropy=noisy(ramp(1.43, 0.9, 0, 8000), 0.01), score=RISING)
curve("a metric that is missing", score=RISING)
curve("no number", entropy=flat(math.nan), critic_loss=flat(math.inf), score=RISING)


def verdicts() -> dict[str, set[str]]:
    """Return the symptoms that each run showed at any of its evaluations."""
    return {name: set(watch(*case)) for name, case in CURVES.items()}


def watch(rows: Rows, config: Config) -> dict[str, Finding]:
    """Return the first finding of each symptom, as a run finds it."""
    result: dict[str, Finding] = {}
    for at, row in enumerate(rows, 1):
        if any(name.startswith("eval/") for name in row):
            result = {each.symptom: each for each in findings(rows[:at], config)} | result
    return result


def test_each_symptom_and_no_false_alarm() -> None:
    assert verdicts() == EXPECTED


MUTANTS: dict[str, dict[str, Any]] = {
    **{"judged at once": {"HALF": 0.0}, "never near": {"NEAR": 1.01}, "always near": {"NEAR": 0.5}},
    **{"all is narrow": {"NARROW": 2.0}, "nothing is narrow": {"NARROW": -1.0}, "one row suffices": {"ROWS": 1}},
    **{"growth of any size": {"GROWTH": 1.0}, "growth without end": {"GROWTH": 1e30}, "any pace": {"PACE": 0.0}},
    **{"no pace": {"PACE": 1e30}, "few scores suffice": {"MANY": 4}, "one score suffices": {"FEW": 1}},
    **{
        "some scores suffice": {"SOME": 4},
        "no scores suffice": {"MANY": 10**6},
        "noise is movement": {"NOISE": 0.0},
        "nothing moves": {"NOISE": 1e30},
    },
    **{"a changed policy is as random": {"SAME": 1e9}, "no policy is as random": {"SAME": -1.0}},
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_threshold_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in MUTANTS[name].items():
        assert hasattr(diagnostics, constant)
        monkeypatch.setattr(diagnostics, constant, value)
    assert verdicts() != EXPECTED


def test_an_inverted_rule_and_a_window_too_short_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(diagnostics, "min", max, raising=False)  # one piece near the maximum suffices
        assert verdicts() != EXPECTED
    with monkeypatch.context() as patch:
        patch.setattr(diagnostics, "median", lambda values: list(values)[-1])  # single rows, which may be far off
        assert verdicts() != EXPECTED
    with monkeypatch.context() as patch:
        patch.setattr(diagnostics, "changes", lambda curve: [-each for each in changes(curve)])
        assert verdicts() != EXPECTED


class TestTexts:
    def test_figures_and_remedies(self) -> None:
        texts = {name: [each.text for each in watch(*CURVES[name]).values()] for name in CURVES if EXPECTED[name]}
        assert texts["a temperature that is too high"] == [
            "the policy's entropy stayed at 97 % of its maximum, 1.34 of 1.39 nats, from update 2800 to 5500; "
            "try alpha_lr=0.01 (now 0.001)"
        ]
        (text,) = texts["a target above what masks allow"]
        assert text.startswith("the target entropy is 14")
        assert text.endswith(" % of the largest one that the legal moves allow, so the policy becomes random")
        (text,) = texts["moves that collapse"]
        assert text.startswith(
            "the policy's entropy collapsed to 0.08 nats, of 0 to 1.61, and the score did not rise: "
        )
        assert text.endswith("; try entropy=0.1 (now 0.01)")
        (text,) = texts["scores that are equal"]
        assert text == "no figure moved in 10 evaluations: the score was 0 at first, then 0 to 0"  # rewards are scaled
        (text,) = texts["divergence"]
        assert text.startswith("critic_loss grows without bound: ")
        assert text.endswith("; try critic_lr=0.0009 (now 0.003)")

    def test_the_next_remedy_where_the_first_is_used_up(self) -> None:
        rows = CURVES["a temperature that is too high"][0]
        for layer, text in (
            ({"alpha": 10.0}, "; try alpha=0.1 (now 10) in a new run"),
            ({"alpha_lr": 1e-2}, "; try alpha=0.01 (now 0.1) in a new run"),
            ({"alpha_lr": 1e-2, "alpha": 1e-4, "reward_scale": 1.0}, "; try reward_scale=10 (now 1) in a new run"),
            ({"alpha_lr": 1e-2, "alpha": 1e-4}, ""),
            ({"alpha_lr": 1e-2, "alpha": 1e-4, "reward_scale": 1e4}, ""),
            ({"target_entropy": 1.3}, "; try target_entropy=-2 (now 1.3)"),
        ):
            (result,) = findings(rows, configure("spread", layer))
            assert result.text.endswith(f"to 10000{text}")

    def test_a_learner_that_says_nothing(self) -> None:
        algorithm = type("Silent", (MASAC.task.algorithm,), {"symptoms": Symptoms()})
        silent = replace(MASAC, task=replace(MASAC.task, algorithm=algorithm))
        (result,) = findings(CURVES["scores that are equal"][0], silent)
        assert (result.symptom, result.text.endswith("then 0 to 0")) == ("scores_still", True)
        assert findings(CURVES["a temperature that is too high"][0], silent) == []
        assert findings([], MASAC) == []

    def test_one_of_several_seeds(self) -> None:
        config = configure("spread", {"runs": 3, "seed": 5})
        rows = make_rows(entropy=flat(0.0), score=RISING)
        for row in rows:
            row["each"] = {"entropy": [-1.0, 1.37, 0.0]}
            if "eval/covered" in row:
                row["each"] |= {"eval/covered": [row["eval/covered"]] * 3, "eval/collisions": [0.0] * 3}
        (result,) = findings(rows, config)
        assert result.text.startswith("in 1 of 3 seeds, such as 6, the policy's entropy stayed at 99 % of")
        for row in rows:
            del row["each"]  # as in older logs, which hold means alone
        assert findings(rows, config) == []

    def test_the_share_of_a_run_by_time(self) -> None:
        rows = make_rows(entropy=flat(1.38), score=RISING)  # takes 100 s
        assert findings(rows, configure("spread", {"minutes": 10.0})) == []
        assert len(findings(rows, configure("spread", {"minutes": 2.0}))) == 1


def pearson(values: Sequence[float]) -> float:
    """Return the correlation of values with their position, by its definition."""
    count = len(values)
    x, y = ([value - sum(each) / count for value in each] for each in (range(count), values))
    products = [sum(a * b for a, b in zip(*pair, strict=True)) for pair in ((x, y), (x, x), (y, y))]
    return products[0] / math.sqrt(products[1] * products[2])


class TestCurves:
    def test_quarters(self) -> None:
        points = [Point(update, 0.0) for update in range(10)]
        assert [[point.update for point in part] for part in quarters(points)] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]

    def test_changes_in_units_of_noise(self) -> None:
        values = [0, 1, 0, 1, 5, 6, 5, 6, 10, 11, 10, 11, 0, 1, 0, 1]
        points = [Point(at, float(value)) for at, value in enumerate(values)]
        noise = (1 / math.sqrt(2)) / 0.6745  # neighbours are 1 apart; values are 0.5 from the medians of their quarters
        assert changes(points)[:3] == pytest.approx([5.5 / 1.5 / noise, 10.5 / 1.5 / noise, 0.5 / 1.5 / noise])
        assert changes(points)[3:6] == pytest.approx([5 / noise, 10 / noise, 0])
        assert changes(points)[6] == pytest.approx(4 * pearson(values))
        assert changes(points[:3]) == []
        assert changes([Point(at, 2.0) for at in range(8)]) == [0] * 7
        assert min(changes([Point(at, float(at > 1)) for at in range(8)])[:6]) > 1e100

    def test_a_slow_rise_is_a_trend(self) -> None:
        values = [-0.14, 0.23, 0.08, 0.29, 0.4, 0.36, 0.3, 0.24, 0.43, 0.69]
        *quarterly, trend = changes([Point(at, value) for at, value in enumerate(values)])
        assert max(quarterly) < diagnostics.NOISE < trend

    def test_a_straight_line_moves(self) -> None:
        assert changes([Point(at, float(at)) for at in range(12)])[-1] > diagnostics.NOISE


def recorded() -> Iterator[tuple[str, list[float]]]:
    """Yield the curves of scores in the records."""
    for row in json.loads((ROOT / "figures/records/bench_learning.json").read_text())["rows"]:
        yield row["setting"], [point[2] for point in row["curve"]]
    for row in json.loads((ROOT / "figures/records/harm.json").read_text())["rows"]:
        yield row["variant"], row["curve"]


def test_recorded_curves_are_healthy() -> None:
    curves = list(recorded())
    assert len(curves) == 58
    for _, values in curves:
        rows = make_rows(len(values) * 500, entropy=FALLING, score=lambda update, own=values: own[update // 500 - 1])
        assert watch(rows, MASAC) == {}


class TestRecords:
    ENTRY = {"symptom": "entropy_low", "update": 30, "text": "x"}  # noqa: RUF012 - never changed

    def test_what_is_written_is_read(self) -> None:
        assert parse([self.ENTRY]) == [Finding("entropy_low", 30, "x")]
        assert [asdict(each) for each in parse([self.ENTRY], 30)] == [self.ENTRY]
        assert parse([self.ENTRY], 29) == []  # of rows that will be written again

    @pytest.mark.parametrize(
        "damaged",
        [
            *(None, 3, {"a": 1}, [3], [[]], [{}], [{**ENTRY, "symptom": []}], [{**ENTRY, "symptom": "x"}]),
            *([{**ENTRY, "update": "30"}], [{**ENTRY, "update": True}], [{**ENTRY, "text": 3}]),
        ],
    )
    def test_damage_is_left_out(self, damaged: Any) -> None:
        assert parse(damaged) == []


# A temperature a thousand times too large: the policy's entropy stays at its maximum from the first updates on.
HOT = {
    **{"alpha": 1000.0, "lr": 0.01, "updates": 60, "log_every": 1, "evaluate_every": 7, "evaluate_episodes": 1},
    **{"batch": 64, "capacity": 128, "learning_starts": 64},
}


def hot() -> Config:
    return configure("spread", sizes("spread"), HOT)


def train(run: Run, until: int = -1) -> list[str]:
    """Train up to an update, or to the end, and return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for progress in run.train():
            if progress.number == until:
                run.stop()
    return [str(each.message) for each in caught if each.category is TrainingWarning]


class TestRun:
    def test_one_warning_and_one_entry(self, tmp_path: Path) -> None:
        run = Run(hot(), tmp_path / "run")
        (text,) = train(run)
        record = json.loads((tmp_path / "run" / "run.json").read_text())
        (entry,) = record["symptoms"]
        assert entry == asdict(run.symptoms[0])
        assert entry["symptom"] == "entropy_high"
        assert text == f"update {entry['update']}: {entry['text']}"
        assert entry["update"] == 35  # of 60, and the fifth score
        assert entry["text"].endswith("; try alpha=0.1 (now 1e+03) in a new run")

    def test_a_healthy_run_is_silent(self) -> None:
        run = Run(configure("spread", sizes("spread"), {**HOT, "alpha": 1e-8, "lr": 1e-2}))
        assert train(run) == []
        assert run.symptoms == []

    def test_results_are_the_same_without_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = Run(hot())
        assert len(train(run)) == 1
        monkeypatch.setattr(diagnostics, "RULES", {})
        other = Run(hot())
        assert train(other) == []
        assert run.digest == other.digest

    @pytest.mark.parametrize("stop", [10, 59])
    def test_a_resumed_run_neither_repeats_nor_loses_a_warning(self, tmp_path: Path, stop: int) -> None:
        whole, part = Run(hot(), tmp_path / "whole"), Run(hot(), tmp_path / "part")
        expected = train(whole)
        first = train(part, stop)
        resumed = Run.resume(tmp_path / "part")
        assert resumed.symptoms == part.symptoms
        assert first + train(resumed) == expected
        assert (len(first), len(expected)) == (int(stop == 59), 1)
        assert resumed.digest == whole.digest
        assert resumed.symptoms == whole.symptoms
        assert resumed.parts.not_exact_reasons == []

    def test_a_warning_after_the_last_checkpoint_comes_again(self, tmp_path: Path) -> None:
        run = Run(hot(), tmp_path / "run")
        train(run)
        path = tmp_path / "run" / "run.json"
        (entry,) = json.loads(path.read_text())["symptoms"]
        for update, count in ((60, 1), (61, 0)):
            path.write_text(json.dumps({"symptoms": [{**entry, "update": update}]}))
            assert len(Run.resume(tmp_path / "run").symptoms) == count

    def test_a_run_in_memory_that_goes_on(self) -> None:
        run = Run(hot())
        assert (len(train(run, 40)), len(train(run))) == (1, 0)
