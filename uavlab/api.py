"""Train, load and evaluate teams from Python; ``import uavlab as ul`` exposes these functions.

A task is the name of a preset or registered environment, or an environment as an object. Settings and toggles are those
of ``uavlab settings PRESET`` and ``uavlab toggles``, from the same defaults. Examples run as tests, one after another.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from uavlab.arguments import Settings, Task, Trained, config_of, layers, run_folders, task_config, trained_policy
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env
from uavlab.core.text import one_line
from uavlab.experiment import policy as policies
from uavlab.experiment import scores
from uavlab.experiment.best import Which
from uavlab.experiment.config import Device, configure
from uavlab.experiment.export import export as export_trained
from uavlab.experiment.names import run_folder
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.progress_bar import OnLog, finish
from uavlab.experiment.run import Run
from uavlab.experiment.scores import Scores
from uavlab.registration import name_and_parameters
from uavlab.testing.environment import check_form


def make(name: str, **parameters: Any) -> Any:
    """Return the environment of a preset with these parameters; their ranges are checked.

    >>> env = ul.make("leader_follower", followers=2, horizon=20)
    >>> env.spec.agents
    3

    Raises:
        ConfigError: There is no such preset, or a parameter is unknown or out of range.
    """
    env = configure(name, parameters).env
    if other := sorted(parameters.keys() - {field.name for field in fields(env)}):
        raise ConfigError(f"make: {other[0]} is a setting of a run, not of {type(env).__name__}; leave it out.")
    return env


def train(
    task: Task,
    *,
    learner: str | None = None,
    updates: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    runs: int | None = None,
    device: Device | None = None,
    toggles: str | Settings | None = None,
    settings: Settings | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    on_log: OnLog | None = None,
) -> Run:
    """Train to the end and return the run.

    >>> run = ul.train(env, updates=2, runs=2, out="runs/first", progress=False)
    >>> run.done, len(run.rows())
    (True, 4)

    Args:
        task: What is learned.
        learner: Name of a learner that fits the task; None takes the task's default.
        updates: Updates after which the run ends; None takes the preset's.
        minutes: Minutes of training after which it ends; alone, it replaces the preset's updates.
        seed: Seed of the first run; run r has seed + r.
        runs: Independent runs, trained side by side.
        device: ``auto``, ``cpu`` or ``cuda``.
        toggles: A named set (``plain``, ``eager``, ``laptop``, ``gpu``, ``max``) or values by name; None is ``eager``.
        settings: Any other settings by name.
        out: New or empty folder of the run; None keeps it in memory.
        progress: Draw a progress bar.
        on_log: Called with the run and each row of logged metrics; ``run.stop()`` ends training.

    Raises:
        ConfigError: A setting is unknown or out of range, or the folder is not empty.
        DivergedError: A number is not finite.
        ResourceError: Memory or disk space does not suffice.
    """
    run = start(
        task, learner=learner, updates=updates, minutes=minutes, seed=seed, runs=runs, device=device, toggles=toggles,
        settings=settings, out=out,
    )  # fmt: skip
    return finish(run, progress, on_log)


def start(
    task: Task,
    *,
    learner: str | None = None,
    updates: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    runs: int | None = None,
    device: Device | None = None,
    toggles: str | Settings | None = None,
    settings: Settings | None = None,
    out: str | Path | None = None,
) -> Run:
    """Build a run as ``train`` does, without training it; iterating over it trains, update by update.

    >>> run = ul.start(env, updates=2, seed=1, settings={"gamma": 0.97}, toggles="eager")
    >>> [progress.number for progress in run]
    [1, 2]

    Raises:
        ConfigError: A setting is unknown or out of range, the folder is not empty, or the environment is broken.
        ResourceError: Memory does not suffice.
    """
    given = {"learner": learner, "updates": updates, "minutes": minutes, "seed": seed, "runs": runs, "device": device}
    config = task_config(task, toggles, settings, given)
    if config.task.evaluation.check is None:
        check_form(config.env)
    return Run(config, None if out is None else Path(out).expanduser())


def resume(
    folder: str | Path,
    *,
    updates: int | None = None,
    minutes: float | None = None,
    device: Device | None = None,
    toggles: str | Settings | None = None,
    settings: Settings | None = None,
    fresh_replay: bool = False,
    progress: bool = True,
    on_log: OnLog | None = None,
) -> Run:
    """Train a stored run on to its target, or to another one; targets count from the beginning of the run.

    >>> ul.resume("runs/first", updates=3, settings={"lr": 1e-4}, progress=False).number
    3

    Raises:
        FileError: The folder is no run, or no checkpoint in it is intact.
        ConfigError: A change does not fit the saved state, or sets no later target for a run that is at its target.
    """
    changes = layers(toggles, settings, {"updates": updates, "minutes": minutes, "device": device})
    return finish(Run.resume(run_folder(folder), *changes, fresh_replay=fresh_replay), progress, on_log)


def load(folder: str | Path, device: Device | None = None, which: Which = "best") -> TrainedPolicy:
    """Load a policy of a stored run, or of an exported copy.

    >>> act = ul.load("runs/first").policy(run=1)
    >>> act(env.observe(env.initial(torch.rand(5, env.spec.initial_noise)))).shape
    torch.Size([5, 3, 2])

    Args:
        folder: Folder of the run or copy.
        device: Where it acts; None takes the device of its settings.
        which: ``best``, with the best score of the team; ``best_by_group``, where each group has its own best score
            (``group_scores`` of the environment); or ``last``, the newest. The score of the latter two is unknown.

    Raises:
        FileError: The folder is no run, or has no intact checkpoint.
        ConfigError: Its environment is not registered here, its settings do not fit this machine, or there is no such
            policy.
    """
    return policies.load(run_folder(folder), device, which)


def evaluate(
    what: Trained | Env[Any],
    *,
    policy: str | Callable[[Any], Tensor] | None = None,
    env: Env[Any] | None = None,
    episodes: int = 200,
    seed: int = 0,
    mean_action: bool = False,
    device: Device | None = None,
) -> Scores:
    """Return figures with 95 % intervals of a trained team, or of a policy without training.

    >>> trained, random = ul.evaluate(run, episodes=4), ul.evaluate(env, policy="random", episodes=4)
    >>> trained["return"]["low"] <= trained["return"]["mean"] <= trained["return"]["high"]
    True

    Args:
        what: A run or its folder; with ``policy`` also a task.
        policy: Name of a baseline (``random`` needs no registration), or a function of observations (B A O) that
            returns actions (B A D). None takes the best policy of the run.
        env: Environment to act in, whose team may differ in size; None takes the evaluation task.
        episodes: Episodes of each seed.
        seed: Seed of the episodes; equal seeds give every policy equal episodes.
        mean_action: Use the mean action, or the likeliest move, instead of sampling.
        device: Where to evaluate a task or a folder; None takes the device of its settings.

    Raises:
        ConfigError: The task has no such baseline, or it is neither a run nor a task.
        FileError: The folder is no run, or has no intact checkpoint.
    """
    if policy is None:
        return scores.evaluate(trained_policy("evaluate", what, device), episodes, seed, mean_action, env)
    return scores.evaluate_baseline(config_of(what, device), policy, episodes, seed, env)


def fly(
    what: Trained | Env[Any],
    out: str | Path | None = None,
    *,
    policy: str | Callable[[Any], Tensor] | None = None,
    env: Env[Any] | None = None,
    seed: int = 0,
    mean_action: bool = False,
    run: int = 0,
) -> Any:
    """Return an animated flight of a team, a plotly figure, and write it to a file if one is named.

    >>> figure = ul.fly(run, "flight.html")
    >>> baseline = ul.fly(env, policy="random")

    Args:
        what: A run or its folder; with ``policy`` also a task.
        out: A page (``.html``), which needs no network, a film (``.gif``, ``.webp``, ``.mp4``), or one moment
            (``.png``, ``.svg``, ``.pdf``).
        policy: As in ``evaluate``.
        env: Environment to fly in, whose team may differ in size; None takes the evaluation task.
        seed: Seed of the flight.
        mean_action: Use the mean action, or the likeliest move, instead of sampling.
        run: Number of the seed among those of the run.

    Raises:
        ConfigError: The environment cannot be drawn (``ul.scene``) or has no team that flies, or the file has another
            suffix.
        MissingPackageError: Packages that draw are not installed.
        ResourceError: The file cannot be written, or there is no browser to draw a film.
    """
    from uavlab.lab import films
    from uavlab.lab.plots import flight

    if out is not None:
        films.require_kind(Path(out))
    if policy is None:
        trained = trained_policy("fly", what)
        config, states = trained.config, policies.fly(trained, seed, mean_action, run, env)
    else:
        config = config_of(what)
        states = scores.fly_baseline(config, policy, seed, env)
    history = list(states)
    figure = flight.animate(env or config.evaluation, history).update_layout(meta={"steps": len(history) - 1})
    if out is not None:
        films.write(figure, Path(out))
    return figure


def report(
    runs: Trained | Iterable[Trained],
    out: str | Path | None = None,
    *,
    episodes: int = 200,
    seed: int = 0,
    mean_action: bool = False,
    device: Device | None = None,
) -> Path:
    """Write one page about runs, finished or not, and return it; what cannot be read of one is left out, and warned of.

    The page needs no network: scores, learning curves, flights, settings, machines, commands. Seeds of runs that differ
    by their seed alone are pooled, like those of one run.

    >>> ul.report("runs/first", "report.html", episodes=4).name
    'report.html'

    Args:
        runs: A run that has a folder, or the folder; or several of these.
        out: The page; None takes ``report.html`` in the folder of the run, of several in the folder above the first.
        episodes: Episodes by which each seed is scored.
        seed: Seed of the episodes and flights.
        mean_action: Use the mean action, or the likeliest move, instead of sampling.
        device: Where to evaluate; None takes the device of each run's settings.

    Raises:
        ConfigError: There is no run, one is kept in memory, or its environment is not registered here.
        FileError: A folder is no run, or its settings are damaged.
        MissingPackageError: Packages that draw are not installed.
        ResourceError: The page cannot be written.
    """
    from uavlab.lab.report import write_report
    from uavlab.lab.run_files import Scoring

    folders, scoring = run_folders("report", runs), Scoring(episodes, seed, mean_action, device)
    page, missing = write_report(folders, None if out is None else Path(out), scoring)
    for note in missing:
        warnings.warn(one_line(note), stacklevel=2)
    return page


def export(what: Trained, out: str | Path, *, run: int = 0, agent: int | None = None) -> Path:
    """Write a trained policy to a new file or folder, and return it.

    A name that ends in ``.pt2`` or ``.onnx`` is a file that runs without uavlab: the policy of one seed, and
    ``FILE.json`` that describes inputs, outputs and loading. A name without a suffix is a folder for ``load``.

    >>> ul.export(run, "team.pt2").name, ul.export(run, "copies/first").name
    ('team.pt2', 'first')

    Args:
        what: A run or its folder.
        out: The file or folder.
        run: Of a file: number of the seed among those of the run.
        agent: Of a file: number of an agent that leaves its team; None exports the whole team.

    Raises:
        ConfigError: The file exists or has another suffix, the folder is not empty, or there is no such seed or agent.
        MissingPackageError: A package that ``.onnx`` needs is not installed.
        ResourceError: A file cannot be written.
    """
    return export_trained(trained_policy("export", what, "cpu"), Path(out), run, agent)


def profile(
    task: Task,
    *,
    toggles: str | Settings | None = None,
    settings: Settings | None = None,
    rounds: int = 20,
    trace: str | Path | None = None,
    every: bool = False,
) -> dict[str, Any]:
    """Measure where the time of a task's updates goes, and which toggles help, predicted and measured.

    >>> print(ul.profile("leader_follower_quick", rounds=20)["verdict"])  # doctest: +SKIP
    launch-bound: of an update's 6.1 ms, starting 217 operators 62%, ...

    Args:
        task: What is learned.
        toggles: As in ``train``; candidates are changes of these.
        settings: As in ``train``.
        rounds: Interleaved repetitions, at most.
        trace: Where to write a trace for Perfetto.
        every: Measure every usable toggle, not the three most promising.

    Returns:
        The record of ``uavlab profile``; ``verdict`` is its conclusion.

    Raises:
        ConfigError: The settings are not valid, or do not fit this machine.
    """
    from uavlab.benchmarks.profile_run import profile_preset

    name, parameters = name_and_parameters(task)
    given = layers(toggles, settings, {}, parameters)
    return profile_preset(name, *given, rounds=rounds, trace=None if trace is None else Path(trace), every=every)
