"""Environments of this package in the libraries of others: PettingZoo, Gymnasium and TorchRL.

A face is an object of the other library's class over worlds of an environment, which it steps as one batch. Its random
numbers come from streams of its own (``core.rng``); without a seed they differ from object to object.
"""

import multiprocessing
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from uavlab.api import Task, environment
from uavlab.core.errors import ConfigError, reason_of
from uavlab.core.extras import require
from uavlab.core.text import quote
from uavlab.core.types import EnvSpec
from uavlab.interop.simulator import Simulator
from uavlab.testing.environment import check_form

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode

    from uavlab.interop.gymnasium import TeamEnv, TeamVectorEnv
    from uavlab.interop.pettingzoo import TeamParallelEnv
    from uavlab.interop.torchrl import TeamEnvBase


def to_pettingzoo(task: Task, **parameters: Any) -> "TeamParallelEnv":
    """Return one world of a task as a ``ParallelEnv`` of PettingZoo.

    >>> world = ul.to_pettingzoo("pursuit", evaders=2)
    >>> seen, _ = world.reset(seed=0)
    >>> world.agents[-2:], seen["evaders_0"]["observation"].shape, world.action_space("evaders_0")
    (['evaders_0', 'evaders_1'], (14,), Discrete(5))

    Each agent has spaces of its own sizes, without padding. Agents are numbered within their groups, and leave
    ``agents`` when their task has ended. ``action_mask`` marks the moves that an agent may choose; all agents choose at
    once. The maps of a team are its ``state()``.

    Args:
        task: Name of a preset or environment, or an environment.
        parameters: Its parameters.

    Raises:
        ConfigError: There is no such task, it has no team, or a parameter is unknown or out of range.
        MissingPackageError: PettingZoo or Gymnasium is not installed.
    """
    require("external", "to_pettingzoo", "pettingzoo", "gymnasium")
    from uavlab.interop.pettingzoo import TeamParallelEnv

    return TeamParallelEnv(_simulator("to_pettingzoo", task, parameters))


def to_gymnasium(
    task: Task, worlds: int | None = None, autoreset_mode: "AutoresetMode | str" = "SameStep", **parameters: Any
) -> "TeamEnv | TeamVectorEnv":
    """Return worlds of a task as a ``VectorEnv`` of Gymnasium, or one world as an ``Env``.

    >>> envs = ul.to_gymnasium("spread", worlds=4)
    >>> seen, _ = envs.reset(seed=0)
    >>> seen, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
    >>> seen.shape, reward.shape  # 4 worlds of 3 agents
    ((4, 3, 14), (4,))

    A team counts as one agent: its observation and action are those of all its agents (A O and A D, groups padded to
    the widest), and its reward is the mean of the agents that take part, so that returns are those of ``ul.evaluate``.
    Its episode ends when the tasks of all agents have ended. Worlds that end are replaced within the same step, and
    ``infos["final_obs"]`` holds their last observations; or by the next step, as Gymnasium's wrappers of observations
    require.

    Args:
        task: Name of a preset or environment, or an environment.
        worlds: Worlds of the ``VectorEnv``; None for an ``Env`` of one world.
        autoreset_mode: When the ``VectorEnv`` replaces worlds, ``SameStep`` or ``NextStep`` of Gymnasium.
        parameters: Parameters of the environment.

    Raises:
        ConfigError: There is no such task or mode, the task has no team, or a parameter is unknown or out of range.
        MissingPackageError: Gymnasium is not installed.
    """
    require("external", "to_gymnasium", "gymnasium")
    from uavlab.interop.gymnasium import TeamEnv, TeamVectorEnv

    if worlds is None:
        return TeamEnv(_simulator("to_gymnasium", task, parameters))
    return TeamVectorEnv(_simulator("to_gymnasium", task, parameters, worlds), autoreset_mode)


def to_torchrl(
    task: Task,
    worlds: int = 1,
    device: torch.device | str = "cpu",
    group_map: Mapping[str, Sequence[str]] | None = None,
    **parameters: Any,
) -> "TeamEnvBase":
    """Return worlds of a task as an ``EnvBase`` of TorchRL with the batch size (worlds).

    >>> batch = ul.to_torchrl("leader_follower", worlds=4, followers=2)
    >>> batch.group_map
    {'group_0': ['agent_0'], 'group_1': ['agent_1', 'agent_2']}
    >>> steps = batch.rollout(5, break_when_any_done=False)  # a world that ends starts again
    >>> steps["next", "group_1", "reward"].shape  # worlds, steps, agents, 1
    torch.Size([4, 5, 2, 1])

    Agents that may share a network form a group: ``agents`` if all of them do. A group's entries have an axis of its
    agents and sizes of its own, without padding: ``observation``, ``action_mask``, ``action``, ``reward``, and
    ``done``, ``terminated`` and ``truncated`` of each agent. Those of a world are at the root, and so is ``state``, the
    maps of a team. An agent whose task has ended waits for the others, without reward. A step never waits for a GPU.

    Args:
        task: Name of a preset or environment, or an environment.
        worlds: Worlds, which are stepped as one batch.
        device: Device of all tensors, such as ``cuda``.
        group_map: Names of the agents of each group; None for the groups above.
        parameters: Parameters of the environment.

    Raises:
        ConfigError: There is no such task or device, the task has no team, ``group_map`` does not fit its agents, or a
            parameter is unknown or out of range.
        MissingPackageError: TorchRL is not installed.
    """
    require("torchrl", "to_torchrl", "torchrl", "tensordict")
    import_torchrl()
    from uavlab.interop.torchrl import TeamEnvBase

    return TeamEnvBase(_simulator("to_torchrl", task, parameters, worlds, device), group_map)


def import_torchrl() -> None:
    """Import TorchRL, which makes ``spawn`` the way in which this program starts processes, and undo that."""
    before = multiprocessing.get_start_method(allow_none=True)
    import_module("torchrl")
    multiprocessing.set_start_method(before, force=True)


def _simulator(
    function: str, task: Task, parameters: dict[str, Any], worlds: int = 1, device: torch.device | str = "cpu"
) -> Simulator:
    env = environment(function, task, parameters)
    if not isinstance(env.spec, EnvSpec):
        name = type(env).__name__
        raise ConfigError(f"{function}: {name} has no team of agents; expected a task in which agents act.")
    if type(worlds) is not int or worlds < 1:
        raise ConfigError(f"{function}: worlds={quote(worlds)}; expected a whole number from 1 up.")
    check_form(env)
    try:
        place = torch.zeros(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:  # torch without CUDA asserts
        raise ConfigError(f"{function}: device={quote(device)}: {reason_of(error)}; expected one of torch.") from error
    return Simulator(env, worlds, place)
