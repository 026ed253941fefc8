"""The file of a sweep: presets, settings, their grid or search, seeds, and where trials run; all checked at once."""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len

from uavlab.core.errors import ConfigError
from uavlab.core.extras import require
from uavlab.core.installation import entry, program
from uavlab.core.registry import ENVIRONMENTS, LEARNERS, Registry
from uavlab.core.text import quote, yaml_lines
from uavlab.experiment.config import LARGEST_FILE, Config, Layer, configure, read_yaml, toggle_layer
from uavlab.experiment.names import PRESETS, presets, require_preset
from uavlab.experiment.settings import (
    MAX_LISTED,
    as_stored,
    fields_of,
    problems_of,
    strict_model,
    unknown_names,
    wrong_values,
)
from uavlab.experiment.sizes import AUTO, AUTOMATIC
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

    def configure(self, origins: Mapping[str, str] | None = None) -> Config:
        """Return the settings of its run; ``origins`` says in messages where a setting was given."""
        settings = {**self.settings, "seed": self.seed, "runs": 1}
        toggles = settings.pop("toggles", None)
        named = [] if toggles is None else [toggle_layer(str(toggles), settings.get("device"))]
        return configure(self.preset, *named, Layer(settings, origins or {}))


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
    def sections(self) -> dict[str, dict[str, Any]]:
        """The settings that are given, by the key under which they stand."""
        ranges = (self.search or {}).get("ranges")
        known = ranges if isinstance(ranges, dict) else {}
        return {"settings": self.settings or {}, "grid": self.grid or {}, "search.ranges": known}

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
    values, where, lines = what, "sweep", dict[str, str]()
    if isinstance(what, str | Path):
        path = Path(what)
        values, where = read_yaml(path), str(path)
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
        lines = {name: f"{path}:{line}" for name, line in yaml_lines(text, nested=True).items()}
    if not isinstance(values, Mapping):
        raise ConfigError(f"sweep: got {quote(what)}; expected a YAML file or a table of its keys.")
    values = {name: as_stored(name, value) for name, value in values.items()}
    model, origins = strict_model(fields_of(Sweep)), {name: f" from {line}" for name, line in lines.items()}
    problems = unknown_names(model, values, origins, SYNONYMS) + wrong_values(model, values, origins)[0]
    if not problems:
        sweep = Sweep(**values)
        problems = [*_problems(sweep, lambda name: origins.get(name, ""))] or _wrong_settings(sweep, lines)
    if problems:
        listed = "; ".join([*dict.fromkeys(problems)][:MAX_LISTED])
        raise ConfigError(f"{where}: {listed}. Keys of a sweep: `{program()} sweep --help`.")
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
    problems = {} if sweep.search is None else search_problems(sweep.search)
    yield from (f"{key}: {problem}{at(key)}" for key, several in problems.items() for problem in several)
    if not problems and sweep.count > MOST:
        yield f"{sweep.count:,} trials; expected at most {MOST:,}{at('search' if sweep.search else 'grid')}"
    for name, values in (sweep.grid or {}).items():
        if any(value in values[:i] for i, value in enumerate(values)):
            yield f"grid.{name}: a value is given twice{at(f'grid.{name}')}"
    for section, settings in sweep.sections.items():
        for name in settings:
            if name in OWN:
                yield f"{name}: is given by `{OWN[name]}`{at(f'{section}.{name}')}"
            if section != "settings" and name in (sweep.settings or {}):
                yield f"{name} is given in settings and in {section}{at(f'{section}.{name}')}; leave out one"
    for name in sweep.presets:
        try:
            require_preset(name)
        except ConfigError as error:
            yield f"{str(error).removesuffix('.')}{at('presets')}"
        if sweep.presets.count(name) > 1:
            yield f"presets: {quote(name)} is given twice{at('presets')}"


def search_problems(search: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what is wrong with a search, by the key of the file."""
    require("sweep", "search", "optuna")
    if problems := problems_of(strict_model(fields_of(Search)), search):
        return {"search": problems}
    wrong = {f"search.ranges.{name}": _range_problems(given) for name, given in search["ranges"].items()}
    return {key: problems for key, problems in wrong.items() if problems}


def _range_problems(given: Mapping[str, Any]) -> list[str]:
    problems = problems_of(strict_model(RANGE), given)
    try:
        if not problems:
            distribution(given)
    except ValueError as error:
        problems = [str(error).removesuffix(".")]
    return problems


def _wrong_settings(sweep: Sweep, lines: Mapping[str, str]) -> list[str]:
    """Return which settings a preset lacks, which are out of range, and which do not fit each other.

    Every combination of a grid must fit; of a search each value of a list and each end of a range, where all others are
    at their first value or all at their last one.
    """
    origins = {name: lines.get(f"{key}.{name}", "") for key, settings in sweep.sections.items() for name in settings}
    ranges = {name: ends(given) for name, given in sweep.sections["search.ranges"].items()}
    first, last = ({name: values[at] for name, values in ranges.items()} for at in (0, -1))
    groups = [[{**first, name: end}, {**last, name: end}] for name, values in ranges.items() for end in values]
    wrong = dict[str, str]()
    for preset in sweep.presets:
        one = replace(sweep, presets=[preset], seeds=1)
        for group in groups or ([varied] for varied in sweep.combinations):
            problems = [_problem(trial, origins) for trial in one.trials(group)]
            if all(problems):
                varied = ", ".join(f"{name}={value}" for name, value in group[0].items())
                wrong.setdefault(problems[0], f" (with {varied})" if varied else "")
    return [f"{text}{varied}" for text, varied in wrong.items()]


def _problem(trial: Trial, origins: Mapping[str, str]) -> str:
    """Return why a process could not begin a trial; empty if it could. Sizes of ``auto`` are not measured."""
    settings = {name: 1 if name in AUTOMATIC and value == AUTO else value for name, value in trial.settings.items()}
    named: list[tuple[Registry[Any], str]] = [
        (PRESETS, trial.preset),
        (ENVIRONMENTS, presets()[trial.preset].env),
        (LEARNERS, str(settings.get("learner"))),
        *((TOGGLES, name) for name in settings),
    ]
    own = [f"{registry.kind} {quote(name)}" for registry, name in named if name in registry.places]
    if own and entry()[0] == "-m":  # otherwise the processes of trials run the same file
        return (
            f"{', '.join(own)}: registered in this process alone, expected in those of trials, too; let the file that "
            "registers it end with ul.main(), and run `python FILE.py sweep ...`"
        )
    try:
        replace(trial, settings=settings).configure({name: line for name, line in origins.items() if line})
    except ConfigError as error:
        return str(error).removesuffix(".")
    return ""
