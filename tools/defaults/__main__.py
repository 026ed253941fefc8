"""Train learners with their defaults on the tasks of this folder, and write how far each run came.

    python -m tools.defaults --out figures/records/defaults.json

The tasks and their plans were written by people who had not seen the defaults. ``CHOSEN_ON`` names those on which
defaults were chosen since; only the others judge them. Each seed is a run of its own, a row of ``uavlab bench
learners``; a second call goes on where the first one ended, and a study of some tasks or learners joins the rows of
the others in the same file. Where groups oppose each other, they also meet random actions, the plan, and a team of an
earlier stage, which a shorter run of the same seed trains.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import uavlab as ul
from tools.defaults import brigade, collect, landmarks, tag, tow
from uavlab.benchmarks.registry import format_rows
from uavlab.core.errors import ConfigError, FileError
from uavlab.core.text import quote
from uavlab.storage.files import read_json, write_json
from uavlab.storage.machine import describe
from uavlab_lab.suites.learners import learners_suite

TASKS = {
    "landmarks": landmarks.Landmarks,
    "collect": collect.Collect,
    "tag": tag.Tag,
    "tow": tow.Tow,
    "brigade": brigade.Brigade,
}
CHOSEN_ON = ("landmarks", "collect")  # trials on them led to defaults of both learners
LEARNERS = ("masac", "mappo")
EARLY = 0.1  # share of the minutes after which the early team has ended
EPISODES = 200  # of every meeting
FOLDER = Path("runs/defaults")

Row = dict[str, Any]


def train(task: str, learner: str, seed: int, minutes: float, folder: Path) -> Row:
    """Train a learner on a task, or go on with its run in ``folder``, and return its row of ``bench learners``."""
    pair, settings = f"{task}:{learner}", {"seed": seed}
    (row,) = learners_suite(1, "cpu", minutes, 1, [pair], folder / str(seed), settings)["rows"]
    return {"seed": seed, **row, "machine": row["trained"]["machine"]}


def returns(row: Row, folder: Path) -> dict[str, float]:
    """Return the mean return per agent of the best policies, of the plan and of random actions: what learners raise."""
    task = row["environment"]
    run = folder / str(row["seed"]) / f"{task}-{row['learner']}"
    best = ul.evaluate(run, episodes=EPISODES, device="cpu")["return"]["mean"]
    return {"best": best, "plan": baseline_return(task, row["plan"]), "random": baseline_return(task, "random")}


@cache
def baseline_return(task: str, policy: str) -> float:
    """Return the mean return per agent of a policy without training, the same beside every run."""
    return ul.evaluate(task, policy=policy, episodes=EPISODES, device="cpu")["return"]["mean"]


def meet(row: Row, minutes: float, folder: Path) -> list[Row]:
    """Return the scores of each group in all pairings of its best policy, an early one, the plan and random actions."""
    task, learner, seed = row["environment"], row["learner"], row["seed"]
    train(task, learner, seed, EARLY * minutes, folder / "early")
    run = Path(str(seed), f"{task}-{learner}")
    players = {
        "late": ul.load(folder / run, which="best_by_group"),
        "early": ul.load(folder / "early" / run, which="last"),
        "plan": row["plan"],
        "random": "random",
    }
    play = ul.cross_play(players, episodes=EPISODES)
    return [{"players": each["players"], "scores": each["scores"]} for each in play.rows]


def record(
    minutes: float,
    seeds: int,
    folder: Path,
    tasks: Sequence[str] = tuple(TASKS),
    learners: Sequence[str] = LEARNERS,
    before: Row | None = None,
) -> Row:
    """Train every learner on every task, and return the record but for its command.

    Rows of the record ``before`` stay, but for those of the same task and learner.

    Raises:
        ConfigError: ``before`` is the record of another study.
    """
    study, rows = {"minutes": minutes, "seeds": seeds, "chosen_on": list(CHOSEN_ON)}, {}
    if before is not None:
        if (other := {name: before.get(name) for name in study}) != study:
            raise ConfigError(f"--out: the file holds a study of {quote(other)}; expected {quote(study)}, or no file.")
        rows = {(row["environment"], row["learner"], row["seed"]): row for row in before["rows"]}
    torch.set_num_threads(1)
    machine = describe("cpu")  # before the work, for its load
    for task in tasks:
        for learner in learners:
            for seed in range(seeds):
                row = train(task, learner, seed, minutes, folder)
                opposed = hasattr(TASKS[task], "group_scores")
                more = {"meetings": meet(row, minutes, folder)} if opposed else {"returns": returns(row, folder)}
                rows[task, learner, seed] = {**row, **more}
    order = [(task, learner, seed) for task in TASKS for learner in LEARNERS for seed in range(seeds)]
    machine = {**machine, "load_after": round(os.getloadavg()[0], 2)}
    return {**study, "machine": machine, "rows": [rows[name] for name in order if name in rows]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line asks; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.defaults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of each run (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of a learner on a task (%(default)s)")
    parser.add_argument("--task", action="append", choices=TASKS, help="this one alone; repeatable")
    parser.add_argument("--learner", action="append", choices=LEARNERS, help="this one alone; repeatable")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where runs are kept, and resumed (%(default)s)")
    parser.add_argument("--out", type=Path, help="also write the record to this file")
    options = parser.parse_args(arguments)
    parts = (options.task or tuple(TASKS), options.learner or LEARNERS)
    try:
        before = read_json(options.out) if options.out and options.out.exists() else None
        result = record(options.minutes, options.seeds, options.folder, *parts, before)
    except (ConfigError, FileError) as error:
        parser.error(str(error))
    print(format_rows(result["rows"]))
    if options.out:
        given = {name: getattr(options, name) for name in ("minutes", "seeds")}
        words = [f"--{name} {value:g}" for name, value in given.items() if value != parser.get_default(name)]
        write_json(
            options.out, {"command": " ".join(["python -m tools.defaults", *words, f"--out {options.out}"]), **result}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
