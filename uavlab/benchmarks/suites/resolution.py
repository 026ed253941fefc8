"""What coarser maps and fewer channels save in mapping, and what they cost: time against entropy and F1."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from uavlab.benchmarks.compare import compare
from uavlab.benchmarks.registry import Option, Record, suite
from uavlab.benchmarks.study import NOTHING, SEED, attempt, changes, figure_of, origin
from uavlab.envs.mapping.env import Mapping as MappingEnv
from uavlab.experiment import scores
from uavlab.experiment.config import Config, Device, configure
from uavlab.experiment.run import Run

PRESET = "mapping_quick"
FOLDER = "runs/resolution"
CELLS = (246, 123, 62)
FEWER = {"without number, near and seen": ("budget", "places", "entropy", "belief")}
EPISODES = 50  # missions of each seed, as for the published figures
MEASURED = ("updates", "entropy", "f1")


@suite(
    "resolution",
    about="cells and channels of mapping: time against entropy and F1, for hours; goes on where it was ended",
    options=[
        Option("seeds", "seeds of each, side by side; default 3", (1, 256), several=False),
        Option("updates", "updates of each; default those of the preset", (1, 10**9), several=False),
        Option("folder", f"where its runs are kept, and resumed; default {FOLDER}", kind=str, several=False),
    ],
)
def resolution_suite(
    rounds: int,
    device: Device,
    seeds: int = 3,
    updates: int = 0,
    folder: str | Path = FOLDER,
    settings: Mapping[str, Any] = NOTHING,
    say: Callable[[str], Any] = print,
) -> Record:
    """Train a team on maps of several resolutions and with fewer channels, and score all on the published maps.

    Args:
        rounds: Interleaved timings of an update with its missions, of one seed.
        device: Where runs train.
        seeds: Seeds of each run, from 0 on.
        updates: Updates of each run; 0 for those of the preset.
        folder: Folder with the runs. One that is at its target is not trained again.
        settings: Settings over those of the preset.
        say: Is called with a line for each run.

    Returns:
        A row for each run: ``setting``, ``cells`` (along a side), ``channels``, ``updates``, ``entropy`` and ``f1``
        (at the end of missions that chose no policy, intervals over the seeds), ``failed`` (why a run has no figures;
        empty if it has), ``update_ms`` (of one seed, with its missions, timed afterwards), ``over_first`` (how many
        times as fast as the first row) with ``low`` and ``high``, and ``trained`` (the ``command`` that trains the run
        again, and the ``machine`` that did, with its load before).

    Raises:
        ConfigError: The folder holds runs with other settings or a later target.
    """
    layer = {"runs": seeds, "device": device, **({"updates": updates} if updates else {}), **settings}
    configs = {name: configure(PRESET, layer, own) for name, own in variants().items()}
    folders = {name: Path(folder, name.replace(" ", "_").replace(",", "")) for name in configs}
    for name, config in configs.items():
        changes(config, folders[name])  # refuses another study before hours of training
    rows = []
    for name, config in configs.items():
        rows.append(_row(name, config, folders[name]))
        say(f"{name}: {rows[-1]['failed'] or format_scores(rows[-1])}")
    timed = compare(PRESET, variants(), {**layer, "runs": 1}, call="cycle", rounds=rounds)
    for row, clock in zip(rows, timed, strict=True):
        row |= {"update_ms": clock["ms"], **{key: clock[key] for key in ("over_first", "low", "high")}}
    return {"seeds": seeds, "rows": rows}


def variants() -> dict[str, dict[str, Any]]:
    """Return what is compared, by name: the published maps and channels first; scores are always on these maps."""
    whole = MappingEnv.cells * MappingEnv.cell  # side of the map (m)
    published = {"eval_cells": MappingEnv.cells, "eval_cell": MappingEnv.cell}
    coarse = {f"{cells} cells": {"cells": cells, "cell": whole / cells, **published} for cells in CELLS}
    return {f"{MappingEnv.cells} cells": {}, **coarse, **{name: {"channels": each} for name, each in FEWER.items()}}


def _row(name: str, config: Config, folder: Path) -> Record:
    run, failed = attempt(config, folder)
    return {
        "setting": name,
        "cells": config.values["cells"],
        "channels": len(config.values["channels"]),
        **(dict.fromkeys(MEASURED) if run is None else _figures(run)),
        "failed": failed,
        "trained": origin(config if run is None else run.config, folder),
    }


def _figures(run: Run) -> Record:
    measured = scores.measure(run.trained(), EPISODES, SEED, False)
    return {"updates": run.number} | {name: figure_of(measured[name], (0.0, 1.0)) for name in ("entropy", "f1")}


def format_scores(row: Record) -> str:
    """Return the scores of a run as text."""
    return ", ".join("{} {mean:.3f} [{low:.3f}, {high:.3f}]".format(name, **row[name]) for name in ("entropy", "f1"))
