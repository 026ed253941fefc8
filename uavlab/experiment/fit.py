"""What suits this machine: worlds at the knee of their throughput, the largest batch that fits, and how long it takes.

All is measured by some updates and steps of a run that writes nothing, and leaves global random numbers as they are.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from statistics import mean, median
from typing import Any

from torch import Tensor

from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.rng import Streams, same_random_state
from uavlab.core.text import quote
from uavlab.evaluation import simulate
from uavlab.experiment import build
from uavlab.experiment.config import Config, RunConfig, configure
from uavlab.experiment.sizes import MOST, Say, sweep_worlds, trial_limit
from uavlab.learners.learner import Learner
from uavlab.profiling.batch_size import BatchSearch, fits, largest_batch
from uavlab.profiling.timing import time_steps
from uavlab.runtime.runtime import Runtime
from uavlab.training import training

MARGIN = 0.1  # share of worlds and rows that is left free
TOLERANCE = 0.02  # share by which a batch may be smaller than the largest, which saves trials
LEAST = 8  # rows of a batch, where so few are allowed
PASSES = ("epochs", "passes", "actor_passes")  # settings that change how long an update takes, not its memory
SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?(?:([kMGT]|[KMGT]i)?B)?", re.ASCII)
UNITS = {"k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
MOST_STEPS = 300  # measured for an estimate
TIMES = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))
ENOUGH = 1.5  # of a unit of time, below which the next smaller one is written
LONG = 5  # s of warm-up, of which the text speaks


@dataclass
class Fit:
    """What ``fit`` measured.

    >>> sizes = ul.Fit()
    >>> sizes.judge("batch", 8, good=True), str(sizes)
    (True, 'batch 8: fits')

    Attributes:
        say: Called with each line.
        settings: The sizes, by the names of their settings.
        trials: ``setting`` and ``value`` of each trial, with ``fits``, or with ``per_s`` in ``unit``.
        lines: What was tried; the last one has the settings as options of a command.
    """

    say: Say = field(default=lambda line: None, repr=False)
    settings: dict[str, int] = field(default_factory=dict)
    trials: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def note(self, line: str) -> None:
        self.lines.append(line)
        self.say(line)

    def judge(self, setting: str, value: int, good: bool) -> bool:
        """Add a trial of memory, and return whether it fits."""
        self.trials.append({"setting": setting, "value": value, "fits": good})
        self.note(f"{setting} {value}: {'fits' if good else 'does not fit'}")
        return good


def fit(
    config: Config,
    memory: int | str | None = None,
    most: int = MOST,
    margin: float = MARGIN,
    say: Say = lambda line: None,
) -> Fit:
    """Measure the worlds at the knee of their throughput, then the largest batch with them; see ``uavlab.fit``.

    ``say`` is called with each line. Memory is tried by two whole updates of a new run, with one pass each; what is
    larger by the margin has to fit.
    """
    limit = trial_limit(build.runtime(config.run).device) if memory is None else parse_memory(memory)
    result = Fit(say)
    with same_random_state():
        budget = _without_data(config, limit)
        if hasattr(config.source, "worlds"):
            config = _fit_worlds(config, budget, most, margin, result)
        else:
            result.note("worlds: none, because batches are read, not collected from worlds.")
        if hasattr(config.source, "batch"):
            _fit_batch(config, budget, most, margin, result)
        elif "minibatches" in config.values:
            result.note("batch: none, because an update learns from all steps of its worlds, in minibatches.")
            _fit_minibatches(config, budget, margin, result)
        else:
            result.note("batch: none, because an update learns from all steps of its worlds at once.")
    result.note(" ".join(f"--set {name}={value}" for name, value in result.settings.items()))
    return result


def parse_memory(text: int | str) -> int:
    """Return a number of bytes.

    >>> [parse_memory(text) for text in (4096, "4096", "512MB", "1.5 GiB")]
    [4096, 4096, 512000000, 1610612736]
    """
    known = SIZE.fullmatch(str(text).strip())
    count = 0 if known is None else int(float(known[1]) * UNITS.get(known[2] or "", 1))
    if count < 1:
        raise ConfigError(f"memory {quote(text)}: expected a number of bytes above 0, such as 512MB or 2GiB.")
    return count


def largest(
    config: Config,
    setting: str,
    low: int,
    high: int,
    margin: float = MARGIN,
    budget: int | None = None,
    tolerance: float = 0.0,
    on_trial: Callable[[int, bool], object] = lambda value, good: None,
) -> BatchSearch:
    """Return the largest value of a setting with which full updates fit, and the trials; see ``largest_batch``."""
    configure(config.preset, config.values, {setting: high})  # before any trial
    return largest_batch(
        lambda value: _updates(config, {setting: value}), low, high, margin, budget, tolerance, on_trial
    )


def _fit_worlds(config: Config, budget: int | None, most: int, margin: float, result: Fit) -> Config:
    """Return the run with the worlds at the knee, or with fewer where its updates do not fit."""
    sweep = sweep_worlds(config, _most(config, most, margin), budget, result.note)
    result.trials.extend(
        {"setting": "worlds", "value": worlds, "per_s": rate, "unit": sweep.unit}
        for worlds, rate in sweep.rates.items()
    )
    result.note(f"worlds: {sweep}")
    worlds = sweep.worlds
    while not result.judge("worlds", worlds, _holds(config, {"worlds": _more(worlds, margin)}, budget)):
        if worlds == 1:
            raise ResourceError("fit: an update with 1 world does not fit; lower batch, capacity, hidden or runs.")
        worlds //= 2
    result.settings["worlds"] = worlds
    return configure(config.preset, config.values, {"worlds": worlds})


def _fit_batch(config: Config, budget: int | None, most: int, margin: float, result: Fit) -> None:
    high = _most(config, most, margin)
    judge = partial(result.judge, "batch")
    search = largest(config, "batch", min(LEAST, high), high, margin, budget, TOLERANCE, judge)
    why = "the largest that was to be tried" if search.rows == high else f"{margin:.0%} less than what fits"
    result.note(f"batch: {search.rows} rows, {why}")
    result.settings["batch"] = search.rows


def _fit_minibatches(config: Config, budget: int | None, margin: float, result: Fit) -> None:
    """Search for the fewest minibatches, by doubling; those of the run are known to fit."""
    count, most = 1, config.values["minibatches"]
    worlds = _more(config.source.worlds, margin)
    while count < most and not result.judge(
        "minibatches", count, _holds(config, {"worlds": worlds, "minibatches": count}, budget)
    ):
        count = min(2 * count, most)
    result.settings["minibatches"] = count


def _more(value: int, margin: float) -> int:  # what must fit, so that a value leaves the margin free
    return math.ceil(value / (1 - margin))


def _most(config: Config, most: int, margin: float) -> int:
    """Return the largest number of worlds, or rows, whose trial replay can hold."""
    capacity = config.values.get("capacity")
    return most if capacity is None else max(1, min(most, math.floor(capacity * (1 - margin))))


def _holds(config: Config, values: dict[str, int], budget: int | None) -> bool:
    return fits(lambda _: _updates(config, values), 0, budget)


def _updates(config: Config, values: dict[str, int]) -> Callable[[], Any]:
    """Build a run with other values, few random steps and single passes; return a function that makes an update."""
    few = {"learning_starts": values.get("worlds", config.values.get("worlds")), **dict.fromkeys(PASSES, 1)}
    few = {name: value for name, value in few.items() if name in config.values}
    rt, rng, learner, source = build.assemble(configure(config.preset, config.values, few, values))
    steps = training(source, learner, rng, rt, 0, 10**9)

    def step() -> None:
        with rt.scope():
            next(steps)

    return step


def _without_data(config: Config, limit: int | None) -> int | None:
    """Return what a limit leaves for trials, which share data that the collector reads once, such as flights."""
    if limit is None:
        return None
    rt = build.runtime(config.run, config.toggles)
    first, again = (
        config.task.collector.measure_inputs(config, build.streams(config.run, rt.device), rt) for _ in range(2)
    )
    if (size := _tensor_bytes(first) if first is again else 0) >= limit:
        raise ResourceError(f"fit: {size:,} bytes of data do not fit into {limit:,}; allow more, or lower it.")
    return limit - size


def _tensor_bytes(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.nbytes
    return sum(_tensor_bytes(getattr(tree, field.name)) for field in fields(tree)) if is_dataclass(tree) else 0


@dataclass(frozen=True)
class Pace:
    """What was measured of a run."""

    measured: int  # updates
    seconds: float  # that these took
    size: str  # of these updates, such as ``4 of 16 worlds``; empty if they were like those of the run
    update_s: float  # typical time of an update
    warm_up_s: float  # time of building, compiling and all else that is done once
    score_s: float | None  # time of one score; None if it was not measured
    apart: str  # what is not in an estimate

    def estimate(self, run: RunConfig) -> "Estimate":
        """Return how long a run of this pace takes to its target of updates or minutes."""
        update_s = self.update_s + (self.score_s or 0) / run.evaluate_every
        limit = math.inf if run.minutes is None else max(1, math.ceil((60 * run.minutes - self.warm_up_s) / update_s))
        updates = int(min(limit, run.updates or math.inf))
        minutes = round((self.warm_up_s + update_s * updates) / 60, 3)
        return Estimate(**vars(self), minutes=minutes, updates=updates, most=run.patience is not None)


@dataclass(frozen=True)
class Estimate(Pace):
    """How long a run will take here."""

    minutes: float  # of training, with scores and all warm-up
    updates: int  # that the run will make
    most: bool  # the run may end earlier, because it has a ``patience``

    def __str__(self) -> str:
        what = f"{'at most ' * self.most}about {_duration(60 * self.minutes)} here for {self.updates:,} updates"
        warm_up = f", with {_duration(self.warm_up_s)} of warm-up" if self.warm_up_s >= LONG else ""
        how = f", from {self.measured} in {self.seconds:.1f} s" + (f" with {self.size}" if self.size else "")
        return what + warm_up + how + (f"; apart from {self.apart}" if self.apart else "")


def measure(config: Config, enough_s: float = 4.0) -> Pace:
    """Measure some updates of a run, for ``enough_s`` seconds after the first one, and a score for half as long."""
    trial = config.task.collector.trial(config)
    with same_random_state(), build.enough_memory():
        began = time.perf_counter()
        rt, rng, learner, source = build.assemble(trial.config)
        with rt.scope():
            steps = training(source, learner, rng, rt, 0, config.run.updates or 10**9)
            seconds = _time_steps(steps, rt, began, enough_s)
            scored = config.task.evaluation.flies
            first_step, score = _score_seconds(config, learner, rng, rt, enough_s / 2) if scored else (0.0, None)
    rest = seconds[1:] or seconds
    update_s = _typical(rest, rt.toggles.interval * rt.toggles.ratio)
    warm_up = max(0.0, sum(seconds) - update_s * len(seconds)) + first_step
    return Pace(len(rest), sum(rest), trial.size, trial.times * update_s, warm_up, score, trial.apart)


def _time_steps(steps: Iterator[object], rt: Runtime, began: float, enough_s: float) -> list[float]:
    """Return the time of the first step since ``began``, and of each later step (s)."""
    time_steps(steps, rt.device, 0.0)
    return [time.perf_counter() - began, *time_steps(steps, rt.device, enough_s, most=MOST_STEPS)]


def _score_seconds(config: Config, learner: Learner, rng: Streams, rt: Runtime, enough_s: float) -> tuple[float, float]:
    """Return the time of the first step of a score, and of a score in which no episode ends early (s)."""
    env, began = config.evaluation, time.perf_counter()
    policy = learner.policy(env.spec)
    steps = simulate(env, policy, rng, config.run.evaluate_episodes, stream=build.VALIDATION)
    first, *rest = _time_steps(steps, rt, began, enough_s)
    return first, env.spec.horizon * median(rest or [first])


def _typical(seconds: Sequence[float], once: int) -> float:
    """Return the median over rounds of ``once`` updates, of which one waits for steps, of the mean time in a round."""
    once = min(len(seconds), once)
    return median(mean(seconds[start : start + once]) for start in range(0, len(seconds) - once + 1, once))


def _duration(seconds: float) -> str:
    size, name = next((unit for unit in TIMES if seconds >= ENOUGH * unit[0]), TIMES[-1])
    return f"{seconds / size:.2g} {name}" if seconds / size < 99.5 else f"{seconds / size:.0f} {name}"
