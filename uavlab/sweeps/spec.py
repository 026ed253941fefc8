"""The file of a sweep: presets, settings, their grid or search, seeds, and where trials run; all checked at once."""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Le, Len

from uavlab.core.errors import ConfigError
from uavlab.core.extras import require
from uavlab.core.installation import entry, program
from uavlab.core.registry import ENVIRONMENTS, LEARNERS, Registry
from uavlab.core.text import quote, suggest, yaml_lines
from uavlab.experiment.build import preset_values, task
from uavlab.experiment.config import ELSEWHERE, LARGEST_FILE, Config, configure, model_of, read_yaml, toggle_layer
from uavlab.experiment.external_names import is_external
from uavlab.experiment.names import require_preset
from uavlab.experiment.presets import PRESETS, presets
from uavlab.experiment.sizes import AUTO, AUTOMATIC, BY_ENTITIES
from uavlab.experiment.validation import (
    MAX_LISTED,
    as_stored,
    fields_of,
    problems_of,
    strict_model,
    unknown_names,
    with_tuples,
    wrong_values,
)
from uavlab.runtime.toggles import TOGGLES
from uavlab.storage.files import json_digest, read_regular

MOST = 10_000  # trials
OWN = {"seed": "seeds", "runs": "seeds"}  # settings that the sweep sets, and the key that does
SYNONYMS = {"preset": "presets", "seed": "seeds", "set": "settings", "parameters": "grid", "toggles": "settings"}
Seed = Annotated[int, Ge(0), Le(2**31)]
Number = int | float
At = Callable[[str], str]  # where a key stands, such as `` from s.yaml:3``


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    preset: str
    settings: Mapping[str, Any]  # over the preset, without the seed; ``toggles`` is a named set
    seed: int
    varied: Mapping[str, Any] = field(default_factory=dict)  # those in which trials of the sweep differ

    @property
    def name(self) -> str:
        """The name of its folder: preset, digest of the settings, seed."""
        digest = json_digest({"preset": self.preset, "settings": dict(self.settings)})[:12]
        return f"{re.sub('[^a-zA-Z0-9_.-]', '_', self.preset)[:40]}-{digest}-{self.seed}"

    def request(self, episodes: int) -> str:
        """Return what its process reads, as JSON."""
        own = {"preset": self.preset, "settings": dict(self.settings), "seed": self.seed}
        return json.dumps({**own, "episodes": episodes})

    def configure(self) -> Config:
        """Return the settings of its run."""
        settings = {**self.settings, "seed": self.seed, "runs": 1}
        toggles = settings.pop("toggles", None)
        named = [] if toggles is None else [toggle_layer(toggles, settings.get("device"))]
        return configure(self.preset, *named, settings)


@dataclass(frozen=True)
class Search:
    """A search for the settings with the best mean score over seeds: ``ranges`` by name, and how many are tried."""

    ranges: Annotated[dict[str, dict[str, Any]], Len(1, 100)]
    trials: Annotated[int, Ge(1), Le(10_000)] = 20
    seed: Annotated[int, Ge(0), Le(2**31)] = 0


RANGE = {
    "low": (Number | None, None),
    "high": (Number | None, None),
    "log": (bool, False),  # small values are tried as often as large ones, factor by factor
    "step": (Number | None, None),  # between neighbouring values
    "values": (Annotated[list[str | bool | Number | None], Len(1, 1000)] | None, None),  # in place of all others
}


def distribution(given: Mapping[str, Any]) -> Any:
    """Return the values of a range as Optuna describes them; they are whole numbers if its ends are.

    Raises:
        ValueError: The parts do not fit each other.
    """
    from optuna import distributions

    given = {name: value for name, value in given.items() if value is not None}
    if [*given] == ["values"]:
        return distributions.CategoricalDistribution(given["values"])
    if "values" in given or not {"low", "high"} <= {*given}:
        got = ", ".join(given) or "nothing"
        raise ValueError(f"expected low and high, with log or step, or values alone, got {got}")
    whole = all(isinstance(value, int) for value in given.values())
    return (distributions.IntDistribution if whole else distributions.FloatDistribution)(**given)


def ends(given: Mapping[str, Any]) -> list[Any]:
    """Return the values of a range, or its ends."""
    return [*(given.get("values") or (given["low"], given["high"]))]


def rounded(given: Mapping[str, Any], value: Any) -> Any:
    """Return a proposed value in four digits, within its range."""
    own = isinstance(value, float) and "low" in given
    return min(max(float(f"{value:.4g}"), given["low"]), given["high"]) if own else value


@dataclass(frozen=True)
class Sweep:
    """What a sweep trains and where; a file has these keys, of which ``presets`` alone is required.

    Attributes:
        presets: Names of presets, or of external environments, such as ``pettingzoo:MODULE`` and ``FILE.py:FACTORY``.
        settings: Settings of every trial, by name; ``toggles`` is a named set of toggles.
        grid: Lists of values by name; every combination of them is trained.
        search: In place of ``grid``: ``ranges``, ``trials`` and ``seed`` of a search by Optuna.
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

    @property
    def count(self) -> int:
        """How many trials there are."""
        proposals = Search(**self.search).trials if self.search else math.prod(map(len, (self.grid or {}).values()))
        return proposals * len(self.presets) * len(self.all_seeds)

    @property
    def combinations(self) -> list[dict[str, Any]]:
        """Every combination of the grid."""
        grid = self.grid or {}
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]

    def trials(self, combinations: Iterable[Mapping[str, Any]]) -> list[Trial]:
        """Return a trial for each preset, combination of settings and seed."""
        fixed = self.settings or {}
        each = itertools.product(self.presets, combinations, self.all_seeds)
        return [Trial(preset, {**fixed, **varied}, seed, varied) for preset, varied, seed in each]

    def stored(self) -> dict[str, Any]:
        """Return its keys with their values, for a file."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def read_sweep(what: Mapping[str, Any] | str | Path) -> Sweep:
    """Return the sweep of a YAML file, or of a table with its keys.

    Raises:
        ConfigError: A key, a setting or a preset is unknown or wrong; the message lists all problems.
        MissingPackageError: There is a search, and Optuna is not installed.
    """
    values, where, origins = what, "sweep", dict[str, str]()
    if isinstance(what, str | Path):
        path = Path(what)
        values, where = read_yaml(path), str(path)
        lines = yaml_lines(read_regular(path, LARGEST_FILE).decode("utf-8-sig"), nested=True)
        origins = {name: f" from {path}:{line}" for name, line in lines.items()}
    if not isinstance(values, Mapping):
        raise ConfigError(f"sweep: got {quote(what)}; expected a YAML file or a table of its keys.")
    values = {name: as_stored(name, value) for name, value in values.items()}
    model = strict_model(fields_of(Sweep))
    problems = unknown_names(model, values, origins, SYNONYMS) + wrong_values(model, values, origins)[0]
    if not problems:
        sweep = Sweep(**values)
        problems = [*dict.fromkeys(_problems(sweep, lambda name: origins.get(name, "")))]
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems) + f". Keys of a sweep: `{program()} sweep --help`.")
    _require_configurable(sweep)
    return sweep


def _problems(sweep: Sweep, at: At) -> Iterator[str]:
    """Yield what is wrong with a sweep whose keys have the right types."""
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
    wrong = [] if sweep.search is None else problems_of(strict_model(fields_of(Search)), sweep.search)
    yield from (f"search: {problem}{at('search')}" for problem in wrong)
    ranges = {} if wrong or sweep.search is None else dict(sweep.search["ranges"])
    for name in [*ranges]:
        if problems := range_problems(ranges[name]):
            yield from (f"search.ranges.{name}: {problem}{at(f'search.ranges.{name}')}" for problem in problems)
            del ranges[name]
    if not wrong and sweep.count > MOST:
        yield f"{sweep.count:,} trials; expected at most {MOST:,}{at('search' if sweep.search else 'grid')}"
    given = [Given(name, at(f"settings.{name}"), [value]) for name, value in (sweep.settings or {}).items()]
    given += [Given(name, at(f"grid.{name}"), values) for name, values in (sweep.grid or {}).items()]
    given += [Given(name, at(f"search.ranges.{name}"), ends(own)) for name, own in ranges.items()]
    yield from _wrong_names(sweep, given)
    for name in sweep.presets:
        try:
            if is_external(name):
                require_preset(name)
        except ConfigError as error:
            yield f"{str(error).removesuffix('.')}{at('presets')}"
            continue
        if sweep.presets.count(name) > 1:
            yield f"presets: {quote(name)} is given twice{at('presets')}"
        elif name not in presets():
            yield f"unknown preset {quote(name)}{at('presets')}{suggest(name, presets())}"
        else:
            yield from _wrong_settings(name, given)
            yield from _unknown_elsewhere(name, given, at("presets"))


def range_problems(given: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a range of a search."""
    require("sweep", "search", "optuna")
    problems = problems_of(strict_model(RANGE), given)
    try:
        if not problems:
            distribution(given)
    except ValueError as error:
        problems = [str(error).removesuffix(".")]
    return problems


class Given(NamedTuple):
    """A setting that a sweep sets: where, and its values, of a range those at its ends."""

    name: str
    place: str
    values: list[Any]


def _wrong_names(sweep: Sweep, given: Sequence[Given]) -> Iterator[str]:
    """Yield what is wrong with the names and lists of settings, whatever the preset."""
    names = [name for name, _, _ in given]
    for name, place, values in given:
        if name in OWN:
            yield f"{name}: is given by `{OWN[name]}`{place}"
        if names.count(name) > 1:
            yield f"{name} is given twice{place}; leave out one"
        if name in (sweep.grid or {}) and any(value in values[:i] for i, value in enumerate(values)):
            yield f"grid.{name}: a value is given twice{place}"
        for value in values if name == "toggles" else ():
            try:
                toggle_layer(value, "cpu")
            except (ConfigError, TypeError) as error:
                yield f"{str(error).removesuffix('.')}{place}"


def _wrong_settings(preset: str, given: Sequence[Given]) -> Iterator[str]:
    """Yield which settings a preset lacks, and which values are of a wrong type or out of range by themselves."""
    chosen = next((setting for setting in given if setting.name == "learner"), Given("learner", "", [None]))
    for learner in chosen.values:
        try:
            if not (learner is None or isinstance(learner, str)):
                raise ConfigError(f"learner: expected a name, got {quote(learner)}.")
            own = task(presets()[preset].env, learner)
        except ConfigError as error:
            yield f"{preset}: {str(error).removesuffix('.')}{chosen.place}"
            continue
        model, base = model_of(own.settings, tuple(TOGGLES.values())), preset_values(presets()[preset], own)
        for name, place, values in given:
            if name in ("toggles", "learner", *OWN):
                continue
            problems = unknown_names(model, [name], {name: place}, ELSEWHERE)
            for value in values if name in model.model_fields else ():
                if not (name in BY_ENTITIES and value == AUTO):
                    problems += wrong_values(model, with_tuples(model, {**base, name: value}), {name: place})[0]
            yield from (f"{preset}: {problem}" for problem in problems)


def _unknown_elsewhere(preset: str, given: Sequence[Given], place: str) -> Iterator[str]:
    """Yield what a user's own code registered in this process, but not in those of trials."""
    if entry()[0] != "-m":
        return  # their processes run the same file
    named: list[tuple[Registry[Any], str, str]] = [
        (PRESETS, preset, place),
        (ENVIRONMENTS, presets()[preset].env, place),
        *((TOGGLES, setting.name, setting.place) for setting in given),
        *((LEARNERS, str(name), own.place) for own in given if own.name == "learner" for name in own.values),
    ]
    for registry, name, origin in named:
        if name in registry.places:
            yield (
                f"{registry.kind} {quote(name)} is registered in this process alone, expected in those of trials, too"
                f"{origin}; let the file that registers it end with ul.main(), and run `python FILE.py sweep ...`"
            )


def _require_configurable(sweep: Sweep) -> None:
    """Refuse settings that do not fit each other: of a grid in any combination, of a search at both ends of ranges."""
    ranges = {name: ends(own) for name, own in (sweep.search or {"ranges": {}})["ranges"].items()}
    corners = [{name: values[at] for name, values in ranges.items()} for at in (0, -1)]
    trials = replace(sweep, seeds=1).trials(corners if ranges else sweep.combinations)
    wrong, refused = dict[str, str](), 0
    for trial in trials:
        settings = {name: 1 if name in AUTOMATIC and value == AUTO else value for name, value in trial.settings.items()}
        try:
            replace(trial, settings=settings).configure()  # without sizes that are measured
        except ConfigError as error:
            refused += 1
            varied = ", ".join(f"{name}={value}" for name, value in trial.varied.items())
            wrong.setdefault(str(error).removesuffix("."), f" (with {varied})" if varied else "")
    if refused == len(trials) or (wrong and not ranges):
        texts = [f"{text}{varied}" for text, varied in wrong.items()]
        raise ConfigError(f"sweep: {'; '.join(texts[:MAX_LISTED])}. Change settings, grid or search.")
