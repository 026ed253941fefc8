"""External environments: worlds stepped beside the updates, and steps by the number of workers and worlds."""

from typing import Any

import torch

from uavlab.benchmarks import Option, Record, suite
from uavlab.experiment.config import Device, configure
from uavlab.profiling.timing import WARM_UP, median, time_in_turn
from uavlab.workers.registration import external
from uavlab_lab.measure.compare import build_call, compare

WAITS = "uavlab_lab.waiting:Waiting"
LEARN: dict[str, Any] = {
    "worlds": 8,
    "learning_starts": 256,
    "capacity": 10_000,
    "evaluate_every": 10**9,
    "checkpoint_every": 10**9,
}
BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
INTERVAL = 8
WORKERS = 4
SIZES = ((1, 1), (1, 8), (2, 8), (4, 8), (2, 32), (4, 32), (8, 32))  # workers and worlds


@suite(
    "external",
    about="worlds of slow environments beside the updates, and workers",
    options=[Option("wait", "seconds that a step of the environment waits", (0.0, 1.0), float, several=False)],
)
def external_suite(rounds: int, device: Device, wait: float = 0.005) -> Record:
    """Compare updates in turn with steps of the worlds, and beside them, with equal numbers of steps and updates.

    The batch is that whose update takes nearest the time of a step of all worlds, so alternating spends about half of
    its time in each.

    Returns:
        ``wait_s``, ``batch``, ``environment_share`` (of the time of alternating cycles), rows by ``setting`` with
        ``ms`` (a cycle: a step of all worlds and an update) and ``over_first`` with its interval ``low`` and ``high``,
        and ``scaling``: by ``workers`` and ``worlds`` the ``steps_per_s`` of all worlds, and ``of_ideal``, the share of
        workers / wait.
    """
    name, plain = external(WAITS, seconds=wait), external(WAITS, seconds=0.0)
    layer = {**LEARN, "workers": WORKERS, "device": device}
    step_ms = 1e3 * _step_s(name, WORKERS, LEARN["worlds"], rounds)
    batch, update_ms = _fitting_batch(plain, layer, step_ms, rounds)
    settings: dict[str, dict[str, Any]] = {
        "alternating": {"interval": INTERVAL},
        "overlap": {"interval": INTERVAL, "prefetch": "overlap"},
        "overlap, interval 1": {"interval": 1, "prefetch": "overlap"},
    }
    rows = compare(name, settings, {**layer, "batch": batch}, call="cycle", rounds=rounds, at_once=4 * INTERVAL)
    scaling = []
    for workers, worlds in SIZES:
        rate = worlds / _step_s(name, workers, worlds, rounds)
        ideal = round(rate * wait / min(workers, worlds), 3)
        scaling.append({"workers": workers, "worlds": worlds, "steps_per_s": round(rate, 1), "of_ideal": ideal})
    keys = ("setting", "ms", "over_first", "low", "high", "rounds")
    return {
        "wait_s": wait,
        "worlds": LEARN["worlds"],
        "workers": WORKERS,
        "batch": batch,
        "step_ms": round(step_ms, 3),
        "update_ms": round(update_ms, 3),
        "environment_share": round(step_ms / (step_ms + update_ms), 3),
        "rows": [{key: row[key] for key in keys} for row in rows],
        "scaling": scaling,
    }


def _step_s(name: str, workers: int, worlds: int, rounds: int) -> float:
    """Return the time of a step of all worlds (s), each after the one before."""
    env = configure(name, {"workers": workers}).env
    state = env.initial(torch.rand(worlds, 2, generator=torch.Generator().manual_seed(0)))
    action, noise = torch.zeros(worlds, 1, 2), torch.zeros(worlds, 0)

    def step() -> None:
        nonlocal state
        state = env.transition(state, action, noise)

    return median(time_in_turn({"": step}, min(rounds, env.horizon - WARM_UP), torch.device("cpu"))[""])


def _fitting_batch(name: str, layer: dict[str, Any], step_ms: float, rounds: int) -> tuple[int, float]:
    """Return the batch whose update takes nearest the time of a step, and that time (ms)."""
    times = {}
    for batch in BATCHES:
        one = build_call(configure(name, layer, {"batch": batch}), "update")
        with one.rt.scope():
            times[batch] = 1e3 * median(time_in_turn({"": one.call}, rounds, one.rt.device)[""])
        if times[batch] > step_ms:
            break
    return min(times.items(), key=lambda each: abs(each[1] - step_ms))
