"""Registered environments; a new one is a class and one registration, inside or outside the package."""

from typing import Any

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs import leader_follower, mapping, pursuit, spread, target_assignment

__all__ = ["leader_follower", "mapping", "pursuit", "register", "spread", "target_assignment"]


def register(name: str, env: type[Any], **entry: Any) -> type[Any]:
    """Register an environment under ``name`` for presets, commands and notebooks.

    The class is a frozen dataclass that implements ``uavlab.core.protocols.Env``; ``entry`` holds other
    fields of ``uavlab.core.registry.Environment``, such as ``learner`` and ``baselines``.
    """
    ENVIRONMENTS.register(name, Environment(env, **entry))
    return env
