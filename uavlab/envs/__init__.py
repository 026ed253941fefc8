"""The environments by name; a new one is its file and one registration, from inside or from outside the package."""

from typing import Any

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs import leader_follower, mapping

__all__ = ["leader_follower", "mapping", "register"]


def register(name: str, env: type[Any], **entry: Any) -> type[Any]:
    """Make an environment known to presets, commands and notebooks under ``name``.

    The class is a frozen dataclass that keeps the contract of ``uavlab.core.protocols.Env``; ``entry`` holds other
    fields of ``uavlab.core.registry.Environment``, such as ``learner`` and ``baselines``.

    Raises:
        ConfigError: The name belongs to another class.
    """
    ENVIRONMENTS.register(name, Environment(env, **entry))
    return env
