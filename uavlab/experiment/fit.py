"""Search for sizes that suit this machine: worlds at the knee of their throughput, and the largest batch that fits."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any

from torch import Tensor

from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.rng import same_random_state
from uavlab.core.text import quote
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.experiment.sizes import MOST, Say, sweep_worlds, trial_limit
from uavlab.profiling.batch_size import BatchSearch, fits, largest_batch
from uavlab.training import training

MARGIN = 0.1  # share of worlds and rows that is left free
TOLERANCE = 0.02  # share by which a batch may be smaller than the largest, which saves trials
LEAST = 8  # rows of a batch, where so few are allowed
PASSES = ("epochs", "passes", "actor_passes")  # settings that change how long an update takes, not its memory
SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?(?:([kMGT]|[KMGT]i)?B)?", re.ASCII)
UNITS = {"k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


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
        """Return the lines."""
        return "\n".join(self.lines)

    def note(self, line: str) -> None:
        """Add a line."""
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
    """Measure the number of worlds at the knee of their throughput, and search for the largest batch with them.

    The arguments are those of ``uavlab.fit``; ``say`` is called with each line as soon as it is known. Each trial
    builds the run anew; memory is tried by two whole updates, with one pass each. What is larger by the margin has to
    fit. Global random numbers stay as they are.
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
    """Return the largest value of a setting with which full updates fit, and the trials; see ``largest_batch``.

    Each trial builds the run anew, with few random steps, and makes two updates.
    """
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


def _more(value: int, margin: float) -> int:
    """Return the number that must fit, so that a value leaves the margin free."""
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
