"""Compare how long MAPPO of BenchMARL and of this package train until their teams reach a goal, on one environment.

    python -m tools.peers.learning --seeds 3 --minutes 10 --out build/peers_learning.json

BenchMARL steps the environment of this package through ``uavlab.to_torchrl``. Both train the same networks on as many
steps per gradient step, each on one thread, and take turns; scores take no part in the times. A second call goes on
with the seeds that the file lacks.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.peers.__main__ import (
    REQUIREMENTS,
    ROOT,
    Worker,
    command_line,
    in_turn,
    require_environment,
    require_pinned,
    require_same,
)
from uavlab.benchmarks import format_rows
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.text import quote
from uavlab.storage.files import write_json
from uavlab.storage.machine import describe

SIZES: Mapping[str, Any] = {
    "task": "leader_follower_mappo",
    "agents": ["agent_0", "agent_1"],
    "hidden": 128,
    "worlds": 64,
    "lr": 3e-4,
    "clip": 0.5,
    "gamma": 0.95,
    "fused": True,
    "share": False,
    "reward_scale": 0.01,
    "mappo": {"rollout_steps": 64, "epochs": 5, "minibatches": 4},
    "algorithm": {"lmbda": 0.95, "entropy_coef": 0.01},
    "ours": {"target_kl": 0.0},
    "iterations": 10,
    "episodes": 100,
}
GOAL = 0.9
PROGRAMS = {"uavlab": "uavlab_learning", "BenchMARL": "benchmarl_learning"}
DIFFERENCES = (
    "Rewards reach 1000 at the goal: uavlab normalises returns and advantages; BenchMARL does neither, so its rewards "
    "are multiplied by `reward_scale`.",
    "The learning rate of uavlab's critics is that of its actors, as BenchMARL's is; `target_kl` is 0, so that no step "
    "of either is undone. uavlab lowers the weight of the entropy over 1000 updates.",
    "What `python -m tools.peers` lists of MAPPO differs here, too; the simulator is one and the same.",
)


def train(ask: Callable[[str, str], float], limit: float) -> dict[str, dict[str, Any]]:
    """Train both programs in turn until each has reached the goal or trained for the limit (s); return their curves."""
    rows: dict[str, dict[str, Any]] = {name: {"seconds": 0.0, "reached": False, "curve": []} for name in PROGRAMS}
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
    """Train a seed of each program in two new processes; return the facts of both, and their rows.

    Raises:
        ConfigError: The packages are of other versions than pinned, or the work is not the same.
        ResourceError: A process failed.
    """
    workers: dict[str, Worker] = {}
    try:
        for name, worker in PROGRAMS.items():
            place = python if name == "BenchMARL" else Path(sys.executable)
            workers[name] = Worker(worker, place, str(ROOT), {**SIZES, "seed": seed})
        facts = {name: worker.facts for name, worker in workers.items()}
        require_pinned(facts["BenchMARL"]["versions"], REQUIREMENTS.read_text(encoding="utf-8"))
        require_same({"uavlab": facts["uavlab"], "benchmarl": facts["BenchMARL"]})
        rows = train(lambda name, call: workers[name].ask(call), 60 * minutes)
        return facts, [{"program": name, "seed": seed, **row} for name, row in rows.items()]
    finally:
        for worker in workers.values():
            worker.close()


def stored(out: Path | None, minutes: float) -> dict[str, Any]:
    """Return the record of a former call with the same sizes, or an empty one.

    Raises:
        ConfigError: The file is the record of other sizes or of another limit.
    """
    if out is None or not out.exists():
        return {"rows": []}
    record = json.loads(out.read_text(encoding="utf-8"))
    own = {"sizes": SIZES, "goal": GOAL, "minutes": minutes}
    if wrong := [name for name, value in own.items() if record.get(name) != value]:
        raise ConfigError(
            f"{out}: got {wrong[0]} {quote(record.get(wrong[0]))}; expected that of this call: name a new file."
        )
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the command line asks; return the exit code."""
    parser = command_line("python -m tools.peers.learning", __doc__)
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each program (%(default)s)")
    parser.add_argument("--minutes", type=float, default=10.0, help="limit of training of each (%(default)s)")
    words = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(words)
    try:
        require_environment(options.python)
        record = stored(options.out, options.minutes)
        for seed in sorted(set(range(options.seeds)) - {row["seed"] for row in record["rows"]}):
            machine = describe("cpu")
            facts, rows = run_seed(seed, options.minutes, options.python)
            machine["load_after"] = round(os.getloadavg()[0], 2)
            record = {
                "command": f"python -m tools.peers.learning {shlex.join(words)}",
                **{"goal": GOAL, "minutes": options.minutes, "sizes": SIZES, "programs": facts},
                "differences": list(DIFFERENCES),
                "rows": [*record["rows"], *({**row, "machine": machine} for row in rows)],
            }
            if options.out:
                write_json(options.out, record)
            print(format_rows([{k: v for k, v in row.items() if k not in ("curve", "machine")} for row in rows]))
    except (ConfigError, ResourceError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
