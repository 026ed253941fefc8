"""Commands about flights: simulate them as files, describe a log, predict hidden states from a log."""

from pathlib import Path
from typing import Any

import click

from uavlab.cli.base import OutputFile, Record, cli, echo
from uavlab.core.errors import ConfigError
from uavlab.core.text import one_line

mapped = click.option("--mapping", type=click.Path(path_type=Path), help="YAML file: which fields are which columns.")


@cli.group()
def flights() -> None:
    """Simulate flights, describe logs, and predict hidden states."""


@flights.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--flights", "count", type=click.IntRange(1, 100_000), default=60, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of the first flight.")
def make(folder: Path, count: int, seed: int) -> Record:
    """Simulate quadrotors in wind, and write each flight, with its hidden states, to FOLDER as NPZ."""
    from uavlab.experiment.run_dir import require_empty
    from uavlab.telemetry.flights import Telemetry, write

    rows, task = 0, Telemetry(flights=max(count, 3), first=seed)
    for number, (path, length) in enumerate(write(task, require_empty(folder), count), 1):
        rows += length
        if number in (1, count) or number % 100 == 0:
            echo(f"{number:>6} of {count}: {path}, {length / 100:.1f} s")
    return {"folder": str(folder), "flights": count, "seed": seed, "rows": rows}


@flights.command()
@click.argument("file", type=click.Path(path_type=Path))
@mapped
@click.option("--write-mapping", type=OutputFile(), help="Draft a mapping from names and values, to be corrected.")
def describe(file: Path, mapping: Path | None, write_mapping: Path | None) -> Record:
    """Describe what is in a log: CSV, NPZ, Parquet or PX4's ULog."""
    from uavlab.telemetry.logs.draft import describe as describe_log
    from uavlab.telemetry.logs.draft import draft_mapping

    if write_mapping is not None:
        if mapping is not None:
            raise ConfigError("--write-mapping: drafts a mapping, so --mapping has no use; leave one of them out.")
        columns = draft_mapping(file, write_mapping)
        echo(f"{write_mapping}: {len(columns)} columns guessed; correct it, then use it by --mapping")
        mapping = write_mapping if columns else None
    description = describe_log(file, mapping)
    for line in lines(description):
        echo(one_line(line))
    return description


@flights.command()
@click.argument("run")
@click.argument("file", type=click.Path(path_type=Path))
@mapped
@click.option("--stride", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Rows between windows.")
@click.option("--out", type=OutputFile(), help="Write time, all columns and their sd to this CSV file.")
def predict(run: str, file: Path, mapping: Path | None, stride: int, out: Path | None) -> Record:
    """Predict by the network of RUN what the log FILE does not hold: wind, payload, drag, lag, sag, tracking error."""
    from uavlab.experiment import policy
    from uavlab.experiment.names import run_folder
    from uavlab.telemetry.predict import predict_log, require_task, summary, write_csv

    trained = policy.load(run_folder(run))
    task = require_task(trained.config.env, trained.config.preset)
    forecast: Any = trained.batched_policy(trained.config.env, 0)
    prediction = predict_log(forecast, task, file, mapping, stride)
    rows = summary(prediction)
    echo(f"{'':14} {'unit':5} {'mean':>8} {'least':>8} {'most':>8} {'sd':>8} {'rmse':>8}")
    for row in rows:
        numbers = [row[name] for name in ("mean", "low", "high", "sd", "rmse") if row[name] is not None]
        echo(f"{row['column']:14} {row['unit']:5} {' '.join(f'{number:8.3f}' for number in numbers)}")
    if out is not None:
        write_csv(prediction, out)
        echo(f"{len(prediction.time):,} windows in {out}")
    return {"windows": len(prediction.time), "rows": rows}


def lines(description: dict[str, Any]) -> list[str]:
    duration = "unknown" if description["duration_s"] is None else f"{description['duration_s']:.1f} s"
    text = [f"{description['file']}: {description['format']}, {duration}"]
    text += [f"{name}: {_fact(value)}" for name, value in description["facts"].items()]
    text += [f"{'column':12} {'field':38} {'unit':6} {'rows':>8} {'Hz':>7} {'min':>11} {'max':>11} {'none':>6}"]
    text += [_row(row) for row in description["columns"]]
    used = {row["field"].partition(".")[0] for row in description["columns"]} | {"table"}
    rest = [f"{name} {rate:g}" for name, rate in description["rates_hz"].items() if name not in used]
    text += [f"other topics, Hz: {', '.join(rest)}"] if rest else []
    text += [f"no numbers: {', '.join(description['others'])}"] if description["others"] else []
    text += [f"missing: {', '.join(description['missing'])}"] if description["missing"] else []
    return text + [f"note: {note}" for note in description["notes"]]


def _fact(value: Any) -> str:
    return ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)


def _row(row: dict[str, Any]) -> str:
    low, high = ("" if row[end] is None else f"{row[end]:.5g}" for end in ("min", "max"))
    rate = "" if row.get("rate_hz") is None else f"{row['rate_hz']:.1f}"
    name, unit = row.get("name") or "-", row["unit"] or "?"
    return f"{name:12} {row['field']:38} {unit:6} {row['rows']:8,} {rate:>7} {low:>11} {high:>11} {row['nan']:6.1%}"
