"""What a curriculum is worth: presets that have one are trained with it, and on its last stage alone, by the clock.

Both runs of a preset have the same time, seeds and learning rates. Their policies are scored in the same episodes, so
seeds are compared in pairs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from uavlab.benchmarks import Option, Record, suite
from uavlab.core.errors import ConfigError
from uavlab.core.text import quote
from uavlab.experiment import names as catalogue
from uavlab.experiment import scores
from uavlab.experiment.config import Config, Device, configure
from uavlab.experiment.curriculum import Curriculum, Progression, progression
from uavlab.experiment.names import require_preset
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import decisions
from uavlab.storage import checkpoint
from uavlab_lab.study import (
    NOTHING,
    POINTS,
    SEED,
    Figure,
    attempt,
    changes,
    figure_of,
    options,
    over_seeds,
    score_bounds,
    times,
)

WAYS = ("curriculum", "alone")
FOLDER = "runs/curriculum"
KEEP = 1000  # checkpoints of a run, of whose policies the learning curve consists
QUICKEST = 1 / 4  # share of the scores of a run after which a seed that passes every time is at the last stage
MEASURED = ("updates", "minutes", "update_ms", "last_stage", "difference")


@suite(
    "curriculum",
    about="presets with a curriculum beside their last stage alone, for hours; goes on where it was ended",
    options=options("run", FOLDER, Option("presets", "this preset alone", kind=str)),
)
def curriculum_suite(
    rounds: int,
    device: Device,
    minutes: float = 10.0,
    seeds: int = 5,
    presets: Sequence[str] = (),
    folder: str | Path = FOLDER,
    settings: Mapping[str, Any] = NOTHING,
    say: Callable[[str], Any] = print,
) -> Record:
    """Train each preset both ways, or go on with its runs in ``folder``, and score them; ``rounds`` has no effect.

    The policy of each seed that is scored is its best one, with a curriculum of the highest stage that it reached. The
    episodes are the same for both ways, and none chose a policy. Intervals are as in the suite ``learners``.

    Returns:
        ``minutes``, ``seeds`` and two rows for each preset: ``preset``, ``environment``, ``learner``, ``way``
        (``curriculum`` or ``alone``), ``seed`` (the first one); ``updates``, ``minutes`` and ``update_ms`` of training;
        ``last_stage`` (score there) and ``difference`` (to the other way, seed by seed; None of ``alone``), and of all
        ``stages`` the ``settings``, ``score`` and ``difference``; ``reached`` (the highest stage of each seed),
        ``decisions``, ``curve`` (scores of the newest policies at the last stage), and what ``attempt`` returns.
        Figures that are missing are None.
    """
    layer = {"runs": seeds, "minutes": minutes, "device": device, "keep": KEEP, **settings}
    configs = {name: both_ways(name, layer) for name in choose(presets)}
    for name, ways in configs.items():
        for way, config in ways.items():
            changes(config, _folder(folder, name, way))  # refuses another study before hours of training
    rows: list[Record] = []
    for name, ways in configs.items():
        rows += compare(ways, {way: _folder(folder, name, way) for way in WAYS})
        say(f"{name}: {_outcome(*rows[-2:])}")
    return {"minutes": minutes, "seeds": seeds, "rows": rows}


def choose(names: Sequence[str] = ()) -> list[str]:
    """Return these presets, or all that have a curriculum if there is none."""
    for name in names:
        require_preset(name)
    every = catalogue.presets().items()
    return list(dict.fromkeys(names)) or [name for name, preset in every if preset.values.get("curriculum") is not None]


def both_ways(preset: str, layer: Mapping[str, Any]) -> dict[str, Config]:
    """Return the settings of a preset with its curriculum, and on the last stage alone, by way.

    Every policy that is scored during training stays in a checkpoint.
    """
    first = configure(preset, layer)
    staged = configure(preset, {**first.values, "checkpoint_every": first.run.evaluate_every})
    last = stages_of(staged).plan.stages[-1]
    alone = configure(preset, {**staged.values, "curriculum": None, **last.settings})
    return dict(zip(WAYS, (staged, alone), strict=True))


def stages_of(config: Config) -> Progression:
    """Return the curriculum of a run, with its stages as policies are evaluated on them."""
    there = progression(config, [config.run.seed])
    if there is None:
        raise ConfigError(
            f"bench curriculum: preset {quote(config.preset)} has no curriculum; expected one of "
            f"{', '.join(choose())}, or a preset of yours with this setting."
        )
    return there


def points(plan: Curriculum) -> int:
    """Return the validation scores of a run, about: enough of them for a seed to pass all stages."""
    least = sum(stage.passes for stage in plan.stages[:-1])
    return max(POINTS, round(least / QUICKEST))


def compare(configs: Mapping[str, Config], folders: Mapping[str, Path]) -> list[Record]:
    """Train both ways of a preset, and return their rows; a run that fails has no figures."""
    there = stages_of(configs["curriculum"])
    plan, stages, rows, values = there.plan, there.scored, dict[str, Record](), dict[str, list[Tensor | None]]()
    for way, config in configs.items():
        run, about = attempt(config, folders[way], points(plan))
        trained = None if run is None else run.trained()
        values[way] = [None if trained is None else score_episodes(trained, env) for env in stages]
        rows[way] = {
            "preset": config.preset,
            "environment": catalogue.presets()[config.preset].env,
            "learner": config.task.learner,
            "way": way,
            "seed": config.run.seed,
            **dict.fromkeys(MEASURED),
            **({} if run is None else times(run)),
            **about,
            **course(run, about["validation"], stages),
        }
    for way, row in rows.items():
        bounds = score_bounds(stages[-1])
        row["stages"] = [
            {
                "settings": json.loads(json.dumps(stage.settings)),
                "score": None if own is None else figure_of(own, bounds),
                "difference": None if way == "alone" or own is None or other is None else figure_of(own - other),
            }
            for stage, own, other in zip(plan.stages, values[way], values["alone"], strict=True)
        ]
        row["last_stage"], row["difference"] = (row["stages"][-1][name] for name in ("score", "difference"))
    return list(rows.values())


def score_episodes(policy: TrainedPolicy, env: Any) -> Tensor:
    """Return the scores of a policy in a task, by seed and episode; those of two policies are of the same episodes."""
    figures = scores.measure(policy, policy.config.run.evaluate_episodes, SEED, False, env)
    return scores.weigh(env.score, figures)


def course(run: Run | None, scores: Sequence[Figure], stages: Sequence[Any]) -> Figure:
    """Return how a run went: the highest stage of each seed, decisions, and scores over time at the last stage."""
    if run is None:
        return {"reached": [], "decisions": [], "curve": []}
    there = run.schedules.progression
    return {
        "reached": [place.reached + 1 for place in there.positions] if there else [len(stages)] * run.config.run.runs,
        "decisions": decisions(run),
        "curve": [_at_task(run, point, stages[-1]) for point in scores],
    }


def _at_task(run: Run, point: Figure, env: Any) -> Figure:
    """Return the score at a task of the policies of a moment of training, which its checkpoint holds."""
    path = (run.folder or Path()) / "checkpoints" / checkpoint.folder_name(point["update"])
    newest = checkpoint.load(path, only="last").groups["last"]["parameters"].to(run.rt.device)
    values = score_episodes(replace(run.trained(), parameters=newest), env)
    each = values.double().mean(1).tolist()
    return {"update": point["update"], "minutes": point["minutes"], **over_seeds(each, score_bounds(env))}


def _folder(folder: str | Path, preset: str, way: str) -> Path:
    return Path(folder, f"{preset}-{way}")


def _outcome(staged: Record, alone: Record) -> str:
    """Return what came out of the comparison of a preset, as a line."""
    if failed := staged["failed"] or alone["failed"]:
        return str(failed)
    return "{mean:.3g} [{low:.3g}, {high:.3g}] more with the curriculum".format(**staged["difference"])
