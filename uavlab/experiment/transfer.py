"""Transfer: how a policy that was trained on teams of one size does in others, or at each stage of a curriculum.

Nothing is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from uavlab.core.cards import Table
from uavlab.core.errors import ConfigError
from uavlab.core.statistics import DRAWS, ENDS, named, named_text, of_runs, student
from uavlab.core.text import one_line
from uavlab.experiment.config import configure
from uavlab.experiment.curriculum import progression
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.scores import Figures, measure, measure_baseline

FAILED = 0.5  # ratio below which a transfer counts as failed: the published threshold


@dataclass(frozen=True, repr=False)
class Transfer:
    """Scores by size or stage; ``print`` shows them as a table.

    >>> table = ul.transfer(run, [1, 3], episodes=4)
    >>> table.metric, [row["size"] for row in table.rows]
    ('completion', [1, 3])

    Attributes:
        kind: What a row is: a ``size`` or a ``stage``.
        metric: Name of the figure that is compared.
        home: Its mean, with the ends of its 95 % interval, on the run's own evaluation task.
        rows: For each size or stage the ``settings`` that it changes, ``score`` and ``ratio`` to that at home, each
            with its 95 % interval (mean, low, high; a ratio is None where home is 0); ``plans``, scores of baselines by
            name; and ``over``, for each of them the ratios of all figures of the policy to those of the baseline, in
            the same episodes; those of the score are first.
    """

    kind: str
    metric: str
    home: dict[str, float]
    rows: tuple[dict[str, Any], ...]

    def __repr__(self) -> str:
        """Return a line for each size or stage, then a line for each of them and each baseline."""
        plans = [*self.rows[0]["plans"]]
        rows = [("home", named_text(self.home), "", *("" for _ in plans))]
        for row in self.rows:
            scores = [named_text(row["plans"][plan]) for plan in plans]
            rows.append((row[self.kind], named_text(row["score"]), _ratio_text(row["ratio"]), *scores))
        table = Table((self.kind, self.metric, "ratio to home", *plans), rows)
        lines = table.lines("{:>6} {:>26} {:>26}" + "{:>26}" * len(plans))
        for plan in plans:
            for row in self.rows:
                ratios = [f"{one_line(name)} {_ratio_text(ratio)}" for name, ratio in row["over"][plan].items()]
                lines.append(f"{row[self.kind]:6} over {one_line(plan)}: {', '.join(ratios)}")
        return "\n".join([*lines, *([self.advice] if self.failed else [])])

    @property
    def failed(self) -> list[int]:
        """The sizes or stages whose score is below ``FAILED`` of that at home; none where home is not above 0."""
        ratios = {row[self.kind]: row["ratio"] for row in self.rows}
        return [size for size, of in ratios.items() if of and self.home["mean"] > 0 and of["mean"] < FAILED]

    @property
    def advice(self) -> str:
        """What to try where a policy fails."""
        sizes, names = ", ".join(map(str, self.failed)), ", ".join(self.rows[0]["settings"])
        return (
            f"failed, below {FAILED:g} of home: {self.kind} {sizes}. Train on more sizes ({names}; a curriculum) and "
            "on worlds as varied as those to act in, and see that observations stay in the range of training. Compare "
            "with a plan, because larger worlds may be harder for any policy."
        )


class Place(NamedTuple):
    """A task on which a policy is scored: the number of its size or stage, the settings that differ, and the task."""

    number: int
    settings: dict[str, Any]
    env: Any


def places_by_size(env: Any, sizes: Sequence[int]) -> list[Place]:
    """Return a task with teams of each size."""
    names = getattr(env, "sizes", ())
    if not names:
        raise ConfigError(
            f"transfer: {type(env).__name__} does not say which settings are sizes of a team; name them in its class: "
            "sizes = (NAME, ...)."
        )
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"transfer: got sizes {list(sizes)}; expected whole numbers from 1 on.")
    own = {name: isinstance(getattr(env, name), tuple) for name in names if getattr(env, name) is not None}
    settings = {n: {name: (n, n) if limits else n for name, limits in own.items()} for n in sizes}
    return [Place(size, values, resized(env, values)) for size, values in settings.items()]


def places_by_stage(env: Any, preset: str) -> list[Place]:
    """Return the task of each stage of a preset's curriculum, as policies are evaluated on it.

    A policy perceives there as it did in training: by the settings of ``env`` that its class names as ``perception``.
    """
    config = configure(preset)
    steps = progression(config, [0])
    if steps is None or type(config.env) is not type(env):
        got = "no curriculum" if steps is None else f"a curriculum of {type(config.env).__name__}"
        raise ConfigError(f"transfer: {preset} has {got}; expected a preset with one of {type(env).__name__}.")
    own = {name: getattr(env, name) for name in getattr(env, "perception", ())}
    stages = [{name: own.get(name, value) for name, value in stage.settings.items()} for stage in steps.plan.stages]
    tasks = [resized(task, own) for task in steps.scored]
    return [Place(number, *place) for number, place in enumerate(zip(stages, tasks, strict=True), 1)]


def transfer(
    trained: TrainedPolicy,
    places: Sequence[Place],
    kind: str,
    count: int,
    seed: int,
    mean_action: bool,
    plans: Sequence[str] = (),
) -> Transfer:
    """Score a policy elsewhere, ``count`` episodes of each seed in each place; ``kind`` says what places are."""
    config = trained.config
    known = [metric.name for metric in config.evaluation.metrics]
    names = [name for name in config.evaluation.score if name in known]
    names += [name for name in known if name not in names]
    home = _numbers(measure(trained, count, seed, mean_action))[names[0]]
    rows = []
    for place in places:
        figures = _numbers(measure(trained, count, seed, mean_action, place.env))
        others = {plan: _numbers(measure_baseline(config, plan, count, seed, place.env)) for plan in plans}
        rows.append(
            {
                kind: place.number,
                "settings": place.settings,
                "score": named(of_runs(figures[names[0]])),
                "ratio": ratio(figures[names[0]], home),
                "plans": {plan: named(of_runs(scored[names[0]])) for plan, scored in others.items()},
                "over": {
                    plan: {name: ratio(figures[name], scored[name], paired=True) for name in names}
                    for plan, scored in others.items()
                },
            }
        )
    return Transfer(kind, names[0], named(of_runs(home)), tuple(rows))


def _numbers(figures: Figures) -> dict[str, np.ndarray]:
    return {name: figure.double().cpu().numpy() for name, figure in figures.items()}


def resized(env: Any, settings: dict[str, Any]) -> Any:
    """Return an environment with other settings."""
    for fields, holds, message in getattr(env, "rules", ()):
        given = {**vars(env), **settings}
        if all(name in given for name in fields) and not holds(*(given[name] for name in fields)):
            raise ConfigError(f"transfer: {message.format(*(given[name] for name in fields))}.")
    return replace(env, **settings)


def ratio(figures: np.ndarray, other: np.ndarray, paired: bool = False) -> dict[str, float] | None:
    """Return the ratio of two means (runs, episodes), with its interval; None where the second one is, or may be, 0.

    Of several runs the interval is Student's of the ratios of runs; of one run both means are bootstrapped, over the
    same episodes where they are ``paired``.
    """
    if not other.mean(1).all():
        return None
    if len(figures) > 1:
        return named(student(figures.mean(1) / other.mean(1)))
    rng = np.random.default_rng(0)
    first, second = (rng.integers(sample.shape[1], size=(DRAWS, sample.shape[1])) for sample in (figures, other))
    draws = [figures[0][first].mean(1), other[0][first if paired else second].mean(1)]
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.quantile(draws[0] / draws[1], ENDS)
    known = np.isfinite(low) and np.isfinite(high)
    return named((float(figures.mean() / other.mean()), float(low), float(high))) if known else None


def _ratio_text(ratio: dict[str, float] | None) -> str:
    return "no ratio to 0" if ratio is None else named_text(ratio)
