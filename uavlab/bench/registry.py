"""Every suite of ``uavlab bench`` by name: rounds and device to a record of rows."""

from collections.abc import Callable
from typing import Any

from uavlab.bench.suites.ladder import ladder_suite
from uavlab.bench.suites.mapping import maps_suite, missions_suite
from uavlab.bench.suites.replay import replay_suite
from uavlab.bench.suites.runs import learning_suite, runs_suite
from uavlab.bench.suites.telemetry import telemetry_suite
from uavlab.bench.suites.update import env_suite, guard_suite, update_suite

SUITES: dict[str, Callable[..., dict[str, Any]]] = {
    "update": update_suite,
    "env": env_suite,
    "guard": guard_suite,
    "replay": replay_suite,
    "ladder": ladder_suite,
    "maps": maps_suite,
    "missions": missions_suite,
    "telemetry": telemetry_suite,
    "runs": runs_suite,
    "learning": learning_suite,
}
