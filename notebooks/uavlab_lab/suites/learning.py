"""Learning by the clock: whole runs under sets of toggles."""

from collections.abc import Callable, Sequence
from typing import Any

from uavlab.benchmarks import Option, Record, suite
from uavlab.experiment.config import Device, toggle_layer
from uavlab_lab.measure.compare import learning

SEEDS = 5
SETS = ("plain", "laptop")
GOAL = 0.95  # completion


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

    A row has what ``compare.learning`` returns, ``completion`` (highest in training), ``to_goal_s`` (of training until
    completion first reaches the goal; None if never) and ``to_goal_warm_s`` (without the first update).
    """
    rows = []
    settings = {name: toggle_layer(name, device) for name in sets}
    for seed in range(SEEDS):
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
