"""Informative mapping with a team of UAVs, batched over missions."""

import warnings
from dataclasses import fields
from typing import Any

from uavlab.core.errors import FallbackWarning
from uavlab.core.extras import install_command
from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs.mapping import fusion
from uavlab.envs.mapping.baselines import expected_entropy, information_gain, random, sweep
from uavlab.envs.mapping.env import Mapping, OverwrittenMapping
from uavlab.envs.mapping.numpy_reference import HostMapping


def implementation(env: Mapping, rt: Any) -> Mapping:
    """Return the implementation of the environment that the runtime's toggle ``maps`` selects."""
    if rt.device.type == "cpu" and rt.toggles.maps != "host" and not fusion.NUMBA:
        slow = f"mapping: numba is not installed, so steps take many times as long; {install_command('mapping')}."
        warnings.warn(slow, FallbackWarning, stacklevel=2)
    if rt.toggles.maps == "device":
        return env
    if rt.toggles.maps == "host" and rt.device.type != "cpu":
        rt.fall_back("maps", f"numpy and OpenCV work on the CPU, this run is on {rt.device.type}")
        return env
    kind = HostMapping if rt.toggles.maps == "host" else OverwrittenMapping
    return kind(**{f.name: getattr(env, f.name) for f in fields(env)})


ENVIRONMENTS.register(
    "mapping",
    Environment(
        Mapping,
        learner="coma",
        baselines={
            "random": random,
            "information_gain": information_gain,
            "expected_entropy": expected_entropy,
            "sweep": sweep,
        },
        implementation=implementation,
    ),
)
