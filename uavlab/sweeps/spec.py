"""The file of a sweep: presets, settings, their grid or search, seeds, and where trials run; all checked at once."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len

from uavlab.core.errors import ConfigError
from uavlab.core.installation import entry, program
from uavlab.core.registry import ENVIRONMENTS, LEARNERS, Registry
from uavlab.core.text import quote, suggest, yaml_lines
from uavlab.experiment.build import preset_values, task
from uavlab.experiment.config import ELSEWHERE, LARGEST_FILE, model_of, read_yaml, toggle_layer
from uavlab.experiment.names import PRESETS, is_external, presets, require_preset
from uavlab.experiment.settings import (
    as_stored,
    fields_of,
    problems_of,
    strict_model,
    unknown_names,
    with_tuples,
    wrong_values,
)
from uavlab.experiment.sizes import AUTO, BY_ENTITIES
from uavlab.runtime.toggles import TOGGLES
from uavlab.storage.files import read_regular

MOST = 10_000  # trials
OWN = {"seed": "seeds", "runs": "seeds"}  # settings that the sweep sets, and the key that does
SYNONYMS = {"preset": "presets", "seed": "seeds", "set": "settings", "parameters": "grid", "toggles": "settings"}
Seed = Annotated[int, Ge(0), Le(2**31)]
Number = int | float


@dataclass(frozen=True)
class Search:
    """A search for the settings with the best mean score over seeds: ``ranges`` by name, and how many are tried.

    Combinations of a ``batch`` are proposed without the scores of each other. It is no more than the trials that run at
    once make useful, and part of the search: another batch makes other proposals.
    """

    ranges: Annotated[dict[str, dict[str, Any]], Len(1, 100)]
    trials: Annotated[int, Ge(1), Le(10_000)] = 20
    batch: Annotated[int, Ge(1), Le(1000)] = 4
    seed: Annotated[int, Ge(0), Le(2**31)] = 0


@dataclass(frozen=True)
class Range:
    """The values of one setting: ``low`` to ``high``, whole numbers if both are, or in their place a list."""

    low: Number | None = None
    high: Number | None = None
    log: bool = False  # small values are tried as often as large ones, factor by factor
    step: Number | None = None  # between neighbouring values
    values: Annotated[list[str | bool | int | float | None], Len(1, 1000)] | None = None


Given = list[tuple[str, str, list[Any]]]
"""Settings with the place where they stand, and their values."""


@dataclass(frozen=True)
class Sweep:
    """What a sweep trains and where; a file has these keys, of which ``presets`` alone is required.

    Attributes:
        presets: Names of presets, or of external environments, such as ``pettingzoo:MODULE`` and ``FILE.py:FACTORY``.
        settings: Settings of every trial, by name; ``toggles`` is a named set of toggles.
        grid: Lists of values by name; every combination of them is trained.
        search: In place of ``grid``: ``ranges``, ``trials``, ``batch`` and ``seed`` of a search by Optuna.
        seeds: Seeds of each combination, or how many, from 0 on.
        episodes: Episodes by which the best policy of each trial is scored.
        scale: Lowest and highest score of a preset, by its name, for figures over several presets; by default those in
            the table.
        engine: ``local``, processes of this machine, or ``ray``, a Ray cluster.
        workers: Trials at once; by default as many as there are cores.
        address: ``HOST:PORT`` of a running Ray cluster; by default one is started here for the time of the sweep.
        gpus: Share of a GPU that Ray reserves for a trial.
    """

    presets: Annotated[list[str], Len(1, 100)]
    settings: dict[str, Any] | None = None
    grid: dict[str, Annotated[list[Any], Len(1, 1000)]] | None = None
    search: dict[str, Any] | None = None
    seeds: Annotated[int, Ge(1), Le(1000)] | Annotated[list[Seed], Len(1, 1000)] = 3
    episodes: Annotated[int, Ge(1), Le(100_000)] = 100
    scale: dict[str, Annotated[list[float | int], Len(2, 2)]] | None = None
    engine: Literal["local", "ray"] = "local"
    workers: Annotated[int, Ge(1), Le(1000)] | None = None
    address: str | None = None
    gpus: Annotated[float | int, Ge(0), Le(64)] = 0

    @cached_property
    def all_seeds(self) -> list[int]:
        """The seeds of each combination."""
        return [*range(self.seeds)] if isinstance(self.seeds, int) else self.seeds

    @cached_property
    def ranges(self) -> Search | None:
        return None if self.search is None else Search(**self.search)

    @property
    def count(self) -> int:
        """How many trials there are."""
        combinations = self.ranges.trials if self.ranges else math.prod(map(len, (self.grid or {}).values()))
        return combinations * len(self.presets) * len(self.all_seeds)

    def stored(self) -> dict[str, Any]:
        """Return its keys with their values, for a file."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def read_sweep(what: Mapping[str, Any] | str | Path) -> Sweep:
    """Return the sweep of a YAML file, or of a table with its keys."""
    if isinstance(what, Mapping):
        return parse_sweep(what, "sweep", {})
    if not isinstance(what, str | Path):
        raise ConfigError(f"sweep: got {quote(what)}; expected a YAML file or a table of its keys.")
    path = Path(what)
    values = read_yaml(path)
    lines = yaml_lines(read_regular(path, LARGEST_FILE).decode("utf-8-sig"), nested=True)
    return parse_sweep(values, str(path), {name: f" from {path}:{line}" for name, line in lines.items()})


def parse_sweep(values: Mapping[str, Any], where: str, origins: Mapping[str, str]) -> Sweep:
    """Return a sweep from the values of its keys; ``origins`` says where each key and each inner one stands."""
    values = {name: as_stored(name, value) for name, value in values.items()}
    model = strict_model(fields_of(Sweep))
    problems = unknown_names(model, values, origins, SYNONYMS) + wrong_values(model, values, origins)[0]
    if not problems:
        problems = [*dict.fromkeys(_problems(sweep := Sweep(**values), origins))]
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems) + f". Keys of a sweep: `{program()} sweep --help`.")
    return sweep


def _problems(sweep: Sweep, origins: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with a sweep whose keys have the right types."""

    def at(name: str) -> str:
        return origins.get(name, "")

    if sweep.grid is not None and sweep.search is not None:
        yield f"grid and search are both given{at('search')}; leave out one"
    if isinstance(sweep.seeds, list) and len(set(sweep.seeds)) < len(sweep.seeds):
        yield f"seeds: a seed is given twice{at('seeds')}"
    if sweep.address is not None and sweep.engine != "ray":
        yield f"address: is of a Ray cluster{at('address')}; set engine: ray"
    for name, (low, high) in (sweep.scale or {}).items():
        if name not in sweep.presets or not (math.isfinite(low) and math.isfinite(high) and low < high):
            got = f"got [{low:g}, {high:g}]{'' if name in sweep.presets else f' of {quote(name)}'}"
            yield f"scale.{name}: expected [lowest, highest] score of one of the presets, {got}{at(f'scale.{name}')}"
    yield from (wrong := [*search_problems(sweep.search, at)])
    given = _given(sweep, at)
    yield from _twice(sweep, given)
    if not (sweep.search and wrong) and sweep.count > MOST:
        yield f"{sweep.count:,} trials; expected at most {MOST:,}{at('search' if sweep.search else 'grid')}"
    for name in sweep.presets:
        if sweep.presets.count(name) > 1:
            yield f"presets: {quote(name)} is given twice{at('presets')}"
        elif problem := _wrong_preset(name, at("presets")):
            yield problem
        else:
            yield from _wrong_settings(name, given)
            yield from _unknown_elsewhere(name, given, at("presets"))


def _wrong_preset(name: str, place: str) -> str | None:
    """Return why a name is none of a preset; an external environment is registered by it."""
    try:
        if is_external(name):
            require_preset(name)
    except ConfigError as error:
        return f"{str(error).removesuffix('.')}{place}"
    return None if name in presets() else f"unknown preset {quote(name)}{place}{suggest(name, presets())}"


def _unknown_elsewhere(preset: str, given: Given, place: str) -> Iterator[str]:
    """Yield what a user's own code registered in this process, but not in those of trials."""
    if entry()[0] != "-m":
        return  # their processes run the same file
    env = presets()[preset].env
    named: list[tuple[Registry[Any], str, str]] = [(PRESETS, preset, place), (ENVIRONMENTS, env, place)]
    for name, origin, values in given:
        named += [(LEARNERS, str(value), origin) for value in values if name == "learner"] + [(TOGGLES, name, origin)]
    for registry, name, origin in named:
        if name in registry.places:
            yield (
                f"{registry.kind} {quote(name)} is registered in this process alone, expected in those of trials, too"
                f"{origin}; let the file that registers it end with ul.main(), and run `python FILE.py sweep ...`"
            )


def _given(sweep: Sweep, at: Callable[[str], str]) -> Given:
    """Return all settings that a sweep sets, of a search the values at the ends of its ranges."""
    fixed = [(name, at(f"settings.{name}"), [value]) for name, value in (sweep.settings or {}).items()]
    fixed += [(name, at(f"grid.{name}"), values) for name, values in (sweep.grid or {}).items()]
    ranges = (sweep.search or {}).get("ranges")
    if isinstance(ranges, dict):
        for name, limits in ranges.items():
            known = isinstance(limits, dict)
            ends = [limits.get("low"), limits.get("high"), *(limits.get("values") or ())] if known else []
            fixed.append((name, at(f"search.ranges.{name}"), [end for end in ends if end is not None]))
    return fixed


def _twice(sweep: Sweep, given: Given) -> Iterator[str]:
    """Yield what is wrong with the names and lists of settings, whatever the preset."""
    names = [name for name, _, _ in given]
    for name, place, values in given:
        if name in OWN:
            yield f"{name}: is given by `{OWN[name]}`{place}"
        if names.count(name) > 1:
            yield f"{name} is given twice{place}; leave out one"
        if sweep.grid and name in sweep.grid and any(value in values[:i] for i, value in enumerate(values)):
            yield f"grid.{name}: a value is given twice{place}"
        if name == "toggles":
            for value in values:
                try:
                    toggle_layer(value, "cpu")
                except (ConfigError, TypeError) as error:
                    yield f"{str(error).removesuffix('.')}{place}"


def _wrong_settings(preset: str, given: Given) -> Iterator[str]:
    """Yield which settings a preset lacks, and which values are of a wrong type or out of range by themselves."""
    learners = next((values for name, _, values in given if name == "learner"), [None])
    for learner in learners:
        try:
            if not (learner is None or isinstance(learner, str)):
                raise ConfigError(f"learner: expected a name, got {quote(learner)}.")
            chosen = task(presets()[preset].env, learner)
        except ConfigError as error:
            place = next((place for name, place, _ in given if name == "learner"), "")
            yield f"{preset}: {str(error).removesuffix('.')}{place}"
            continue
        model, base = model_of(chosen.settings, tuple(TOGGLES.values())), preset_values(presets()[preset], chosen)
        for name, place, values in given:
            if name in ("toggles", "learner", *OWN):
                continue
            origin = {name: place}
            yield from (f"{preset}: {problem}" for problem in unknown_names(model, [name], origin, ELSEWHERE))
            for value in values if name in model.model_fields else ():
                if not (name in BY_ENTITIES and value == AUTO):
                    tried = with_tuples(model, {**base, name: value})
                    yield from (f"{preset}: {problem}" for problem in wrong_values(model, tried, origin)[0])


def search_problems(search: Mapping[str, Any] | None, at: Callable[[str], str]) -> Iterator[str]:
    """Yield what is wrong with the table ``search``; ``at`` says where a key stands."""
    if search is None:
        return
    problems = problems_of(strict_model(fields_of(Search)), search)
    yield from (f"search: {problem}{at('search')}" for problem in problems)
    for name, given in search["ranges"].items() if not problems else ():
        wrong = problems_of(strict_model(fields_of(Range)), given) or _misfits(Range(**given))
        yield from (f"search.ranges.{name}: {problem}{at(f'search.ranges.{name}')}" for problem in wrong)


def _misfits(given: Range) -> list[str]:
    """Return what is wrong with a range whose parts have the right types."""
    numbers = (given.low, given.high, given.step)
    if given.values is not None:
        return ["values are all; leave out low, high, step and log"] * (
            given.log or any(n is not None for n in numbers)
        )
    if given.low is None or given.high is None:
        got = ", ".join(name for name in ("low", "high") if getattr(given, name) is not None) or "neither"
        return [f"expected low and high, or values, got {got}"]
    return [
        text
        for wrong, text in (
            (given.low >= given.high, f"expected low < high, got {quote(given.low)} and {quote(given.high)}"),
            (given.log and given.low <= 0, f"expected low > 0 with log, got {quote(given.low)}"),
            (given.log and given.step is not None, "expected log or step, got both"),
            (given.step is not None and given.step <= 0, f"expected step > 0, got {quote(given.step)}"),
        )
        if wrong
    ]
