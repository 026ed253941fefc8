"""How long a run will take on this machine, from some of its updates and steps of a score, measured here."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from uavlab.core.rng import Streams, same_random_state
from uavlab.evaluation import simulate
from uavlab.experiment import build
from uavlab.experiment.config import Config, RunConfig
from uavlab.learners.learner import Learner
from uavlab.profiling.timing import time_steps
from uavlab.runtime.runtime import Runtime
from uavlab.training import training

MOST = 300  # measured steps
UNITS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))
ENOUGH = 1.5  # of a unit, below which the next smaller one is written
LONG = 5  # s of warm-up, of which the text speaks


@dataclass(frozen=True)
class Estimate:
    """How long a run will take here."""

    minutes: float  # of training, with scores and all warm-up
    updates: int  # that the run will make
    measured: int  # updates that were measured
    seconds: float  # that these took
    size: str  # of these updates, such as ``4 of 16 worlds``; empty if they were like those of the run
    warm_up_s: float  # time of building, compiling and all else that is done once
    score_s: float | None  # time of one score; None if it was not measured
    apart: str  # what is not in the estimate
    most: bool  # the run may end earlier, because it has a ``patience``

    def __str__(self) -> str:
        """Return it as text, such as ``about 3 minutes here, from 20 updates in 4.0 s``."""
        what = f"{'at most ' * self.most}about {_duration(60 * self.minutes)} here for {self.updates:,} updates"
        warm_up = f", with {_duration(self.warm_up_s)} of warm-up" if self.warm_up_s >= LONG else ""
        how = f", from {self.measured} in {self.seconds:.1f} s" + (f" with {self.size}" if self.size else "")
        return what + warm_up + how + (f"; apart from {self.apart}" if self.apart else "")


@dataclass(frozen=True)
class Pace:
    """What was measured of a run: see ``Estimate``; ``update_s`` is the typical time of an update (s)."""

    measured: int
    seconds: float
    size: str
    update_s: float
    warm_up_s: float
    score_s: float | None
    apart: str

    def estimate(self, run: RunConfig) -> Estimate:
        """Return how long a run of this pace takes to its target of updates or minutes."""
        update_s = self.update_s + (self.score_s or 0) / run.evaluate_every
        limit = math.inf if run.minutes is None else max(1, math.ceil((60 * run.minutes - self.warm_up_s) / update_s))
        updates = int(min(limit, run.updates or math.inf))
        return Estimate(
            minutes=round((self.warm_up_s + update_s * updates) / 60, 3),
            updates=updates,
            measured=self.measured,
            seconds=round(self.seconds, 3),
            size=self.size,
            warm_up_s=round(self.warm_up_s, 3),
            score_s=self.score_s and round(self.score_s, 3),
            apart=self.apart,
            most=run.patience is not None,
        )


def measure(config: Config, enough_s: float = 4.0) -> Pace:
    """Measure some updates of a run, and some steps of a score, without writing anything.

    ``enough_s`` limits the time of the updates after the first one, and half of it that of a score (s). Global random
    numbers, and so the bits of a later run, stay as they are.
    """
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
    """Return the time of the first step since ``began``, and of each step after it (s)."""
    time_steps(steps, rt.device, 0.0)
    return [time.perf_counter() - began, *time_steps(steps, rt.device, enough_s, most=MOST)]


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
    size, name = next((unit for unit in UNITS if seconds >= ENOUGH * unit[0]), UNITS[-1])
    return f"{seconds / size:.2g} {name}" if seconds / size < 99.5 else f"{seconds / size:.0f} {name}"
