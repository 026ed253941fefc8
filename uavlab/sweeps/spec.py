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
OWN = ("seed", "runs")  # settings that the sweep sets
SYNONYMS = {"preset": "presets", "seed": "seeds", "set": "settings", "parameters": "grid", "toggles": "settings"}
Seed = Annotated[int, Ge(0), Le(2**31)]
Number = int | float


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

    def without_auto(self) -> "Trial":
        """Return it with sizes of one in place of ``auto``, so that ``configure`` measures nothing."""
        sizes = {name: 1 for name, value in self.settings.items() if name in AUTOMATIC and value == AUTO}
        return replace(self, settings={**self.settings, **sizes})

    @cached_property
    def weights(self) -> Mapping[str, float]:
        """The weights of figures in the score of its environment."""
        return self.without_auto().configure().evaluation.score


@dataclass(frozen=True)
class Search:
    """A search for the settings with the best mean score: ``ranges`` by name, and how many proposals are tried."""

    ranges: Annotated[dict[str, dict[str, Any]], Len(1, 100)]
    trials: Annotated[int, Ge(1), Le(10_000)] = 20
    seed: Seed = 0
    prune: bool = False  # end proposals early whose validation scores stay below the median of others


def distribution(given: Mapping[str, Any]) -> Any:
    """Return the values of a range as Optuna describes them; they are whole numbers if its ends are.

    Raises:
        ValueError: The parts do not fit each other.
    """
    from optuna import distributions

    if [*given] == ["values"] and isinstance(given["values"], list):
        return distributions.CategoricalDistribution(given["values"])
    others = {*given} - {"low", "high", "log", "step"}
    if others or not {"low", "high"} <= {*given} or not all(isinstance(value, int | float) for value in given.values()):
        raise ValueError(
            f"expected numbers low and high, with log or step, or a list of values alone, got {quote(dict(given))}"
        )
    whole = all(isinstance(value, int) for value in given.values())
    return (distributions.IntDistribution if whole else distributions.FloatDistribution)(**given)


def rounded(given: Mapping[str, Any], value: Any) -> Any:
    """Return a proposed value in four digits, within its range."""
    own = isinstance(value, float) and "low" in given
    return min(max(float(f"{value:.4g}"), given["low"]), given["high"]) if own else value


@dataclass(frozen=True)
class Sweep:
    """What a sweep trains and where; a file has these keys, of which ``presets`` alone is required."""

    presets: Annotated[list[str], Len(1, 100)]  # or external environments, by their names
    settings: dict[str, Any] | None = None  # of every trial; ``toggles`` is a named set
    grid: dict[str, Annotated[list[Any], Len(1, 1000)]] | None = None  # every combination is trained
    search: dict[str, Any] | None = None  # in place of ``grid``, the keys of ``Search``
    seeds: Annotated[int, Ge(1), Le(1000)] | Annotated[list[Seed], Len(1, 1000)] = 3  # of each combination, from 0 on
    episodes: Annotated[int, Ge(1), Le(100_000)] = 100  # by which the best policy of each trial is scored
    scale: dict[str, Annotated[list[float | int], Len(2, 2)]] | None = None  # lowest and highest score of a preset
    engine: Literal["local", "ray"] = "local"
    workers: Annotated[int, Ge(1), Le(1000)] | None = None  # trials at once; None takes one for each core
    address: str | None = None  # HOST:PORT of a Ray cluster; None starts one here
    gpus: Annotated[float | int, Ge(0), Le(64)] = 0  # share of a GPU that Ray reserves for a trial

    @property
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
        each = itertools.product(self.presets, combinations, self.all_seeds)
        return [Trial(preset, {**(self.settings or {}), **varied}, seed, varied) for preset, varied, seed in each]

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
        problems = [*_problems(sweep, lambda key: origins.get(key, ""))] or _wrong_settings(sweep, lines)
    if problems:
        listed = "; ".join([*dict.fromkeys(problems)][:MAX_LISTED])
        raise ConfigError(f"{where}: {listed}. Keys of a sweep: `{program()} sweep --help`.")
    return sweep


def _problems(sweep: Sweep, at: Callable[[str], str]) -> Iterator[str]:
    """Yield what is wrong with a sweep whose keys have the right types; ``at`` says where a key stands."""
    if sweep.grid is not None and sweep.search is not None:
        yield f"grid and search are both given{at('search')}; leave out one"
    lists: dict[str, list[Any]] = {"presets": sweep.presets, "seeds": sweep.all_seeds}
    for key, values in {**lists, **{f"grid.{name}": values for name, values in (sweep.grid or {}).items()}}.items():
        if twice := [value for i, value in enumerate(values) if value in values[:i]]:
            yield f"{key}: {quote(twice[0])} is given twice{at(key)}"
    if sweep.address is not None and sweep.engine != "ray":
        yield f"address: is of a Ray cluster{at('address')}; set engine: ray"
    for name, (low, high) in (sweep.scale or {}).items():
        if name not in sweep.presets or not (math.isfinite(low) and math.isfinite(high) and low < high):
            got = f"got [{low:g}, {high:g}]{'' if name in sweep.presets else f' of {quote(name)}'}"
            yield f"scale.{name}: expected [lowest, highest] score of one of the presets, {got}{at(f'scale.{name}')}"
    problems = [] if sweep.search is None else [*_search_problems(sweep.search)]
    yield from (f"{key}: {problem}{at(key)}" for key, problem in problems)
    if not problems and sweep.count > MOST:
        yield f"{sweep.count:,} trials; expected at most {MOST:,}{at('search' if sweep.search else 'grid')}"
    for section, settings in sweep.sections.items():
        for name in settings:
            if name in OWN:
                yield f"{name}: is given by `seeds`{at(f'{section}.{name}')}"
            if section != "settings" and name in (sweep.settings or {}):
                yield f"{name} is given in settings and in {section}{at(f'{section}.{name}')}; leave out one"
    for name in sweep.presets:
        try:
            require_preset(name)
        except ConfigError as error:
            yield f"{str(error).removesuffix('.')}{at('presets')}"


def _search_problems(search: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a search, each with its key of the file."""
    require("sweep", "search", "optuna")
    problems = problems_of(strict_model(fields_of(Search)), search)
    yield from (("search", problem) for problem in problems)
    for name, given in {} if problems else search["ranges"].items():
        try:
            distribution(given)
        except ValueError as error:
            yield f"search.ranges.{name}", str(error).removesuffix(".")


def _wrong_settings(sweep: Sweep, lines: Mapping[str, str]) -> list[str]:
    """Return which settings a preset lacks, which are out of range, and which do not fit each other.

    Every combination of a grid must fit; of a search each value of a list and each end of a range, where all others are
    at their first value or all at their last one.
    """
    origins = {name: lines.get(f"{key}.{name}", "") for key, settings in sweep.sections.items() for name in settings}
    given = sweep.sections["search.ranges"].items()
    ranges = {name: each.get("values") or [each["low"], each["high"]] for name, each in given}
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
    named: list[tuple[Registry[Any], str]] = [
        (PRESETS, trial.preset),
        (ENVIRONMENTS, presets()[trial.preset].env),
        (LEARNERS, str(trial.settings.get("learner"))),
        *((TOGGLES, name) for name in trial.settings),
    ]
    own = [f"{registry.kind} {quote(name)}" for registry, name in named if name in registry.places]
    if own and entry()[0] == "-m":  # otherwise the processes of trials run the same file
        return (
            f"{', '.join(own)}: registered in this process alone, expected in those of trials, too; let the file that "
            "registers it end with ul.main(), and run `python FILE.py sweep ...`"
        )
    try:
        trial.without_auto().configure({name: line for name, line in origins.items() if line})
    except ConfigError as error:
        return str(error).removesuffix(".")
    return ""
