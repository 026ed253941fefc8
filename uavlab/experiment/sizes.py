"""Sizes that are ``auto``: batches by the number of entities of a task, worlds by the throughput measured here.

``uavlab.experiment.fit`` measures what fits into memory.
"""

from collections.abc import Sequence
from dataclasses import replace

from uavlab.core.errors import ConfigError
from uavlab.core.registry import Settings
from uavlab.core.types import EnvSpec
from uavlab.experiment.build import runtime
from uavlab.experiment.throughput import sweep_worlds, trial_limit

AUTO = "auto"
BY_ENTITIES = ("batch", "minibatches")
AUTOMATIC = ("worlds", *BY_ENTITIES)  # settings that may be AUTO
PUBLISHED = {8: 128, 16: 64, 24: 32}  # rows of a batch, by the most entities
LEAST = 16  # rows, with more entities
MOST = 1000  # minibatches of a batch


def batch_for(entities: int) -> int:
    """Return the rows of a batch by the number of entities: fewer where each row is larger.

    Source:
        The published table of largesone/uav-task-path-planning, by the number of UAVs and targets.

    >>> [batch_for(entities) for entities in (1, 8, 9, 16, 17, 24, 25)]
    [128, 128, 64, 64, 32, 32, 16]
    """
    if entities < 1:
        raise ConfigError(f"batch_for: got {entities} entities; expected at least 1.")
    return next((rows for most, rows in PUBLISHED.items() if entities <= most), LEAST)


def count_entities(spec: EnvSpec) -> int:
    """Return the number of things that an observation lists, such as UAVs and targets; of agents where it lists none.

    Slots count, because an empty one takes as much memory and time as another.
    """
    listed = spec.entities
    return spec.agents if listed is None else listed.rows + listed.columns


def automatic_sizes(config: Settings, names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return value and reason of each of these settings, for a run with all others.

    Minibatches are as many as have the published size, to the nearest whole number. Worlds are measured with them.
    """
    sizes: dict[str, tuple[int, str]] = {}
    if by_entities := [name for name in BY_ENTITIES if name in names]:
        size, why = _published(config, by_entities[0])
        sizes = {"batch": (size, f"{size} rows, {why}")}
    if "worlds" in names:
        batch = {"batch": size} if "batch" in by_entities else {}
        trial = replace(config, source=replace(config.source, **batch))
        sweep = sweep_worlds(trial, budget=trial_limit(runtime(config.run).device))
        sizes["worlds"] = sweep.worlds, str(sweep)
        config = replace(config, source=replace(config.source, worlds=sweep.worlds))
    if "minibatches" in names:
        one = config.task.plan(replace(config, run=replace(config.run, updates=1)))
        rows = one["world_steps_per_run"]
        count = min(max(round(rows / size), 1), MOST)
        sizes["minibatches"] = count, f"{count} of about {size} rows, {why}, of {rows} world steps"
    return {name: sizes[name] for name in names}


def _published(config: Settings, name: str) -> tuple[int, str]:
    """Return the published rows of a batch, and why; ``name`` is the setting in the error."""
    spec = config.env.spec
    if not isinstance(spec, EnvSpec):
        raise ConfigError(
            f"{config.preset}: {name}=auto counts the entities of a team, and there is none; set a number."
        )
    entities = count_entities(spec)
    return batch_for(entities), f"published for {entities} entities"
