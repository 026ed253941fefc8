"""Train, load and evaluate teams from Python; ``import uavlab as ul`` exposes these functions.

A task is the name of a preset or of a registered environment, or an environment as an object. Examples are run by
``tests/unit/test_examples.py``; their names are those of the examples before them.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env
from uavlab.core.registry import ENVIRONMENTS, Environment, place_of
from uavlab.experiment import policy as policies
from uavlab.experiment import scores
from uavlab.experiment.config import Config, Device, Layer, configure, toggle_layer
from uavlab.experiment.export import export_policy
from uavlab.experiment.names import run_folder
from uavlab.experiment.policy import TeamPolicy, TrainedPolicy
from uavlab.experiment.run import Progress, Run
from uavlab.experiment.scores import Scores

Task = str | Env[Any]
OnLog = Callable[[Run, dict[str, Any]], Any]
Trained = Run | TrainedPolicy | str | Path

__all__ = [
    "Env", "Progress", "Run", "Scores", "TeamPolicy", "TrainedPolicy",
    "bench", "evaluate", "export", "fly", "load", "make", "profile", "resume", "start", "train", "watch",
]  # fmt: skip


def make(name: str, **parameters: Any) -> Any:
    """Return the environment of a preset with these parameters; their ranges are checked.

    >>> env = ul.make("leader_follower", followers=2, horizon=20)
    >>> env.spec.agents
    3

    Raises:
        ConfigError: There is no such preset, or a parameter is unknown or out of range.
    """
    return configure(name, parameters).env


def start(
    task: Task,
    *,
    learner: str | None = None,
    updates: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    runs: int | None = None,
    device: Device | None = None,
    toggles: str | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
) -> Run:
    """Build a run without training it; iterating over it trains, update by update.

    >>> run = ul.start(env, updates=2, seed=1, settings={"gamma": 0.97}, toggles="eager")
    >>> [progress.number for progress in run]
    [1, 2]

    Args:
        task: What is learned.
        learner: Name of a learner that fits the task; None takes the task's default.
        updates: Updates after which the run ends; None takes the preset's.
        minutes: Minutes of training after which it ends; alone, it replaces the preset's updates.
        seed: Seed of the first run; run r has seed + r.
        runs: Independent runs, trained side by side.
        device: ``auto``, ``cpu`` or ``cuda``.
        toggles: A named set (``plain``, ``eager``, ``laptop``, ``gpu``, ``max``) or values by name; None is ``eager``.
        settings: Any other settings by name, as ``uavlab settings PRESET`` lists them.
        out: New or empty folder of the run; None keeps it in memory.

    Raises:
        ConfigError: A setting is unknown or out of range, or the folder is not empty.
        ResourceError: Memory does not suffice.
    """
    given = {"learner": learner, "updates": updates, "minutes": minutes, "seed": seed, "runs": runs, "device": device}
    config = _configure(task, toggles, settings or {}, {name: each for name, each in given.items() if each is not None})
    return Run(config, None if out is None else Path(out))


def train(task: Task, *, progress: bool = True, on_log: OnLog | None = None, **options: Any) -> Run:
    """Train to the end and return the run.

    >>> run = ul.train(env, updates=2, runs=2, out="runs/first", progress=False)
    >>> run.done, len(run.rows())
    (True, 4)

    Args:
        task: What is learned.
        progress: Draw a progress bar.
        on_log: Called with the run and each row of logged metrics; ``run.stop()`` ends training.
        options: Those of ``start``.

    Raises:
        ConfigError: A setting is unknown or out of range, or the folder is not empty.
        DivergedError: A number is not finite.
        ResourceError: Memory or disk space does not suffice.
    """
    return _finish(start(task, **options), progress, on_log)


def resume(
    folder: str | Path,
    *,
    progress: bool = True,
    on_log: OnLog | None = None,
    fresh_replay: bool = False,
    **changes: Any,
) -> Run:
    """Train a stored run on to its target, or to another one.

    >>> ul.resume("runs/first", updates=3, lr=1e-4, progress=False).number
    3

    Raises:
        FileError: The folder is no run, or no checkpoint in it is intact.
        ConfigError: A change does not fit the saved state, or the run is at its target.
    """
    return _finish(Run.resume(run_folder(str(folder)), changes, fresh_replay=fresh_replay), progress, on_log)


def load(folder: str | Path, device: Device | None = None) -> TrainedPolicy:
    """Load the best policy of a stored run, or of an exported copy.

    >>> act = ul.load("runs/first").policy(run=1)
    >>> act(env.observe(env.initial(torch.rand(5, env.spec.initial_noise)))).shape
    torch.Size([5, 3, 2])

    Raises:
        FileError: The folder is no run, or has no intact checkpoint.
        ConfigError: Its environment is not registered here, or its settings do not fit this machine.
    """
    return policies.load(run_folder(str(folder)), device)


def evaluate(
    what: Trained | Env[Any],
    *,
    policy: str | Callable[[Any], Tensor] | None = None,
    episodes: int = 200,
    seed: int = 0,
    mean_action: bool = False,
) -> Scores:
    """Return figures with 95 % bootstrap intervals of a trained team, or of a policy without training.

    >>> trained, random = ul.evaluate(run, episodes=4), ul.evaluate(env, policy="random", episodes=4)
    >>> trained["return"]["low"] <= trained["return"]["mean"] <= trained["return"]["high"]
    True

    Args:
        what: A run or its folder; with ``policy`` a task.
        policy: Name of a baseline (``random`` needs no registration), or a function of observations (B A O) that
            returns actions (B A D). None takes the best policy of the run.
        episodes: Episodes of each seed.
        seed: Seed of the episodes; equal seeds give every policy equal episodes.
        mean_action: Use the mean action, or the likeliest move, instead of sampling.

    Raises:
        ConfigError: The task has no such baseline, or it is neither a run nor a task.
        FileError: The folder is no run, or has no intact checkpoint.
    """
    if policy is not None:
        config = what.config if isinstance(what, Run | TrainedPolicy) else _configure(what, None, {}, {})
        return scores.evaluate_baseline(config, policy, episodes, seed)
    return scores.evaluate(_trained(what), episodes, seed, mean_action)


def fly(what: Trained, page: str | Path, *, seed: int = 0, mean_action: bool = False, run: int = 0) -> Path:
    """Write an HTML page with one animated flight of a trained team, and return its path.

    >>> ul.fly(run, "flight.html").exists()
    True

    Raises:
        ConfigError: The environment has no registered picture (``ul.scene``), or no team that flies.
        ResourceError: The page cannot be written.
    """
    from uavlab.lab.plots import flight

    trained = _trained(what)
    states = list(policies.fly(trained, seed, mean_action, run))
    flight.write_page(flight.animate(trained.config.evaluation, states), Path(page))
    return Path(page)


def export(what: Trained, file: str | Path, *, run: int = 0, agent: int | None = None) -> Path:
    """Write the policy of one seed as a new file, ``.pt2`` or ``.onnx``, that runs without uavlab, and return it.

    ``agent`` is the number of an agent that leaves its team; None exports the whole team. ``FILE.json`` beside it
    describes inputs and outputs.

    >>> ul.export(run, "team.pt2").name
    'team.pt2'

    Raises:
        ConfigError: The file exists or has another suffix, or there is no such seed or agent.
        MissingPackageError: A package that ``.onnx`` needs is not installed.
        ResourceError: A file cannot be written.
    """
    trained = _trained(what)
    folder = what.folder if isinstance(what, Run) else Path(what) if isinstance(what, str | Path) else None
    return export_policy(trained, Path(file), run, agent, folder=folder)


def profile(task: Task, *, rounds: int = 20, toggles: str | None = None, **settings: Any) -> dict[str, Any]:
    """Measure where the time of a task's updates goes, and which toggles help, predicted and measured.

    >>> print(ul.profile("leader_follower_quick", rounds=20)["verdict"])  # doctest: +SKIP
    launch-bound: of an update's 6.1 ms, starting 217 operators 62%, ...

    Returns:
        The record of ``uavlab profile``; ``verdict`` is its conclusion.

    Raises:
        ConfigError: The settings are not valid, or do not fit this machine.
    """
    from uavlab.benchmarks.profile_run import profile_preset

    name, parameters = _preset(task)
    layers = [] if toggles is None else [toggle_layer(toggles, settings.get("device"))]
    return profile_preset(name, *layers, parameters, settings, rounds=rounds)


def bench(suite: str, *, rounds: int = 30, device: Device = "auto", **options: Any) -> dict[str, Any]:
    """Measure one suite on this machine and return its record, as ``uavlab bench``.

    >>> sorted(ul.bench("env", rounds=3)["rows"][0])
    ['agent_steps_per_s', 'agents', 'env', 'setting', 'threads', 'worlds']

    Raises:
        ConfigError: There is no such suite.
    """
    from uavlab.benchmarks.registry import suites

    known = suites()
    if suite not in known:
        raise ConfigError(f"bench: unknown suite {suite!r}; expected one of {', '.join(known)}.")
    return known[suite].run(rounds, device, **options)


def watch(run: Run) -> Iterator[Progress]:
    """Train a run, drawing a progress bar with its rate and printing its scores."""
    config = run.config
    row, what = config.task.collector.pace(config)
    seconds = 0.5 if sys.stderr.isatty() else 60  # without a terminal, one line a minute
    bar = tqdm(total=config.run.updates, initial=run.number, unit="update", mininterval=seconds, maxinterval=seconds)
    with bar:
        for progress in run:
            bar.update(progress.number - bar.n)
            if progress.metrics:
                rate, limit = row * run.number / run.seconds, config.run.minutes
                clock = f", {run.seconds / 60:.1f} of {limit:g} min" if limit else ""
                bar.set_postfix_str(f"{rate:,.0f} {what}/s{clock}", refresh=False)
            if progress.score:
                figures = [f"{name} {progress.score[f'eval/{name}']:.3f}" for name in config.evaluation.score]
                tqdm.write(f"{progress.number:>8}  " + "  ".join(figures))
            yield progress


def _finish(run: Run, progress: bool, on_log: OnLog | None) -> Run:
    for step in watch(run) if progress else run:
        if on_log is not None and (step.metrics or step.score):
            on_log(run, run.recorder.rows[-1])
    return run


def _configure(task: Any, toggles: Any, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Config:
    name, parameters = _preset(task)
    chosen = [toggle_layer(toggles, options.get("device"))] if isinstance(toggles, str) else [toggles or {}]
    both = sorted(settings.keys() & options.keys())
    if both:
        raise ConfigError(f"train: {both[0]} is given twice, as an argument and in settings; leave out one.")
    return configure(name, Layer(parameters, dict.fromkeys(parameters, str(task))), *chosen, settings, options)


def _preset(task: Any) -> tuple[str, dict[str, Any]]:
    """Return a preset and settings over it; an environment's class is registered under its name if it is not yet."""
    if isinstance(task, str):
        return task, {}
    if isinstance(task, type) or not is_dataclass(task):
        raise ConfigError(
            f"task: got {task!r}; expected the name of a preset, or an environment: an instance of a frozen dataclass."
        )
    kind = type(task)
    name = next((name for name, entry in ENVIRONMENTS.items() if entry.kind is kind), kind.__name__)
    if name not in ENVIRONMENTS or ENVIRONMENTS[name].kind is not kind:  # such as a class whose cell was executed again
        ENVIRONMENTS.register(name, Environment(kind), place_of(kind))
    return name, {field.name: getattr(task, field.name) for field in fields(task)}


def _trained(what: Any) -> TrainedPolicy:
    if isinstance(what, Run):
        return what.trained()
    if isinstance(what, str | Path):
        return load(what)
    if isinstance(what, TrainedPolicy):
        return what
    raise ConfigError(f"evaluate: got {what!r}; expected a run or its folder, or a task with policy=.")
