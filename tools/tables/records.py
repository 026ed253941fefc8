"""Read the records in figures/records, and format their figures, machines and commands."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from uavlab.benchmarks import suites
from uavlab.core.statistics import student
from uavlab.evaluation import interval

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "figures" / "records"
NAMES = {"mappo": "MAPPO", "masac": "MASAC"}  # of learners
Rows = Iterable[Mapping[str, Any]]


def read(name: str) -> dict[str, Any]:
    """Read one record."""
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def exists(name: str) -> bool:
    """Return whether a record has been made."""
    return (RECORDS / f"{name}.json").exists()


def newest_claims() -> dict[str, Any]:
    """Read the record of claims of a CPU that was written last; those of GPUs are its ``others``, the newest first."""
    records = sorted((read(path.stem) for path in RECORDS.glob("claims_*.json")), key=lambda record: record["date"])
    cpus, gpus = ([each for each in records[::-1] if on_gpu(each) is which] for which in (False, True))
    return {**cpus[0], "others": gpus}


def on_gpu(record: Mapping[str, Any]) -> bool:
    """Return whether a record is of a GPU."""
    return record["machine"]["device"] != record["machine"]["cpu"]


def table(head: str, line: str, rows: Rows, first: str = "", last: Iterable[str] = ()) -> str:
    """Format rows by a format string, ``line``, as a Markdown table; ``head`` names the columns, separated by ``|``."""
    marks = " | ".join("---" for _ in head.split("|"))
    lines = [head, marks, *filter(None, [first]), *(line.format(**row) for row in rows), *last]
    return "\n".join(f"| {each} |" for each in lines)


def interval_of(key: str, shape: str) -> str:
    """Return the format string of a mean with its interval."""
    return f"{{{key}[mean]:{shape}}} [{{{key}[low]:{shape}}}, {{{key}[high]:{shape}}}]"


def speed_up(row: Mapping[str, Any], key: str, shape: str = ".2f") -> str:
    """Return a speed-up with the interval of its row; the reference itself has none."""
    ends = f" [{row['low']:{shape}}, {row['high']:{shape}}]" if row["low"] < row["high"] else ""
    return f"**{row[key]:{shape}}x**{ends}"


def machine(known: Mapping[str, Any]) -> str:
    """Return the CPU of a described machine and, where they are known, its family and model, and the load before."""
    load = f"load {known['load']} before" if known.get("load") is not None else ""
    changed = "by code that no commit holds" if known["dirty"] else ""
    return ", ".join(filter(None, [known["cpu"], known.get("cpu_id"), load, changed]))


def measured(record: Mapping[str, Any]) -> str:
    """Return the command that measures a record again, and the machine."""
    return f"{again(record)}. {machine(record['machine'])}"


def again(record: Mapping[str, Any]) -> str:
    """Return the command that measures a record again, with the record's commit if only that commit has the suite."""
    suite, commit = record.get("suite"), record["machine"].get("commit", "")
    return f"`{short(record['command'])}`" + (f" at commit {commit[:8]}" if suite and suite not in suites() else "")


def listed_machines(known: Sequence[Mapping[str, Any]]) -> str:
    """Return the machines on which runs trained, and how busy they were with other work before each."""
    names = dict.fromkeys(machine({**each, "load": None}) for each in known)
    loads = [each["load"] for each in known]
    return f"{' and '.join(names)} (load {min(loads)} to {max(loads)} before a run)"


def short(command: str) -> str:
    """Return a command without its output, with ``S`` for its seed and ``RUNS`` for the folders of runs."""
    seeds = re.sub(r"--seed \d+(?!.* --runs)", "--seed S", re.sub(r" --json| --out \S+", "", command))
    return re.sub(r"( (runs|/)\S*)+", " RUNS", seeds)


def scored(*names: str, value: str = "") -> str:
    """Return machines of training and of evaluation, and the commands, of some records of scores.

    ``value`` is the text before a value in which the commands differ; ``X`` stands for it.
    """
    records = [(read(name).get("trained") or [], read(name)) for name in names]
    runs, scores = [run for trained, _ in records for run in trained], [record for _, record in records]
    commands = [short(part["command"]) for trained, record in records for part in (*trained, record)]
    if value:
        commands = [re.sub(f"(?<={value})\\S+", "X", command) for command in commands]
    trained, evaluated = (
        " and ".join(dict.fromkeys(machine({**each["machine"], "load": None}) for each in parts))
        for parts in (runs, scores)
    )
    where = f"Trained on {trained}, evaluated on {evaluated}" if runs else f"Evaluated on {evaluated}"
    if trained == evaluated:
        where = f"Trained and evaluated on {trained}"
    return f"{where}: {', '.join(dict.fromkeys(f'`{command}`' for command in commands))}."


def trained_row(name: str, *keys: str, **more: str) -> dict[str, Any]:
    """Return one row for all training seeds of a record: figures with intervals, seeds, and minutes of training."""
    record = read(name)
    rows, runs = record["rows"], record["trained"]
    figures = {key: over_seeds([row[key] for row in rows], key == "completion" and rows[0]["episodes"]) for key in keys}
    seeds = sum(len(run["seeds"]) for run in runs)
    minutes = dict.fromkeys(f"{time(run['seconds'] for run in runs) / 60:.0f}" for time in (min, max))
    counted = f"{seeds} seeds" if seeds > 1 else "1 seed"
    return {**figures, **more, "seeds": counted, "several": seeds > 1, "minutes": " to ".join(minutes)}


def over_seeds(figures: list[dict[str, Any]], episodes: int = 0) -> dict[str, Any]:
    """Return mean and ends of a figure over training seeds; of one seed as recorded.

    Those of a share of ``episodes`` are what ``evaluate`` returns of as many runs.
    """
    means = [mean for figure in figures for mean in figure.get("each", [figure["mean"]])]
    if episodes:
        wins = torch.tensor([round(mean * episodes) for mean in means])
        return vars(interval((torch.arange(episodes) < wins[:, None]).double(), outcomes=True))
    return figures[0] if len(means) == 1 else dict(zip(("mean", "low", "high"), student(means), strict=True))


def method(*rows: Mapping[str, Any]) -> str:
    """Return how the intervals of trained policies were made."""
    several, one = (any(row["several"] is wanted for row in rows) for wanted in (True, False))
    ways = ["Student's t over the means of training seeds"] * several + ["over the episodes of the one seed"] * one
    return f"Intervals: {', '.join(ways)}. The same seed gives another team on another machine."


def against(ours: Mapping[str, Any], theirs: Mapping[str, Any], low: Iterable[str]) -> str:
    """Return where each figure of another policy lies beside our interval; ``low`` ones are costs."""
    names, words = {1: "better", -1: "worse", 0: "inside our interval"}, []
    for key in ours.keys() & {key for key in theirs if isinstance(theirs[key], float)}:
        way = (ours[key]["low"] > theirs[key]) - (ours[key]["high"] < theirs[key])
        words.append(f"{key.replace('_', ' ')} {names[-way if key in low else way]}")
    return ", ".join(sorted(words))
