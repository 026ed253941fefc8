"""Train, load and evaluate teams from Python; ``import uavlab as ul`` exposes these functions.

A task is the name of a preset or registered environment, or an environment as an object. Settings and toggles are those
of ``uavlab settings PRESET`` and ``uavlab toggles``, from the same defaults. Examples run as tests, one after another.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from uavlab.arguments import Settings, Task, Trained, config_of, environment, layers, task_config, trained_policy
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env
from uavlab.core.text import quote
from uavlab.experiment import policy as policies
from uavlab.experiment import scores
from uavlab.experiment.best import Which
from uavlab.experiment.config import Config, Device
from uavlab.experiment.cross_play import CrossPlay
from uavlab.experiment.cross_play import cross_play as meet
from uavlab.experiment.export import export as export_trained
from uavlab.experiment.names import run_folder
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.progress_bar import OnLog, finish
from uavlab.experiment.run import Run
from uavlab.experiment.scores import Scores
from uavlab.experiment.transfer import Transfer, places_by_size, places_by_stage
from uavlab.experiment.transfer import transfer as transfer_policy
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.testing.environment import check_form


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
    """Build a run of these settings, as ``start`` does.

    Raises:
        ConfigError: The folder is not empty, or the environment is broken.
        ResourceError: Memory does not suffice.
    """
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


def _player(what: Any) -> Any:
    """Return a trained policy where one is meant, otherwise the name of a baseline or a function."""
    is_run = isinstance(what, Run | TrainedPolicy | Path) or (isinstance(what, str) and Path(what).exists())
    return trained_policy("cross_play", what) if is_run else what


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
