"""Constraints of single settings of every run, and between several."""

from uavlab.collectors.off_policy import POOL_STEPS
from uavlab.core.types import Rule
from uavlab.storage.trackers import is_place, is_project

RULES: tuple[Rule, ...] = (
    (("batch", "capacity"), lambda b, c: b <= c, "batch {0} > capacity {1}: lower batch or raise capacity"),
    (("worlds", "capacity"), lambda w, c: w <= c, "worlds {0} > capacity {1}: one step would overwrite itself"),
    (
        ("learning_starts", "capacity"),
        lambda s, c: s <= c,
        "learning_starts {0} > capacity {1}: those rows would be overwritten before the first update",
    ),
    (
        ("graph", "world_steps"),
        lambda g, w: g != "cycle" or POOL_STEPS % w == 0,
        f"graph {{0}} refills worlds between cycles: world_steps {{1}} does not divide {POOL_STEPS}",
    ),
    (
        ("wandb",),
        lambda project: project is None or is_project(project),
        "wandb {0!r:.80}: expected the name of a project, 1 to 128 characters, none of / \\ # ? % :",
    ),
    (
        ("mlflow",),
        lambda place: place is None or is_place(place),
        "mlflow {0!r:.80}: expected a folder or an address, 1 to 1,000 characters",
    ),
    (("updates", "minutes"), lambda u, m: u or m, "neither updates nor minutes is set: the run would never end"),
    (
        ("log_std_low", "log_std_high"),
        lambda low, high: low < high,
        "log_std_low {0} >= log_std_high {1}: the policy would have no width",
    ),
)
"""Constraints between settings of every run; an environment declares constraints of its fields as ``rules``."""
