"""Train, load and evaluate teams from Python; ``import uavlab as ul`` exposes these functions.

A task is the name of a preset or registered environment, or an environment as an object. Settings and toggles are those
of ``uavlab settings PRESET`` and ``uavlab toggles``, from the same defaults. Examples run as tests, one after another.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from threading import Event
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

from uavlab.core.errors import ConfigError
from uavlab.core.extras import load_lab, require
from uavlab.core.protocols import Env
from uavlab.core.text import one_line, quote
from uavlab.experiment import fit as search
from uavlab.experiment import policy as policies
from uavlab.experiment import scores
from uavlab.experiment.config import Config, Device, Layer, configure, single_layer, toggle_layer
from uavlab.experiment.cross_play import CrossPlay
from uavlab.experiment.cross_play import cross_play as meet
from uavlab.experiment.export import export as export_trained
from uavlab.experiment.fit import Fit
from uavlab.experiment.names import run_folder
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.progress_bar import OnLog, finish
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config
from uavlab.experiment.schedules import Which
from uavlab.experiment.scores import Scores
from uavlab.experiment.sizes import MOST
from uavlab.experiment.transfer import Transfer, places_by_size, places_by_stage
from uavlab.experiment.transfer import transfer as transfer_policy
from uavlab.registration import name_and_parameters
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.sweeps.driver import SCORED, run_sweep
from uavlab.sweeps.spec import Sweep, read_sweep
from uavlab.sweeps.table import SweepTable
from uavlab.testing.environment import check_form

Task = str | Env[Any]
Settings = Mapping[str, Any]
Trained = Run | TrainedPolicy | str | Path


def make(name: str, **parameters: Any) -> Any:
    """Return the environment of a preset with these parameters; their ranges are checked.

    >>> env = ul.make("leader_follower", followers=2, horizon=20)
    >>> env.spec.agents
    3

    Raises:
        ConfigError: There is no such preset, or a parameter is unknown or out of range.
    """
    return environment("make", name, parameters)


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
    monitor: bool | None = None,
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
        monitor: Whether the time of each stage, load and memory are logged.
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
        settings=settings, monitor=monitor, out=out,
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
    monitor: bool | None = None,
    out: str | Path | None = None,
    ranks: Ranks = ALONE,
) -> Run:
    """Build a run as ``train`` does, without training it; iterating over it trains, update by update.

    ``ranks`` are those that train it together, see ``uavlab.runtime.ranks``.

    >>> run = ul.start(env, updates=2, seed=1, settings={"gamma": 0.97}, toggles="eager")
    >>> [progress.number for progress in run]
    [1, 2]

    Raises:
        ConfigError: A setting is unknown or out of range, the folder is not empty, or the environment is broken.
        ResourceError: Memory does not suffice.
    """
    given = {"learner": learner, "updates": updates, "minutes": minutes, "seed": seed, "runs": runs}
    return build_run(task_config(task, toggles, settings, {**given, "device": device, "monitor": monitor}), out, ranks)


def build_run(config: Config, out: str | Path | None = None, ranks: Ranks = ALONE) -> Run:
    """Build a run of these settings, as ``start`` does, with its errors."""
    if config.task.evaluation.flies:
        check_form(config.env)
    return Run(config, None if out is None else Path(out).expanduser(), ranks)


def resume(
    folder: str | Path,
    *,
    updates: int | None = None,
    minutes: float | None = None,
    device: Device | None = None,
    toggles: str | Settings | None = None,
    settings: Settings | None = None,
    monitor: bool | None = None,
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
    given = {"updates": updates, "minutes": minutes, "device": device, "monitor": monitor}
    changes = layers(toggles, settings, given)
    return finish(Run.resume(run_folder(folder), *changes, fresh_replay=fresh_replay), progress, on_log)


def load(folder: str | Path, device: Device | None = None, which: Which = "best") -> TrainedPolicy:
    """Load a policy of a stored run, or of an exported copy.

    >>> act = ul.load("runs/first").policy(run=1)
    >>> act(env.observe(env.initial(torch.rand(5, env.spec.initial_noise)))).shape
    torch.Size([5, 3, 2])

    Args:
        folder: Folder of the run or copy.
        device: Where it acts; None takes the device of its settings.
        which: ``best``, with the team's highest score in training; ``best_by_group``, the highest of each group
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


def cross_play(
    players: Mapping[str, Trained | Callable[[Any], Tensor]],
    task: Task | None = None,
    *,
    episodes: int = 200,
    seed: int = 0,
    mean_action: bool = False,
) -> CrossPlay:
    """Score groups of a team that meet, each by a player of its own, in every pairing of players.

    >>> play = ul.cross_play({"plan": "chase", "random": "random"}, "pursuit", episodes=8)
    >>> play.score("pursuers", "plan", "random")["mean"] > play.score("pursuers", "random", "plan")["mean"]
    True

    Args:
        players: Runs, their folders, names of baselines or functions of observations, by name. Of a name that is a
            folder the run is taken.
        task: Whose evaluation task is flown; None takes that of the first run among the players.
        episodes: Episodes of each pairing and seed.
        seed: Seed of the episodes, equal for every pairing.
        mean_action: Use mean actions, or the likeliest moves, instead of sampling.

    Raises:
        ConfigError: There is no player or no run, groups have no scores, or a policy cannot act in the environment.
        FileError: A folder holds no intact checkpoint.
    """
    loaded = {name: _player(each) for name, each in players.items()}
    first = next((each for each in loaded.values() if isinstance(each, TrainedPolicy)), None)
    if first is None and task is None:
        raise ConfigError("cross_play: no player is a run, so the task is not known; pass task=PRESET.")
    return meet(loaded, config_of(first if task is None else task), episodes, seed, mean_action)


def transfer(
    what: Trained,
    sizes: Sequence[int] = (),
    *,
    stages: str = "",
    policies: Sequence[str] = (),
    episodes: int = 200,
    seed: int = 0,
    mean_action: bool = False,
) -> Transfer:
    """Score a trained policy in teams of other sizes, or at each stage of a curriculum, without training.

    >>> table = ul.transfer(run, [1, 3], episodes=4)
    >>> [row["settings"] for row in table.rows]
    [{'followers': 1}, {'followers': 3}]

    Args:
        what: A run or its folder.
        sizes: Of the settings that the environment's ``sizes`` name.
        stages: In place of sizes, a preset whose curriculum has the stages.
        policies: Names of baselines that are scored, too.
        episodes: Episodes of each size and seed.
        seed: Seed of the episodes.
        mean_action: Use the mean action, or the likeliest move, instead of sampling.

    Raises:
        ConfigError: The environment has no such sizes, the preset no such stages, or the policy cannot act there.
        FileError: The folder is no run, or has no intact checkpoint.
    """
    trained = trained_policy("transfer", what)
    if stages and sizes:
        raise ConfigError(f"transfer: got sizes {list(sizes)} and stages {quote(stages)}; expected one of them.")
    env = trained.config.evaluation
    places = places_by_stage(env, stages) if stages else places_by_size(env, sizes)
    return transfer_policy(trained, places, "stage" if stages else "size", episodes, seed, mean_action, policies)


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
        out: A page (``.html``), which needs no network, a film (``.mp4``), or one moment (``.png``, ``.svg``,
            ``.pdf``).
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
    films, flight = load_lab("films", "fly"), load_lab("plots.flight", "fly")
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
    page, _, missing = write_report(runs, out, episodes, seed, mean_action, device)
    for note in missing:
        warnings.warn(one_line(note), stacklevel=2)
    return page


def write_report(
    runs: Any, out: str | Path | None, episodes: int, seed: int, mean_action: bool, device: Device | None
) -> tuple[Path, list[Path], list[str]]:
    """Write the page of ``report``; return it, the folders of the runs, and what cannot be read of one."""
    scoring = load_lab("run_files", "report").Scoring(episodes, seed, mean_action, device)
    folders, page = run_folders("report", runs), None if out is None else Path(out)
    page, missing = load_lab("report", "report").write_report(folders, page, scoring)
    return page, folders, missing


def sweep(what: Mapping[str, Any] | str | Path, out: str | Path, *, progress: bool = True) -> SweepTable:
    """Train all trials of a sweep, several at once, in processes of their own; write its table and its page.

    Trials that are complete in the folder are not trained again, others are resumed, so a second call goes on. An
    interrupt ends all trials after their updates. A sweep of which no trial has a score warns.

    >>> table = ul.sweep(many, "sweeps/rates", progress=False)  # goes on; nothing is left to do
    >>> mean, low, high = table.compare("lr=0.001", "lr=0.0003")

    Args:
        what: A YAML file, or a table with its keys; ``uavlab sweep --help`` lists them.
        out: Folder of the sweep: new, empty, or that of an earlier call.
        progress: Draw a progress bar.

    Raises:
        ConfigError: Keys or settings are unknown or wrong, or the folder is in use or holds something else.
        FileError: The result of a trial, or the file of a search, is damaged; the message says what to delete.
        MissingPackageError: Packages that draw, search or distribute are not installed.
        ResourceError: The folder cannot be written, or no Ray cluster can be joined.
    """
    table, _ = run_and_report(read_sweep(what), Path(out), Event(), progress)
    if table.failure:
        warnings.warn(f"sweep: {table.failure}", stacklevel=2)
    return table


def run_and_report(spec: Sweep, out: Path, stop: Event, progress: bool = True) -> tuple[SweepTable, Path]:
    """Run a sweep, write its table and its page, and return both; ``stop`` ends it early."""
    require("sweep", "sweep", "plotly")
    pages = load_lab("sweep_report", "sweep")  # before hours of trials
    rows, live = [], sys.stderr.isatty() or "ipykernel" in sys.modules
    seconds = 0.5 if live else 60
    bar = tqdm(total=spec.count, unit="trial", disable=not progress, mininterval=seconds, delay=1e-3)  # not yet
    with bar, closing(run_sweep(spec, out, stop)) as ended:
        for row in ended:
            rows.append(row)
            bar.update()
            if row["status"] not in (*SCORED, "interrupted"):
                bar.write(one_line(f"{row['trial']}: {row['status']}: {row['reason']}"), file=sys.stderr)
    table = SweepTable(out.resolve(), spec, tuple(sorted(rows, key=lambda row: row["number"])))
    table.write()
    return table, pages.write_sweep_report(table)


def fit(
    task: Task,
    *,
    memory: int | str | None = None,
    most: int = MOST,
    margin: float = search.MARGIN,
    device: Device | None = None,
    toggles: str | Settings | None = None,
    settings: Settings | None = None,
    progress: bool = True,
) -> Fit:
    """Measure how many worlds a task should have here, and search for the largest batch that fits into memory.

    Worlds are the fewest whose collector makes nearly as many agent steps per second as with any number. Where an
    update learns from all steps of its worlds, the fewest minibatches that fit are searched for.

    >>> few = {"capacity": 64, "worlds": 4, "batch": 8, "learning_starts": 8}
    >>> sizes = ul.fit("spread", memory="100MB", most=4, settings=few, progress=False)
    >>> sorted(sizes.settings), str(sizes).startswith("worlds 1: ")
    (['batch', 'worlds'], True)

    Args:
        task: What is learned.
        memory: Limit on the bytes of tensors, such as ``"512MB"``; None takes half of what a CPU has free, or what a
            GPU grants.
        most: Largest number of worlds, and of rows of a batch, that is tried.
        margin: Share in [0, 1) of worlds and rows to leave free.
        device: ``auto``, ``cpu`` or ``cuda``.
        toggles: As in ``train``.
        settings: As in ``train``.
        progress: Print each trial.

    Returns:
        ``settings`` for ``train``, ``trials``, and ``lines`` that say what was tried, which ``str`` joins.

    Raises:
        ConfigError: The settings are not valid or do not fit this machine, or the limit is no number of bytes.
        ResourceError: The smallest sizes do not fit.
    """
    config = task_config(task, toggles, settings, {"device": device})
    return search.fit(config, memory, most, margin, print if progress else lambda line: None)


def profile(
    task: Task,
    *,
    toggles: str | Settings | None = None,
    settings: Settings | None = None,
    rounds: int = 20,
    trace: str | Path | None = None,
    every: bool = False,
    limit: float | None = None,
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
        every: Measure every usable toggle, not only the most promising, and whole cycles, not shorter ones.
        limit: Time after the start (s) beyond which no further function is compiled for a trial; None: 75 s, or
            with ``every`` no limit.

    Returns:
        The record of ``uavlab profile``; ``verdict`` is its conclusion, and ``str`` formats stages and toggles.

    Raises:
        ConfigError: The settings are not valid, or do not fit this machine, or the limit is below 0.
    """
    name, parameters = name_and_parameters(task)
    given = layers(toggles, settings, {}, parameters)
    where = None if trace is None else Path(trace)
    measure = load_lab("measure.profile_run", "profile")
    return measure.profile_preset(name, *given, rounds=rounds, trace=where, every=every, limit=limit)


def task_config(task: Any, toggles: Any, settings: Settings | None, options: Settings) -> Config:
    name, parameters = name_and_parameters(task)
    return configure(name, *layers(toggles, settings, options, parameters))


def environment(function: str, task: Task, parameters: Settings) -> Any:
    """Return the environment of a task with these parameters over it; ``function`` is named in errors."""
    name, own = name_and_parameters(task)
    env = configure(name, own, parameters).env
    if other := sorted(parameters.keys() - {field.name for field in fields(env)}):
        raise ConfigError(f"{function}: {other[0]} is a setting of a run, not of {type(env).__name__}; leave it out.")
    return env


def layers(toggles: Any, settings: Any, options: Settings, parameters: Settings | None = None) -> list[Layer]:
    """Return a named set of toggles, and over it what is given by name: no setting twice."""
    single = {} if isinstance(toggles, str) else toggles or {}
    given = {name: value for name, value in options.items() if value is not None}
    sources = {"the environment": parameters or {}, "toggles": single, "settings": settings or {}, "an argument": given}
    for source, values in sources.items():
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: got {quote(values)}; expected values by name, such as {{'lr': 1e-3}}.")
    over = single_layer(
        (name, value, getattr(values, "origins", {}).get(name, source))
        for source, values in sources.items()
        for name, value in values.items()
    )
    return [toggle_layer(toggles, over.get("device")), over] if isinstance(toggles, str) else [over]


def config_of(what: Any, device: Device | None = None) -> Config:
    """Return the settings of a run or of its folder, or of a task."""
    if isinstance(what, Run | TrainedPolicy):
        return what.config
    if isinstance(what, str | Path) and os.path.exists(Path(what, "config.json")):
        return read_config(Path(what), *([] if device is None else [{"device": device}]))
    return task_config(what, None, None, {"device": device})


def trained_policy(function: str, what: Any, device: Device | None = None) -> TrainedPolicy:
    """Return the best policy of a run or of its folder; ``function`` is named in the error."""
    if isinstance(what, Run):
        return what.trained()
    if isinstance(what, str | Path):
        return policies.load(run_folder(what), device)
    if isinstance(what, TrainedPolicy):
        return what
    raise ConfigError(f"{function}: got {quote(what)}; expected a run or its folder, or a task and policy=.")


def _player(what: Any) -> Any:
    """Return a trained policy where one is meant, otherwise the name of a baseline or a function."""
    is_run = isinstance(what, Run | TrainedPolicy | Path) or (isinstance(what, str) and Path(what).exists())
    return trained_policy("cross_play", what) if is_run else what


def run_folders(function: str, runs: Any) -> list[Path]:
    """Return the folders of a run or of several, each once; ``function`` is named in errors."""
    several = isinstance(runs, Iterable) and not isinstance(runs, Trained)  # iterating over a run would train it
    folders = [_folder(function, run) for run in (runs if several else [runs])]
    if not folders:
        raise ConfigError(f"{function}: got no run; expected at least one.")
    return [*{folder.resolve(): folder for folder in folders}.values()]


def _folder(function: str, run: Any) -> Path:
    if isinstance(run, str | Path):
        return run_folder(run)
    if not isinstance(run, Run | TrainedPolicy):
        raise ConfigError(f"{function}: got {quote(run)}; expected a run that is kept in a folder, or its folder.")
    if run.folder is None:
        raise ConfigError(f"{function}: {run!r} has no folder; train it with out=FOLDER, or export it to one.")
    return run.folder
