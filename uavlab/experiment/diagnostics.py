"""What a run says of itself, by the rows of metrics that it recorded: alarms, symptoms and reports.

Each rule judges the curves of one seed, because means over seeds hide one that fails. An alarm is a limit that
somebody set for a figure. A symptom is one of ``RULES``, judged where the policy was scored; its curves are compared by
medians of pieces, because single rows of a healthy run may be far off.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import correlation, median
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Le

from uavlab.core.errors import TrainingWarning
from uavlab.core.registry import Resume, Settings
from uavlab.core.symptoms import Range, Symptom, Symptoms
from uavlab.experiment.settings import fields_of, problems_of, settings_of, strict_model

Row = Mapping[str, Any]
SCORE = "eval/"  # how names of scores begin
MEDIAN_OF_NORMAL = 0.6745  # the median distance from the median, in standard deviations

# alarms
FEWEST = 10  # rows before, without which there is no relative limit
SMALLEST = 0.01  # of the median: the least deviation, for figures that hardly varied
LIMITS = ("above", "below", "rise", "fall")

# symptoms
KEYS = {"symptom", "update", "text"}  # of an entry of ``run.json``
HALF = 0.5  # of the planned run: before, an entropy at its maximum is no symptom
NEAR = 0.95  # of the largest entropy: at least so much of it is at the maximum
NARROW = 0.1  # of the range of the entropy: at most so much above its lower end is a collapse
GROWTH, PACE = 10.0, 1.5  # of the loss: from the first to the last quarter, and at least from each to the next
FEW, SOME, MANY = 4, 6, 10  # evaluations that an entropy at its maximum, a collapse and scores that are still take
ROWS = 8  # rows of a metric that are judged together
NOISE = 2.0  # deviations of a score within a quarter of the run that quarters differ by chance
SINGLE = 1.5  # the noise of a difference from a single value, relative to that from a median
TINY = 1e-300  # the noise of equal values
SAME = 0.1  # of the largest entropy: a policy whose entropy changed by less is as random as it was

# reports
STALE = 10  # scores without a better one, from which on advice is due


class Point(NamedTuple):
    update: int
    value: float


Curve = Sequence[Point]


def seed_values(row: Row, name: str) -> Sequence[float]:
    """Return a metric of each seed; a row holds a list where there are several."""
    return row.get("each", {}).get(name) or [row[name]]


def curve_of(rows: Sequence[Row], name: str, seed: int, finite: bool = True) -> list[Point]:
    """Return the values of a metric for a seed, one for all where seeds share it; none for an empty name."""
    recorded = [(row["update"], seed_values(row, name)) for row in rows if name in row]
    points = [Point(update, values[min(seed, len(values) - 1)]) for update, values in recorded]
    return [point for point in points if math.isfinite(point.value) or not finite]


def is_scored(row: Row) -> bool:
    return any(name.startswith(SCORE) for name in row)


@dataclass(frozen=True)
class Alarm:
    """A limit of one figure: one of ``above``, ``below``, ``rise`` and ``fall`` is set.

    ``rise`` and ``fall`` are relative to the rows before, without those of former stages of a curriculum.

    Attributes:
        figure: Name in the rows of metrics, such as ``critic_loss`` or ``eval/completion``.
        above: It goes off if the figure is higher.
        below: It goes off if the figure is lower.
        rise: It goes off if the figure is more than so many robust deviations above the median of the rows before.
        fall: It goes off if it is more than so many below.
        rows: Rows in a row that hold the figure and are beyond a limit, with which the alarm goes off.
        window: Most rows before them with which ``rise`` and ``fall`` compare; fewer than 10 are not compared.
        stop: Whether the run then ends, as by Ctrl-C.
    """

    figure: str
    above: float | None = None
    below: float | None = None
    rise: Annotated[float, Gt(0), Le(1e6)] | None = None
    fall: Annotated[float, Gt(0), Le(1e6)] | None = None
    rows: Annotated[int, Ge(1), Le(100_000)] = 1
    window: Annotated[int, Ge(FEWEST), Le(100_000)] = 50
    stop: bool = False

    @property
    def relative(self) -> bool:
        return self.rise is not None or self.fall is not None

    @property
    def sign(self) -> int:
        """1 for a limit from above, -1 for one from below."""
        return 1 if self.above is not None or self.rise is not None else -1

    @property
    def limit(self) -> float:
        """The value, or the number of deviations with its sign, that a figure may reach."""
        (limit,) = (value for name in LIMITS if (value := getattr(self, name)) is not None)
        return self.sign * limit if self.relative else limit


def alarm_problems(tables: Sequence[Mapping[str, Any]] | None) -> list[str]:
    problems = []
    for number, table in enumerate(tables or [], 1):
        texts = problems_of(strict_model(fields_of(Alarm)), table)
        given = [f"{limit} {table[limit]}" for limit in LIMITS if table.get(limit) is not None]
        if len(given) != 1:
            texts.append(f"got {' and '.join(given) or 'no limit'}; expected one of {', '.join(LIMITS)}")
        problems += [f"alarm {number}: {text}" for text in texts]
    return problems


def check_alarms(rows: Sequence[Row], config: Settings, since: Sequence[int]) -> tuple[list[dict[str, Any]], bool]:
    """Warn of alarms that go off with the last row; return update and text of each, and whether one ends the run.

    With the first row that holds scores, warn of alarms whose figure no row holds.
    """
    alarms, found, texts, stop = [Alarm(**table) for table in config.run.alarms or ()], [], [], False
    if alarms and is_scored(rows[-1]) and not any(map(is_scored, rows[:-1])):
        known = {name for row in rows for name in row}
        lost = [(number, alarm.figure) for number, alarm in enumerate(alarms, 1) if alarm.figure not in known]
        has = ", ".join(sorted(known))
        texts += [f"alarm {number}: no row has {figure!r} so far; rows have {has}" for number, figure in lost]
    for alarm in alarms:
        if text := went_off(alarm, rows, since):
            found.append({"update": rows[-1]["update"], "text": text})
            stop = stop or alarm.stop
            texts.append(f"alarm: {text}{'; the run ends' if alarm.stop else ''}")
    for text in texts:
        warnings.warn(text, TrainingWarning, stacklevel=3)
    return found, stop


def went_off(alarm: Alarm, rows: Sequence[Row], since: Sequence[int] = ()) -> str:
    """Return why an alarm goes off with the last row; empty if it does not, or already did.

    Each seed is judged alone; ``rise`` and ``fall`` compare with no row before it came to its stage (``since``).
    """
    if not rows or alarm.figure not in rows[-1]:
        return ""
    seeds = len(seed_values(rows[-1], alarm.figure))
    for seed in range(seeds):
        points = curve_of(rows, alarm.figure, seed, finite=False)
        if alarm.relative and seed < len(since):
            points = [point for point in points if point.update > since[seed]]
        values = [point.value for point in points]
        if is_beyond(alarm, values) and not is_beyond(alarm, values[:-1]):
            where = f" (seed {seed + 1} of {seeds})" if seeds > 1 else ""
            times = f", for {alarm.rows} rows" if alarm.rows > 1 else ""
            return f"{alarm.figure} is {values[-1]:.4g}{where}, {_distance(alarm, values)}{times}"
    return ""


def is_beyond(alarm: Alarm, values: Sequence[float]) -> bool:
    """Return whether the last values of a seed are all beyond the limit of an alarm."""
    recent, before = _recent_and_before(alarm, values)
    if len(recent) < alarm.rows or (alarm.relative and sum(map(math.isfinite, before)) < FEWEST):
        return False
    distances = [deviations(value, before) for value in recent] if alarm.relative else recent
    return not any(alarm.sign * value <= alarm.sign * alarm.limit for value in distances)  # what is no number is beyond


def _recent_and_before(alarm: Alarm, values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return values[-alarm.rows :], values[: -alarm.rows][-alarm.window :]


def _distance(alarm: Alarm, values: Sequence[float]) -> str:
    """Return in words what the last value is beyond."""
    side, (_, before) = "above" if alarm.sign > 0 else "below", _recent_and_before(alarm, values)
    if not alarm.relative:
        return f"{side} {alarm.limit:g}"
    return f"{abs(deviations(values[-1], before)):.3g} deviations {side} the {len(before)} rows before"


def deviations(value: float, before: Sequence[float]) -> float:
    """Return the robust z-score of a value: its distance from the median of others that are finite, in deviations.

    A deviation is the median distance from the median over 0.6745, at least 1 % of the median; if it is 0, so is z.

    Source:
        Iglewicz and Hoaglin 1993, "How to Detect and Handle Outliers".

    >>> deviations(9.0, [1.0, 2.0, 3.0, 4.0, 5.0])
    4.047
    """
    finite = [number for number in before if math.isfinite(number)]
    middle = median(finite)
    spread = max(median(abs(number - middle) for number in finite), SMALLEST * abs(middle))
    return MEDIAN_OF_NORMAL * (value - middle) / spread if spread else 0.0


@dataclass(frozen=True)
class Finding:
    """A symptom of a run: what was seen, with figures, and the setting to try."""

    symptom: Symptom
    update: int
    text: str


@dataclass(frozen=True)
class Seed:
    """The curves of one seed."""

    share: float  # of the planned run that is over
    watch: Symptoms
    range: Range | None  # of the entropy
    score: Curve  # the weighted score by which policies are selected
    figures: Mapping[str, Curve]  # of evaluations
    returns: Curve  # of training
    entropy: Curve
    target: Curve  # the entropy that a learner aims at, relative to the largest one
    loss: Curve


def findings(rows: Sequence[Row], config: Settings) -> list[Finding]:
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


def new_findings(rows: Sequence[Row], config: Settings, known: Sequence[Finding]) -> list[Finding]:
    """Return the symptoms of a run so far that are not yet known, with a warning for each."""
    names = {finding.symptom for finding in known}
    new = [finding for finding in findings(rows, config) if finding.symptom not in names]
    for finding in new:
        warnings.warn(f"update {finding.update}: {finding.text}", TrainingWarning, stacklevel=2)
    return new


def advice(symptom: Symptom, config: Settings) -> str:
    """Return the setting to try against a symptom, such as ``; try alpha=0.1 (now 1)``; empty if none is known."""
    hyper = config.learner
    resumable = {setting.name for setting in settings_of(type(hyper)) if setting.resume is not Resume.NO}
    for remedy in config.task.algorithm.symptoms.remedies.get(symptom, ()):
        value = remedy.value(hyper, config.env.spec)
        if value is not None:
            how = "" if remedy.setting in resumable else " in a new run"
            text = value if isinstance(value, str) else f"{value:.3g}"
            return f"; try {remedy.setting}={text} (now {getattr(hyper, remedy.setting):.3g}){how}"
    return ""


def parse(listed: Any, last: float = math.inf) -> list[Finding]:
    """Return the findings that ``run.json`` lists, up to update ``last``; what is damaged is left out."""
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    known = [
        Finding(e["symptom"], e["update"], e["text"])
        for e in entries
        if e.get("symptom") in [*RULES] and e.keys() >= KEYS
    ]
    return [each for each in known if type(each.update) is int and each.update <= last and isinstance(each.text, str)]


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
    """Return what is wrong if the entropy was near its maximum throughout the later half, unless that is the aim."""
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
    """Return what is wrong if the loss grew by orders, quarter by quarter, after the first fifth of the run so far."""
    late = [point for point in seed.loss if 5 * point.update >= seed.loss[-1].update]
    if len(late) < 2 * ROWS or len(seed.score) < FEW:
        return ""
    first, *_, last = quarterly = levels(late)
    early = max((point.value for point in seed.loss[: -len(late)]), default=0.0)
    steady = first > 0 and all(after >= PACE * before for before, after in pairwise(quarterly))
    # Better policies earn more, and errors grow with values: here by the last quarter, and the trend.
    better = any(change > NOISE for gain in _gains(seed) for change in gain[-2:])
    if not steady or last < max(GROWTH * first, early) or better:
        return ""
    return (
        f"{seed.watch.loss} grows without bound: {first:.3g} near update {late[0].update}, "
        f"{last:.3g} near update {late[-1].update}"
    )


def scores_still(seed: Seed) -> str:
    """Return what is wrong if no figure of many evaluations moved: all are equal, or within noise of the first ones.

    A policy that changed may have learned before its first score; so within noise its entropy must be as it was.
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
    """Return how a curve of at least four points changes, in units of its noise; up to ``NOISE`` it may be chance.

    These are differences of each later quarter from the first value, which is noisier than a median and counts less; of
    each later quarter from the first one; and the trend, the correlation with time. Noise is the larger one of two
    standard deviations, by median distances of values from their quarter's median, which is too small for few values,
    and between neighbours, over the square root of 2, which is too small for smooth curves.
    """
    if len(curve) < 4:
        return []
    first, *later = quarterly = levels(curve)
    values, pairs = [point.value for point in curve], zip(quarters(curve), quarterly, strict=True)
    apart = median(abs(point.value - level) for part, level in pairs for point in part)
    between = median(abs(after - before) for before, after in pairwise(values)) / math.sqrt(2)
    noise = max(apart, between, TINY) / MEDIAN_OF_NORMAL
    trend = correlation(range(len(values)), values) * math.sqrt(len(values)) if min(values) < max(values) else 0.0
    single = [(level - values[0]) / (SINGLE * noise) for level in later]
    return [*single, *((level - first) / noise for level in later), trend]


def _gains(seed: Seed) -> list[list[float]]:
    """Return the changes of what rises with a better policy: score, and returns of evaluations and training."""
    return [changes(curve) for curve in (seed.score, seed.figures.get(f"{SCORE}return", ()), seed.returns)]


def _as_random_as_before(seed: Seed) -> bool:
    if seed.range is None or len(seed.entropy) < ROWS:
        return False
    return abs(levels(seed.entropy)[-1] - seed.entropy[0].value) <= SAME * abs(seed.range.high)


def _seeds(rows: Sequence[Row], config: Settings) -> Iterator[Seed]:
    watch, run, last = config.task.algorithm.symptoms, config.run, rows[-1]
    shares = [last["update"] / run.updates if run.updates else 0.0]
    shares += [last["seconds"] / (60 * run.minutes)] if run.minutes else []
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(SCORE))
    for seed in range(run.runs):
        figures = {name: curve_of(rows, name, seed) for name in names}
        scores = [(weight, dict(figures.get(f"{SCORE}{name}", ()))) for name, weight in config.evaluation.score.items()]
        scored = [update for update in scores[0][1] if all(update in values for _, values in scores)]
        yield Seed(
            share=max(shares),
            watch=watch,
            range=_range(rows, config, seed),
            score=[Point(update, sum(weight * values[update] for weight, values in scores)) for update in scored],
            figures=figures,
            returns=curve_of(rows, watch.returns, seed),
            entropy=curve_of(rows, watch.entropy.metric, seed) if watch.entropy else (),
            target=curve_of(rows, watch.entropy.target, seed) if watch.entropy else (),
            loss=curve_of(rows, watch.loss, seed),
        )


def _range(rows: Sequence[Row], config: Settings, seed: int) -> Range | None:
    """Return the range of the entropy, up to the largest one under masks of late; None if it is not known, or empty."""
    entropy = config.task.algorithm.symptoms.entropy
    if entropy is None:
        return None
    low, high = entropy.range(config.learner, config.env.spec)
    if limits := curve_of(rows, entropy.limit, seed):
        high = median(point.value for point in limits[len(limits) // 2 :])
    return Range(low, high) if high > low else None


def progress_report(run: Any, since: int) -> str:
    """Return the report of a run on what came after update ``since``, compared with as many updates before."""
    rows, length, config = run.recorder.rows, run.number - since, run.config
    before = [row for row in rows if since - length < row["update"] <= since]
    after = [row for row in rows if row["update"] > since]
    watch, (amount, unit) = config.task.algorithm.symptoms, config.task.collector.data_per_update(config)
    watched = [watch.returns, watch.loss, watch.entropy.metric if watch.entropy else ""]
    names = [*(f"{SCORE}{name}" for name in config.evaluation.score), *filter(None, watched)]
    target = f" of {config.run.updates}" if config.run.updates else ""
    rate = f", {amount * run.number / run.seconds:,.0f} {unit}/s" if run.seconds else ""
    pairs = zip(run.best_score.tolist(), run.best_team.updates[:, 0].tolist(), strict=True)
    highest = [f"{score:.4g} at update {update}" for score, update in pairs if score > -math.inf]
    stale = f", scored {run.parts.evals_since_best} times since" if run.parts.evals_since_best else ""
    scores = f"highest of {sum(map(is_scored, rows))} scores in training {', '.join(highest)}{stale}"
    return "; ".join(
        [
            f"update {run.number}{target}, {run.seconds / 60:.1f} min{rate}",
            *median_changes(before, after, names),
            scores if highest else "no score yet",
            *_suggestions(run),
            *(f"alarm at update {alarm['update']}: {alarm['text']}" for alarm in run.alarms if alarm["update"] > since),
            *(f"symptom since update {finding.update}: {finding.symptom}" for finding in run.symptoms),
        ]
    )


def median_changes(before: Sequence[Row], after: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return how the median of each metric moved from some rows to others; metrics without a value are left out."""
    texts = []
    for name in names:
        old, new = ([row[name] for row in rows if name in row] for rows in (before, after))
        if new:
            texts.append(f"{name} " + (f"{median(old):.4g} -> " if old else "") + f"{median(new):.4g}")
    return texts


def _suggestions(run: Any) -> list[str]:
    """Return what may help a run that has had no better score for long; it may as well have learned all it can."""
    if run.parts.evals_since_best < STALE:
        return []
    settings, hyper = run.config.run, run.config.learner
    tries = [f"entropy={10 * hyper.entropy:g} to explore more"] if getattr(hyper, "entropy", 0) else []
    tries += ["plateau={} to refine by smaller steps"] if settings.plateau is None else []
    tries += ["a curriculum to begin with easier worlds"] if settings.curriculum is None else []
    return [f"if it has not converged, try {', or '.join(tries)}"] if tries else []
