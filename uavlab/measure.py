"""Measurements of a task from Python: sizes that suit this machine, and where the time of its updates goes."""

from pathlib import Path
from typing import Any

from uavlab.arguments import Settings, Task, layers, task_config
from uavlab.experiment import fit as search
from uavlab.experiment.config import Device
from uavlab.experiment.fit import Fit
from uavlab.experiment.throughput import MOST
from uavlab.registration import name_and_parameters


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
    stacks: bool = False,
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
        stacks: Name the function that calls each operator.
        limit: Time after the start (s) beyond which no further function is compiled for a trial; None: 75 s, or
            with ``every`` no limit.

    Returns:
        The record of ``uavlab profile``; ``verdict`` is its conclusion, and ``str`` formats stages and toggles.

    Raises:
        ConfigError: The settings are not valid, or do not fit this machine, or the limit is below 0.
    """
    from uavlab.benchmarks.profile_run import profile_preset

    name, parameters = name_and_parameters(task)
    given = layers(toggles, settings, {}, parameters)
    where = None if trace is None else Path(trace)
    return profile_preset(name, *given, rounds=rounds, trace=where, every=every, stacks=stacks, limit=limit)
