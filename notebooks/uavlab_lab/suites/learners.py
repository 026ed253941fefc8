"""The learning record: every registered learner on every environment with a team that it fits, by the clock.

A pair of both is one run of several seeds side by side. Its preset is ``ENVIRONMENT_LEARNER`` where that has the task
of ``ENVIRONMENT_quick``, else the latter, or all defaults; a row holds the command that trains the same run again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from uavlab.benchmarks import Option, Record, suite
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.text import require_known
from uavlab.evaluation import EPISODES
from uavlab.experiment import build, scores
from uavlab.experiment.config import Config, Device, configure
from uavlab.experiment.names import presets
from uavlab.experiment.run import Run
from uavlab_lab.intervals import way
from uavlab_lab.study import NOTHING, SEED, Figure, attempt, changes, figure_of, options, score_bounds, short, times

FOLDER = "runs/learners"
MEASURED = ("updates", "minutes", "update_ms", "best", "last")


class Pair(NamedTuple):
    """A learner, an environment that it fits, and the preset from which it starts."""

    environment: str
    learner: str
    preset: str

    def __str__(self) -> str:
        """Return ``ENVIRONMENT:LEARNER``."""
        return f"{self.environment}:{self.learner}"


@suite(
    "learners",
    about="every learner on every environment that it fits, for hours; goes on where it was ended",
    options=options(
        "pair",
        FOLDER,
        Option("pairs", "this ENVIRONMENT:LEARNER alone, or those of an ENVIRONMENT or of a LEARNER", kind=str),
    ),
)
def learners_suite(
    rounds: int,
    device: Device,
    minutes: float = 10.0,
    seeds: int = 5,
    pairs: Sequence[str] = (),
    folder: str | Path = FOLDER,
    settings: Mapping[str, Any] = NOTHING,
    say: Callable[[str], Any] = print,
) -> Record:
    """Train each pair, or go on with its run in ``folder``, and score its policies; ``rounds`` has no effect.

    ``best`` scores the policies with the best validation scores in other episodes, by the weights ``score``: higher is
    better. Intervals are over the seeds; of policies without training, and of a single seed, over the episodes.

    Returns:
        ``minutes``, ``seeds`` and a row for each pair: ``environment``, ``learner``, ``preset``; ``updates``,
        ``minutes`` and ``update_ms`` of training, all seeds together and validation included; the scores ``best``,
        ``last`` (of the last policies), ``random`` and ``plans`` (of all baselines); ``plan``, the best of these;
        ``share`` of the way from random actions to it that ``best`` went; and what ``attempt`` returns. Figures that
        are missing are None.
    """
    layer = {"runs": seeds, "minutes": minutes, "device": device, **settings}
    configs = {pair: configure(pair.preset, {"learner": pair.learner}, layer) for pair in choose(pairs)}
    for pair, config in configs.items():
        changes(config, _folder(folder, pair))  # refuses another study before hours of training
    rows, baselines = [], dict[str, dict[str, Figure]]()
    for pair, config in configs.items():
        if pair.environment not in baselines:
            baselines[pair.environment] = dict(score_baselines(config))
        rows.append(_row(pair, config, baselines[pair.environment], _folder(folder, pair)))
        say(f"{pair}: {rows[-1]['failed'] or '{updates:,} updates in {minutes:.1f} minutes'.format(**rows[-1])}")
    return {"minutes": minutes, "seeds": seeds, "rows": rows}


def choose(names: Sequence[str] = ()) -> list[Pair]:
    """Return the pairs of these names, in the order of the registries; all if there is none."""
    known = {pair: {str(pair), pair.environment, pair.learner} for pair in all_pairs()}
    for name in names:
        require_known("pair", name, dict.fromkeys(name for each in known.values() for name in sorted(each)))
    return [pair for pair, own in known.items() if not names or own & set(names)]


def all_pairs() -> Iterator[Pair]:
    """Yield every registered learner with every environment whose team it fits."""
    for environment, entry in ENVIRONMENTS.items():
        if (entry.evaluation or EPISODES).flies:
            for learner in build.fitting(entry):
                yield Pair(environment, learner, preset_of(environment, learner))


def preset_of(environment: str, learner: str) -> str:
    """Return the preset of a pair: its own, if that has the task of the environment's quick one; else that one."""
    known = [name for name, preset in presets().items() if preset.env == environment]
    quick, own = f"{environment}_quick", f"{environment}_{learner}"
    plain = quick if quick in known else environment
    if own not in known:
        return plain
    tasks = [configure(name, {"learner": learner}) for name in (own, plain)]
    same = tasks[0].env == tasks[1].env and tasks[0].evaluation == tasks[1].evaluation
    return own if same else plain


def _row(pair: Pair, config: Config, baselines: Mapping[str, Figure], folder: Path) -> Record:
    """Train a pair and return its row; a run that fails ends its own pair alone."""
    run, about = attempt(config, folder)
    measured = dict.fromkeys(MEASURED) if run is None else _figures(run)
    plans = {name: figure for name, figure in baselines.items() if name != "random"}
    plan = max(plans, key=lambda name: plans[name]["mean"], default=None)
    best = measured["best"]
    return {
        **pair._asdict(),
        **measured,
        "random": baselines["random"],
        "plan": plan,
        "share": share(best, baselines["random"], plans[plan]) if best and plan else None,
        "plans": plans,
        **about,
    }


def _folder(folder: str | Path, pair: Pair) -> Path:
    return Path(folder, f"{pair.preset}-{pair.learner}")


def _figures(run: Run) -> Figure:
    """Return the time of a run, and the scores of its best policies and of its last ones, in the same episodes."""
    trained, config = run.trained(), run.config
    last = replace(trained, parameters=run.learner.parameters(), updates=[run.number] * config.run.runs)
    count, env = config.run.evaluate_episodes, config.evaluation
    best, newest = (scores.weigh(env.score, scores.measure(each, count, SEED, False)) for each in (trained, last))
    bounds = score_bounds(env)
    return {**times(run), "best": figure_of(best, bounds), "last": figure_of(newest, bounds)}


def score_baselines(config: Config) -> Iterator[tuple[str, Figure]]:
    """Yield the score of random actions and of each registered baseline, in as many episodes as all seeds have."""
    for name in scores.baselines(config):
        figures = scores.measure_baseline(config, name, config.run.runs * config.run.evaluate_episodes, SEED)
        yield name, figure_of(scores.weigh(config.evaluation.score, figures), score_bounds(config.evaluation))


def share(figure: Figure, random: Figure, plan: Figure) -> Figure | None:
    """Return a figure as the share of the way from random actions to a plan; None if the plan may be no better.

    Its interval has the uncertainty of all three.
    """
    names = ("mean", "low", "high")
    figure_ends, start, end = (tuple(each[name] for name in names) for each in (figure, random, plan))
    if (ends := way(figure_ends, start, end)) is None:
        return None
    length = end[0] - start[0]
    each = [short((mean - start[0]) / length) for mean in figure.get("each", [figure["mean"]])]
    return {**dict(zip(names, map(short, ends), strict=True)), "each": each}
