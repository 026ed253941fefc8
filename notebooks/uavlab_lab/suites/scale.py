"""What several devices would do: measured times and gradients of each system, and a model of what adding them takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from uavlab.benchmarks import Option, Record, suite
from uavlab.experiment import build
from uavlab.experiment.config import Config, Device, configure
from uavlab.experiment.schedules import gradient_steps
from uavlab.profiling.timing import median, time_in_turn
from uavlab.runtime.stage_timer import Monitor
from uavlab.training import make_cycle
from uavlab_lab.scaling import Link, Load, gain, update_seconds

SYSTEMS = {
    "leader_follower": "leader_follower_published",
    "mapping": "mapping_quick",
    "assignment": "assignment_quick",
    "telemetry": "telemetry_full",
    "scale_out": "scale_out_balanced",
}
"""A preset of each system of the claims."""

CLUSTERS: dict[str, tuple[int, Link]] = {
    "8 devices, 300 GB/s": (8, Link(300e9, 10e-6)),
    "8 machines of 8, 100 Gbit/s": (64, Link(12.5e9, 50e-6)),
    "64 machines of 8, 100 Gbit/s": (512, Link(12.5e9, 50e-6)),
    "8 machines, 1 Gbit/s": (8, Link(0.125e9, 100e-6)),
}
"""Devices and the slowest link of a ring around all of them: assumptions, not measurements."""

COLLECT = ("environment", "acting", "store", "draw", "copy", "load")  # stages that are not the learner's
OWN = "own link"
ENOUGH_S = 20.0  # seconds after which no further round of a preset is timed


@suite(
    "scale",
    about="what 8 devices and many machines would do, by measured times and a model of rings",
    options=[
        Option("presets", "this preset alone; default one of each system", kind=str),
        Option("devices", "devices of a link of your own", (2, 100_000), several=False),
        Option("gbit", "its bandwidth in one direction (Gbit/s); default 10", (1e-3, 1e5), float, several=False),
        Option("latency", "start-up time of its messages (us); default 50", (0.0, 1e6), float, several=False),
    ],
)
def scale_suite(
    rounds: int,
    device: Device,
    presets: Sequence[str] = tuple(SYSTEMS.values()),
    devices: int = 0,
    gbit: float = 10.0,
    latency: float = 50.0,
    **settings: Any,
) -> Record:
    """Measure what an update of each preset takes here, and compute what several such devices would do.

    Each device has worlds, replay and batches of its own, and all of them add their gradients at each gradient step, so
    n devices learn from n times the rows of an update. In a row, ``update_ms`` (with ``steps_ms``) is of one device and
    ``devices_ms`` of all; ``gain`` is in rows per second, of which ``devices`` would be ideal.
    """
    own = {OWN: (devices, Link(gbit * 1e9 / 8, latency * 1e-6))}
    rows = []
    for preset in presets:
        load = measure_load(configure(preset, {"device": device, **settings}), rounds)
        rows += [plan_row(preset, load, name, *each) for name, each in (own if devices else CLUSTERS).items()]
    return {"rows": rows}


def plan_row(preset: str, load: Load, cluster: str, devices: int, link: Link) -> dict[str, Any]:
    """Return a row of the plan for one cluster."""
    return {
        "preset": preset,
        "cluster": cluster,
        "devices": devices,
        "update_ms": round(1e3 * update_seconds(load, 1, link), 3),
        "steps_ms": round(1e3 * load.collect_s, 3),
        "gradient_mb": round(load.gradient_bytes / 1e6, 3),
        "reductions": load.reductions,
        "devices_ms": round(1e3 * update_seconds(load, devices, link), 3),
        "gain": round(gain(load, devices, link), 2),
    }


def measure_load(config: Config, rounds: int) -> Load:
    """Time whole rounds of steps and updates of a run, and count the gradient steps of an update and their bytes."""
    length = config.toggles.interval * config.toggles.ratio  # of a round in updates
    with build.enough_memory():
        monitor = Monitor(build.runtime(config.run).device)
        rt, rng, learner, source = build.assemble(config, monitor)
        cycle, steps = make_cycle(source, learner, rng, rt), gradient_steps(learner)

        def block() -> None:
            for _ in range(length):
                cycle()

        with rt.scope():
            block()  # may compile, and collects the rows before the first update
            before = [step.count for step in steps]
            block()
            counts = [(step.count - count) / length for count, step in zip(before, steps, strict=True)]
            monitor.reset()
            seconds = median(time_in_turn({"": block}, rounds, rt.device, warm_up=0, enough_s=ENOUGH_S)[""]) / length
            shares: Mapping[str, float] = {row["name"]: row["share"] for row in monitor.read()}
    collect = sum(shares.get(stage, 0.0) for stage in COLLECT)
    sizes = [sum(parameter.nbytes for parameter in step.parameters) for step in steps]
    return Load(
        learner_s=(1 - collect) * seconds,
        collect_s=collect * seconds,
        gradient_bytes=sum(count * size for count, size in zip(counts, sizes, strict=True)),
        reductions=max(1, round(sum(counts))),
        interval=config.toggles.interval,
    )
