"""The final scores of kept policies, and the record of how they came about."""

from collections.abc import Callable, Sequence
from typing import Any

from uavlab.app import kept
from uavlab.app.config import Device
from uavlab.app.folder import run_folder
from uavlab.app.machine import describe
from uavlab.app.record import invocation, read_json
from uavlab.evaluate import COMMON


def score(
    runs: Sequence[str],
    episodes: int,
    seed: int,
    mean_action: bool,
    device: Device | None,
    say: Callable[[str], Any],
) -> dict[str, Any]:
    """Score the policy that each run keeps on its evaluation task; all runs are read before the first one flies.

    Args:
        runs: Their folders, as a person names them.
        episodes: Episodes per run.
        seed: Seed of the episodes.
        mean_action: Fly the mean action instead of sampling.
        device: Instead of the runs' own.
        say: Gets each line for people as soon as it is known.

    Returns:
        The record: ``command``, ``machine``, a row of ``rows`` for each run, and of ``trained`` its ``run.json``.

    Raises:
        ConfigError: A run is not known.
        FileError: A folder is no run, or holds no intact checkpoint.
    """
    folders = [run_folder(run) for run in runs]
    flown = [kept.load(folder, device) for folder in folders]
    trained = [read_json(folder / "run.json") for folder in folders]
    rows = []
    for run, loaded in zip(runs, flown, strict=True):
        result = kept.evaluate(loaded, episodes, seed, mean_action)
        say(f"{run}: policy of update <= {loaded.update}, {episodes} episodes x {len(loaded.parameters)} run(s)")
        units = {metric.name: metric.unit for metric in (*loaded.config.evaluation.metrics, *COMMON)}
        for metric, figure in result.items():
            interval = f"[{figure['low']:.3f}, {figure['high']:.3f}]"
            say(f"{metric:18} {figure['mean']:10.3f}   {interval} {units[metric]}".rstrip())
        action = "mean" if mean_action else "sampled"
        rows.append({**result, "run": run, "episodes": episodes, "seed": seed, "action": action})
    machine = describe(flown[0].rt.device)
    return {"command": invocation(), "machine": machine, "rows": rows, "trained": trained}
