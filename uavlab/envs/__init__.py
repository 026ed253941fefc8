"""The environments by name; a new one is one file and one line here, or one call of ``register`` from outside."""

from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.envs.leader_follower.delayed import SlowLeaderFollower
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.envs.mapping import baselines
from uavlab.envs.mapping.env import Mapping

ENVS: dict[str, type[Any]] = {
    "leader_follower": LeaderFollower,
    "slow_leader_follower": SlowLeaderFollower,
    "mapping": Mapping,
}

PLANS: dict[str, dict[str, Any]] = {
    "mapping": {
        "random": baselines.random,
        "information_gain": baselines.information_gain,
        "sweep": baselines.sweep,
    }
}
"""Policies that nothing was learned for, by environment and name: what learned ones are compared with."""


def register(name: str, env: type[Any]) -> type[Any]:
    """Make an environment class known to presets, commands and notebooks under ``name``.

    Raises:
        ConfigError: The name is taken by another class.
    """
    if ENVS.setdefault(name, env) is not env:
        raise ConfigError(f"register: {name!r} is already {ENVS[name].__qualname__}; choose another name.")
    return env
