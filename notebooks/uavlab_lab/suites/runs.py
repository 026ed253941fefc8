"""Whole runs: five in one process against five processes, and learning by the clock."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from uavlab.benchmarks import Option, Record, suite
from uavlab.experiment.config import Device, toggle_layer
from uavlab.runtime.toggles import Toggles
from uavlab_lab.measure.compare import compare, learning

RUNS = 5
CYCLES = 300  # of each run that is timed with its start-up
SETS = ("plain", "laptop")
GOAL = 0.95  # completion


@suite("runs", about="five runs in one process, and in five")
def runs_suite(rounds: int, device: Device) -> Record:
    """Compare five runs in one process with one run (per cycle) and with five processes in turn (with start-up).

    Returns:
        Rows with ``hidden``, ``one_ms`` and ``five_ms`` (a cycle of one run, of five in one process), ``five_over_one``
        and, for ``CYCLES`` cycles with all start-up, ``together_s`` (one process) and ``apart_s`` (five processes).
    """
    rows = []
    for hidden in (64, 256):
        layer = {"hidden": hidden, "device": device}
        settings = {"five": {"runs": RUNS}, "one": {"runs": 1}}
        five, one = compare("leader_follower_quick", settings, layer, call="cycle", rounds=rounds)
        command = [sys.executable, "-c", ALONE.format(hidden=hidden, device=device, updates=CYCLES)]
        rows.append(
            {
                "hidden": hidden,
                "runs": RUNS,
                "threads": Toggles().threads,
                "one_ms": one["ms"],
                "five_ms": five["ms"],
                "five_over_one": one["over_first"],
                "cycles": CYCLES,
                "together_s": round(_seconds([[*command, "0", str(RUNS)]]), 2),
                "apart_s": round(_seconds([[*command, str(seed), "1"] for seed in range(RUNS)]), 2),
            }
        )
    return {"rows": rows}


ALONE = """
import sys
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
given = dict(hidden={hidden}, device="{device}", updates={updates}, evaluate_every=10**9, evaluate_episodes=1)
for _ in Run(configure("leader_follower_quick", given, dict(seed=int(sys.argv[1]), runs=int(sys.argv[2])))).train():
    pass
"""


def _seconds(commands: list[list[str]]) -> float:
    began = time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True)
    return time.perf_counter() - began


@suite(
    "learning",
    about="plain against `laptop`, by the clock",
    options=[
        Option("sets", f"a named set of toggles; default {' and '.join(SETS)}", kind=str),
        Option("goal", f"completion whose time is taken; default {GOAL:g}", (0.01, 1.0), float, several=False),
    ],
)
def learning_suite(
    rounds: int, device: Device, sets: Sequence[str] = SETS, goal: float = GOAL, say: Callable[[str], Any] = print
) -> Record:
    """Train the quick preset with seeds 0 to 4, with each set of toggles in turn; ``rounds`` has no effect.

    Returns:
        ``goal``, and a row for each setting and seed: what ``compare.learning`` returns, ``completion`` (highest in
        training), ``to_goal_s`` (seconds of training until completion first reaches the goal; None if never) and
        ``to_goal_warm_s`` (the same without the first update and all before it).
    """
    rows = []
    settings = {name: toggle_layer(name, device) for name in sets}
    for seed in range(RUNS):
        for name, layer in settings.items():
            (row,) = learning("leader_follower_quick", {name: layer}, {"seed": seed, "device": device}, say=say)
            curve = [[at["update"], at["seconds"], at["each"]["completion"][0]] for at in row.pop("curve")]
            goal_s = min((seconds for _, seconds, completion in curve if completion >= goal), default=None)
            rows.append(
                {
                    **row,
                    "completion": max(completion for *_, completion in curve),
                    "to_goal_s": goal_s,
                    "to_goal_warm_s": None if goal_s is None else round(goal_s - row["first_update_s"], 3),
                    "curve": curve,
                }
            )
    return {"goal": goal, "rows": rows}
