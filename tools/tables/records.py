"""Read the records in figures/records, and put figures, machines and commands into words."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from uavlab import evaluation
from uavlab.benchmarks import suites
from uavlab.core.statistics import student

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "figures" / "records"
NAMES = {"mappo": "MAPPO", "masac": "MASAC"}  # of learners
Row = Mapping[str, Any]
Figure = dict[str, Any]


def read(name: str) -> dict[str, Any]:
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def newest_claims() -> dict[str, Any]:
    """Read the record of claims of a CPU that was written last; those of GPUs are its ``others``, the newest first."""
    records = sorted((read(path.stem) for path in RECORDS.glob("claims_*.json")), key=lambda record: record["date"])
    cpus, gpus = ([each for each in records[::-1] if on_gpu(each) is which] for which in (False, True))
    return {**cpus[0], "others": gpus}


def on_gpu(record: Row) -> bool:
    return record["machine"]["device"] != record["machine"]["cpu"]


def f(value: Any, shape: str) -> str:
    """Return a number by a format, or a dash where there is none."""
    return "-" if value is None else format(value, shape)


def interval(figure: Row | None, shape: str) -> str:
    """Return a mean with its interval, or a dash where there is none."""
    return "-" if figure is None else "{mean:{0}} [{low:{0}}, {high:{0}}]".format(shape, **figure)


def intervals(row: Row, shapes: Mapping[str, str]) -> str:
    """Return several figures of a row as cells."""
    return " | ".join(interval(row[key], shape) for key, shape in shapes.items())


def speed_up(row: Row, key: str, shape: str = ".2f") -> str:
    """Return a speed-up with the interval of its row; the reference itself has none."""
    ends = f" [{row['low']:{shape}}, {row['high']:{shape}}]" if row["low"] < row["high"] else ""
    return f"**{row[key]:{shape}}x**{ends}"


def extra(row: Row, key: str) -> str:
    """Return what a ratio is above 1, in percent, with the interval of its row."""
    return "{:.1f} % [{:.1f}, {:.1f}]".format(*(100 * (row[each] - 1) for each in (key, "low", "high")))


def machine(known: Row) -> str:
    """Return the CPU of a described machine and, where they are known, its family and model, and the load before."""
    load = f"load {known['load']} before" if known.get("load") is not None else ""
    changed = "by code that no commit holds" if known["dirty"] else ""
    return ", ".join(filter(None, [known["cpu"], known.get("cpu_id"), load, changed]))


def machines(known: Iterable[Row]) -> str:
    """Return some machines, whatever their loads."""
    return " and ".join(dict.fromkeys(machine({**each, "load": None}) for each in known))


def listed_machines(known: Sequence[Row]) -> str:
    """Return the machines on which runs trained, and how busy they were with other work before each."""
    loads = [each["load"] for each in known]
    return f"{machines(known)} (load {min(loads)} to {max(loads)} before a run)"


def measured(record: Row) -> str:
    """Return the command that measures a record again, and the machine."""
    return f"{again(record)}. {machine(record['machine'])}"


def again(record: Row) -> str:
    """Return the command that measures a record again, with the record's commit if only that commit has the suite."""
    suite, commit = record.get("suite"), record["machine"].get("commit", "")
    return f"`{short(record['command'])}`" + (f" at commit {commit[:8]}" if suite and suite not in suites() else "")


def short(command: str) -> str:
    """Return a command without its output, with ``S`` for its seed and ``RUNS`` for the folders of runs."""
    seeds = re.sub(r"--seed \d+(?!.* --runs)", "--seed S", re.sub(r" --json| --out \S+", "", command))
    return re.sub(r"( (runs|/)\S*)+", " RUNS", seeds)


def scored(names: Iterable[str], value: str = "") -> str:
    """Return machines of training and of evaluation, and the commands, of some records of scores.

    ``value`` is the text before a value in which the commands differ; ``X`` stands for it.
    """
    records = [read(name) for name in names]
    runs = [run for record in records for run in record.get("trained") or []]
    commands = [short(part["command"]) for record in records for part in (*(record.get("trained") or []), record)]
    if value:
        commands = [re.sub(f"(?<={value})\\S+", "X", command) for command in commands]
    trained, evaluated = (machines(each["machine"] for each in parts) for parts in (runs, records))
    where = f"Trained on {trained}, evaluated on {evaluated}" if runs else f"Evaluated on {evaluated}"
    if trained == evaluated:
        where = f"Trained and evaluated on {trained}"
    return f"{where}: {', '.join(dict.fromkeys(f'`{command}`' for command in commands))}."


def trained_row(name: str, *keys: str) -> dict[str, Any]:
    """Return one row for all training seeds of a record: figures with intervals, seeds, and minutes of training."""
    record = read(name)
    rows, runs = record["rows"], record["trained"]
    figures = {key: over_seeds([row[key] for row in rows], key == "completion" and rows[0]["episodes"]) for key in keys}
    seeds = sum(len(run["seeds"]) for run in runs)
    minutes = dict.fromkeys(f"{time(run['seconds'] for run in runs) / 60:.0f}" for time in (min, max))
    counted = f"{seeds} seeds" if seeds > 1 else "1 seed"
    return {**figures, "seeds": counted, "several": seeds > 1, "minutes": " to ".join(minutes)}


def over_seeds(figures: Sequence[Row], episodes: int = 0) -> Figure:
    """Return mean and ends of a figure over training seeds; of one seed as recorded.

    Those of a share of ``episodes`` are what ``evaluate`` returns of as many runs.
    """
    means = [mean for figure in figures for mean in figure.get("each", [figure["mean"]])]
    if episodes:
        wins = torch.tensor([round(mean * episodes) for mean in means])
        return vars(evaluation.interval((torch.arange(episodes) < wins[:, None]).double(), outcomes=True))
    return dict(figures[0]) if len(means) == 1 else spread(means)


def spread(values: Sequence[float]) -> Figure:
    """Return the mean of values with Student's interval."""
    return dict(zip(("mean", "low", "high"), student(values), strict=True))


def method(rows: Iterable[Row]) -> str:
    """Return how the intervals of trained policies were made."""
    several, one = (any(row["several"] is wanted for row in rows) for wanted in (True, False))
    ways = ["Student's t over the means of training seeds"] * several + ["over the episodes of the one seed"] * one
    return f"Intervals: {', '.join(ways)}. The same seed gives another team on another machine."


def against(ours: Row, theirs: Row, low: Iterable[str]) -> str:
    """Return where each figure of another policy lies beside our interval; ``low`` ones are costs."""
    names, words = {1: "better", -1: "worse", 0: "inside our interval"}, []
    for key in ours.keys() & {key for key in theirs if isinstance(theirs[key], float)}:
        way = (ours[key]["low"] > theirs[key]) - (ours[key]["high"] < theirs[key])
        words.append(f"{key.replace('_', ' ')} {names[-way if key in low else way]}")
    return ", ".join(sorted(words))


def grouped(rows: Iterable[Row], *keys: str) -> list[tuple[Any, list[Row]]]:
    """Return rows by the values of some keys, or of one, in the order of their first."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        values = tuple(row[key] for key in keys)
        groups.setdefault(values if len(keys) > 1 else values[0], []).append(row)
    return list(groups.items())


def pivot(rows: Iterable[Row], line: str, column: str) -> dict[Any, dict[Any, Row]]:
    """Return rows by the value of one key, and below it by that of another."""
    return {value: {row[column]: row for row in own} for value, own in grouped(rows, line)}


def names(words: str) -> str:
    """Return words with the names of learners as publications write them."""
    return re.sub(r"\w+", lambda word: NAMES.get(word[0], word[0]), words)


def places(proofs: Mapping[str, Row]) -> list[str]:
    """Return the machines of some proofs with their versions."""
    return sorted(
        {"{cpu} ({cores} cores, torch {torch}, Python {python})".format(**proof) for proof in proofs.values()}
    )
