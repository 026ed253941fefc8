"""Compare how long MAPPO of BenchMARL and of this package train until their teams reach a goal, on one environment.

    python -m tools.peers.learning --seeds 3 --minutes 10 --out build/peers_learning.json

BenchMARL steps the environment of this package through ``uavlab.to_torchrl``. Both train the same networks on as many
steps per gradient step, each on one thread, and take turns; scores take no part in the times. A second call goes on
with the seeds that the file lacks.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.peers.__main__ import NAMES, in_turn, loaded, run
from uavlab.benchmarks import format_rows
from uavlab.core.errors import ConfigError
from uavlab.core.text import quote
from uavlab.storage.files import write_json
from uavlab.storage.machine import describe

SIZES: Mapping[str, Any] = {  # a task: workers build what learns on it
    **{"task": "leader_follower_mappo", "agents": ["agent_0", "agent_1"], "hidden": 128, "worlds": 64},
    **{"lr": 3e-4, "clip": 0.5, "gamma": 0.95, "fused": True, "share": False, "reward_scale": 0.01},
    "mappo": {"rollout_steps": 64, "epochs": 5, "minibatches": 4},
    "algorithm": {"lmbda": 0.95, "entropy_coef": 0.01},
    "ours": {"target_kl": 0.0},
    **{"iterations": 10, "episodes": 100},
}
GOAL = 0.9


def train(ask: Callable[[str, str], float], limit: float) -> dict[str, dict[str, Any]]:
    """Train both programs in turn until each has reached the goal or trained for the limit (s); return their curves."""
    rows: dict[str, dict[str, Any]] = {name: {"seconds": 0.0, "reached": False, "curve": []} for name in NAMES}
    number = 0
    while open_ := [name for name, row in rows.items() if not row["reached"] and row["seconds"] < limit]:
        for name in in_turn(open_, number):
            row = rows[name]
            row["seconds"] += ask(name, "train")
            score = ask(name, "score")
            row["curve"].append([round(row["seconds"], 2), round(score, 4)])
            row["reached"] = score >= GOAL
        number += 1
    return rows


def run_seed(seed: int, minutes: float, python: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train a seed of each program; return the facts of both, and their rows."""
    with loaded({**SIZES, "seed": seed}, python) as workers:
        rows = train(lambda name, call: workers[name].ask(call), 60 * minutes)
        facts = {NAMES[name]: worker.facts for name, worker in workers.items()}
        return facts, [{"program": NAMES[name], "seed": seed, **row} for name, row in rows.items()]


def stored(out: Path | None, minutes: float) -> dict[str, Any]:
    """Return the record of a former call, or an empty one; ConfigError if it is of other sizes or another limit."""
    if out is None or not out.exists():
        return {"rows": []}
    record = json.loads(out.read_text(encoding="utf-8"))
    own = {"sizes": SIZES, "goal": GOAL, "minutes": minutes}
    if wrong := [name for name, value in own.items() if record.get(name) != value]:
        raise ConfigError(
            f"{out}: got {wrong[0]} {quote(record.get(wrong[0]))}; expected that of this call: name a new file."
        )
    return record


def work(given: argparse.Namespace, command: str) -> None:
    record = stored(given.out, given.minutes)
    for seed in sorted(set(range(given.seeds)) - {row["seed"] for row in record["rows"]}):
        machine = describe("cpu")
        facts, rows = run_seed(seed, given.minutes, given.python)
        machine["load_after"] = round(os.getloadavg()[0], 2)
        record = {
            **{"command": command, "goal": GOAL, "minutes": given.minutes, "sizes": SIZES, "programs": facts},
            "rows": [*record["rows"], *({**row, "machine": machine} for row in rows)],
        }
        if given.out:
            write_json(given.out, record)
        print(format_rows([{key: value for key, value in row.items() if key != "curve"} for row in rows]))


def main(words: Sequence[str] | None = None) -> None:
    options = {"seeds": (3, "seeds of each program"), "minutes": (10.0, "limit of training of each")}
    run("python -m tools.peers.learning", __doc__, words, options, work)


if __name__ == "__main__":
    main()
