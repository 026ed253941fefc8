"""Rules by which a run says what ails it, from the rows of metrics that it recorded.

Each rule looks at the curves of one seed, because means over seeds hide one that fails. Rows are judged where the
policy was scored. Curves are compared by medians of pieces, because single rows of a healthy run may be far off.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import correlation, median
from typing import Any, NamedTuple

from uavlab.core.errors import TrainingWarning
from uavlab.core.registry import Resume
from uavlab.core.symptoms import Range, Symptom, Symptoms
from uavlab.experiment.config import Config
from uavlab.experiment.settings import settings_of

KEYS = {"symptom", "update", "text"}  # of an entry of ``run.json``
SCORE = "eval/"  # how names of scores begin
HALF = 0.5  # of the planned run: before, an entropy at its maximum is no symptom
NEAR = 0.95  # of the largest entropy: at least so much of it is at the maximum
NARROW = 0.1  # of the range of the entropy: at most so much above its lower end is a collapse
GROWTH, PACE = 10.0, 1.5  # of the loss: from the first to the last quarter, and at least from each to the next
FEW, SOME, MANY = 4, 6, 10  # evaluations that an entropy at its maximum, a collapse and scores that are still take
ROWS = 8  # rows of a metric that are judged together
NOISE = 2.0  # deviations of a score within a quarter of the run that quarters differ by chance
SINGLE = 1.5  # the noise of a difference from a single value, relative to that from a median
MEDIAN_OF_NORMAL = 0.6745  # the median distance from the mean, in standard deviations
TINY = 1e-300  # the noise of equal values
SAME = 0.1  # of the largest entropy: a policy whose entropy changed by less is as random as it was


class Point(NamedTuple):
    """A value of a curve."""

    update: int
    value: float


Curve = Sequence[Point]


@dataclass(frozen=True)
class Finding:
    """A symptom of a run.

    Attributes:
        symptom: Its name.
        update: The update at which it was found.
        text: What was seen, with figures, and the setting to try.
    """

    symptom: Symptom
    update: int
    text: str


@dataclass(frozen=True)
class Seed:
    """The curves of one seed.

    Attributes:
        share: Share of the planned run that is over.
        watch: What the learner describes.
        range: The range of its entropy.
        score: The weighted score by which policies are selected.
        figures: All figures of evaluations.
        returns: The returns of training.
        entropy: The entropy of its policy.
        target: The entropy that it aims at, relative to the largest one.
        loss: The loss that may grow.
    """

    share: float
    watch: Symptoms
    range: Range | None
    score: Curve
    figures: Mapping[str, Curve]
    returns: Curve
    entropy: Curve
    target: Curve
    loss: Curve


def findings(rows: Sequence[Mapping[str, Any]], config: Config) -> list[Finding]:
    """Return the symptoms in the rows of a run so far, each with the figures of the first seed that shows it."""
    result = []
    seeds = list(_seeds(rows, config)) if rows else []
    for symptom, rule in RULES.items():
        texts = {config.run.seed + at: text for at, seed in enumerate(seeds) if (text := rule(seed))}
        if texts:
            first, text = next(iter(texts.items()))
            where = f"in {len(texts)} of {len(seeds)} seeds, such as {first}, " if len(seeds) > 1 else ""
            result.append(Finding(symptom, rows[-1]["update"], f"{where}{text}{advice(symptom, config)}"))
    return result


def warn(rows: Sequence[Mapping[str, Any]], config: Config, known: Sequence[Finding]) -> list[Finding]:
    """Return known and new symptoms of a run so far, with one warning for each new one."""
    names = {each.symptom for each in known}
    new = [each for each in findings(rows, config) if each.symptom not in names]
    for each in new:
        warnings.warn(f"update {each.update}: {each.text}", TrainingWarning, stacklevel=2)
    return [*known, *new]


def advice(symptom: Symptom, config: Config) -> str:
    """Return the setting to try against a symptom, such as ``; try alpha=0.1 (now 1)``; empty if none is known."""
    hyper = config.learner
    resumable = {each.name for each in settings_of(type(hyper)) if each.resume is not Resume.NO}
    for remedy in config.task.algorithm.symptoms.remedies.get(symptom, ()):
        value = remedy.value(hyper, config.env.spec)
        if value is not None:
            how = "" if remedy.setting in resumable else " in a new run"
            text = value if isinstance(value, str) else f"{value:.3g}"
            return f"; try {remedy.setting}={text} (now {getattr(hyper, remedy.setting):.3g}){how}"
    return ""


def parse(listed: Any, last: float = math.inf) -> list[Finding]:
    """Return the findings that ``run.json`` lists, up to update ``last``; what is damaged is left out."""
    entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    complete = [Finding(each["symptom"], each["update"], each["text"]) for each in entries if each.keys() >= KEYS]
    return [each for each in complete if _is_intact(each) and each.update <= last]


def _is_intact(finding: Finding) -> bool:
    known = isinstance(finding.symptom, str) and finding.symptom in RULES
    return known and type(finding.update) is int and isinstance(finding.text, str)


def target_high(seed: Seed) -> str:
    """Return what is wrong if the entropy that a learner aims at is near or above the largest one, or beyond."""
    late = [point.value for point in seed.target[-ROWS:]]
    if len(late) < ROWS or min(late) < NEAR:
        return ""
    return (
        f"the target entropy is {100 * median(late):.0f} % of the largest one that the legal moves allow, so the "
        "policy becomes random"
    )


def entropy_high(seed: Seed) -> str:
    """Return what is wrong if the entropy was near its maximum throughout the later half of the run so far.

    Where the learner aims at no less, that is the symptom.
    """
    late = [point for point in seed.entropy if 2 * point.update >= seed.entropy[-1].update]
    if seed.range is None or seed.share < HALF or len(seed.score) < FEW or len(late) < ROWS or target_high(seed):
        return ""
    top = seed.range.high
    if min(levels(late)) < top - (1 - NEAR) * abs(top):
        return ""
    level = median(point.value for point in late)
    share = f"{min(100 * level / top, 100):.0f} % of " if top > 0 else ""
    return (
        f"the policy's entropy stayed at {share}its maximum, {level:.3g} of {top:.3g} nats, "
        f"from update {late[0].update} to {late[-1].update}"
    )


def entropy_low(seed: Seed) -> str:
    """Return what is wrong if the entropy is near its minimum in the last quarter, and no score or return rose."""
    bounds = seed.range
    if bounds is None or len(seed.score) < SOME or len(seed.entropy) < ROWS:
        return ""
    level = levels(seed.entropy)[-1]
    if level > bounds.low + NARROW * (bounds.high - bounds.low):
        return ""
    if any(change > NOISE for gain in _gains(seed) for change in gain):
        return ""
    first, *_, last = levels(seed.score)
    return (
        f"the policy's entropy collapsed to {level:.3g} nats, of {bounds.low:.3g} to {bounds.high:.3g}, and the score "
        f"did not rise: {first:.3g} at first, {last:.3g} near update {seed.score[-1].update}"
    )


def loss_grows(seed: Seed) -> str:
    """Return what is wrong if the loss grew by orders, quarter by quarter, after the first fifth of the run so far.

    A loss that grows with score or returns is no symptom: better policies earn more, and errors grow with values.
    """
    late = [point for point in seed.loss if 5 * point.update >= seed.loss[-1].update]
    if len(late) < 2 * ROWS or len(seed.score) < FEW:
        return ""
    first, *_, last = each = levels(late)
    early = max((point.value for point in seed.loss[: -len(late)]), default=0.0)
    steady = first > 0 and all(after >= PACE * before for before, after in pairwise(each))
    better = any(change > NOISE for gain in _gains(seed) for change in gain[-2:])  # the last quarter, and the trend
    if not steady or last < max(GROWTH * first, early) or better:
        return ""
    return (
        f"{seed.watch.loss} grows without bound: {first:.3g} near update {late[0].update}, "
        f"{last:.3g} near update {late[-1].update}"
    )


def scores_still(seed: Seed) -> str:
    """Return what is wrong if no figure of many evaluations moved: all are equal, or within noise of the first ones.

    Within noise alone is no symptom of a policy that changed, which may have learned before its first score. So its
    entropy must be as it was; where a learner has none, figures must be equal.
    """
    count, values = len(seed.score), [point.value for point in seed.score]
    if count < MANY:
        return ""
    equal = all(len({point.value for point in curve}) == 1 for curve in seed.figures.values())
    moved = any(abs(change) > NOISE for curve in seed.figures.values() for change in changes(curve))
    if not equal and (moved or not _as_random_as_before(seed)):
        return ""
    return (
        f"no figure moved in {count} evaluations: the score was {values[0]:.3g} at first, then {min(values):.3g} to "
        f"{max(values):.3g}"
    )


RULES: Mapping[Symptom, Callable[[Seed], str]] = {
    "target_high": target_high,
    "entropy_high": entropy_high,
    "entropy_low": entropy_low,
    "loss_grows": loss_grows,
    "scores_still": scores_still,
}


def quarters(curve: Curve) -> tuple[Curve, Curve, Curve, Curve]:
    """Split a curve into four pieces of equal length; values left over belong to the later ones."""
    first, second, third = (len(curve) * part // 4 for part in (1, 2, 3))
    return curve[:first], curve[first:second], curve[second:third], curve[third:]


def levels(curve: Curve) -> list[float]:
    """Return the median of each quarter of a curve of at least four points."""
    return [median(point.value for point in part) for part in quarters(curve)]


def changes(curve: Curve) -> list[float]:
    """Return how a curve changes, in units of its noise; up to ``NOISE`` it may be chance.

    These are differences of each later quarter from the first value, which is noisier than a median and counts less; of
    each later quarter from the first one; and the trend, the correlation with time.

    Noise is a standard deviation, by medians of two kinds of distances: of values from their quarter's median, and
    between neighbours, over the square root of 2. The first is too small for few values, the second for smooth curves.
    Fewer than four points return nothing.
    """
    if len(curve) < 4:
        return []
    first, *later = each = levels(curve)
    values, pairs = [point.value for point in curve], zip(quarters(curve), each, strict=True)
    apart = median(abs(point.value - level) for part, level in pairs for point in part)
    between = median(abs(after - before) for before, after in pairwise(values)) / math.sqrt(2)
    noise = max(apart, between, TINY) / MEDIAN_OF_NORMAL
    trend = correlation(range(len(values)), values) * math.sqrt(len(values)) if min(values) < max(values) else 0.0
    single = [(level - values[0]) / (SINGLE * noise) for level in later]
    return [*single, *((level - first) / noise for level in later), trend]


def _gains(seed: Seed) -> list[list[float]]:
    """Return the changes of what rises where a policy becomes better: score, and returns of evaluations and training.

    The first value of training is that of an untrained policy, so a run that learned before its first score has risen.
    """
    return [changes(curve) for curve in (seed.score, seed.figures.get(f"{SCORE}return", ()), seed.returns)]


def _as_random_as_before(seed: Seed) -> bool:
    if seed.range is None or len(seed.entropy) < ROWS:
        return False
    first, last = seed.entropy[0].value, median(point.value for point in quarters(seed.entropy)[-1])
    return abs(last - first) <= SAME * abs(seed.range.high)


def _seeds(rows: Sequence[Mapping[str, Any]], config: Config) -> Iterator[Seed]:
    watch, run, last = config.task.algorithm.symptoms, config.run, rows[-1]
    shares = [last["update"] / run.updates if run.updates else 0.0]
    shares += [last["seconds"] / (60 * run.minutes)] if run.minutes else []
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(SCORE))
    for seed in range(run.runs):
        figures = {name: _curve(rows, name, seed) for name in names}
        scores = [(weight, dict(figures.get(f"{SCORE}{name}", ()))) for name, weight in config.evaluation.score.items()]
        scored = [update for update in scores[0][1] if all(update in values for _, values in scores)]
        yield Seed(
            share=max(shares),
            watch=watch,
            range=_range(rows, config, seed),
            score=[Point(update, sum(weight * values[update] for weight, values in scores)) for update in scored],
            figures=figures,
            returns=_curve(rows, watch.returns, seed) if watch.returns else (),
            entropy=_curve(rows, watch.entropy.metric, seed) if watch.entropy else (),
            target=_curve(rows, watch.entropy.target, seed) if watch.entropy else (),
            loss=_curve(rows, watch.loss, seed) if watch.loss else (),
        )


def _range(rows: Sequence[Mapping[str, Any]], config: Config, seed: int) -> Range | None:
    """Return the range of the entropy, up to the largest one under masks of late; None if it is not known, or empty."""
    entropy = config.task.algorithm.symptoms.entropy
    if entropy is None:
        return None
    low, high = entropy.range(config.learner, config.env.spec)
    if limits := _curve(rows, entropy.limit, seed):
        high = median(point.value for point in limits[len(limits) // 2 :])
    return Range(low, high) if high > low else None


def _curve(rows: Sequence[Mapping[str, Any]], name: str, seed: int) -> Curve:
    """Return the finite values of a metric for a seed; older logs hold means alone."""
    values = ((row["update"], row.get("each", {}).get(name) or [row[name]]) for row in rows if name in row)
    each = (Point(update, value[min(seed, len(value) - 1)]) for update, value in values)
    return [point for point in each if math.isfinite(point.value)]
