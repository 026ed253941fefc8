"""Commands about flights: simulated ones as files, and what is in a log."""

from pathlib import Path
from typing import Any

import click

from uavlab.cli.base import as_json, cli, tell
from uavlab.core.text import one_line


@cli.group()
def flights() -> None:
    """Make flights, and look into logs of flights."""


@flights.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--flights", "count", type=click.IntRange(1, 100_000), default=60, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of the first flight.")
@as_json
def make(folder: Path, count: int, seed: int, as_json: bool) -> None:
    """Simulate quadrotors in wind, and write each flight, with the truth that no log shows, to FOLDER as NPZ."""
    from uavlab.telemetry.flight_files import made

    rows = 0
    for number, (path, length) in enumerate(made(folder, count, seed), 1):
        rows += length
        if number in (1, count) or number % 100 == 0:
            click.echo(f"{number:>6} of {count}: {path}, {length / 100:.1f} s")
    tell(as_json, {"folder": str(folder), "flights": count, "seed": seed, "rows": rows})


@flights.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--mapping", type=click.Path(path_type=Path), help="YAML file: which fields are which columns.")
@as_json
def describe(file: Path, mapping: Path | None, as_json: bool) -> None:
    """Tell what is in a log: CSV, NPZ, Parquet or PX4's ULog."""
    from uavlab.telemetry.logs.describe import described

    found = described(file, mapping)
    for line in lines(found):
        click.echo(one_line(line))
    tell(as_json, found)


@flights.command("tell")
@click.argument("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--mapping", type=click.Path(path_type=Path), help="YAML file: which fields are which columns.")
@click.option("--stride", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Rows between windows.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write time, all columns and their doubt to this CSV file."
)
@as_json
def tell_of(run: str, file: Path, mapping: Path | None, stride: int, out: Path | None, as_json: bool) -> None:
    """Let the network that RUN keeps tell what a log does not show: wind, payload, drag, lag, sag, and error ahead."""
    from uavlab.experiment import policy
    from uavlab.experiment.run_dir import run_folder
    from uavlab.telemetry import predict

    told = predict.of_log(policy.load(run_folder(run)), file, mapping, stride)
    rows = predict.summary(told)
    click.echo(f"{'':14} {'unit':5} {'mean':>8} {'least':>8} {'most':>8} {'doubt':>8} {'rmse':>8}")
    for row in rows:
        numbers = [row[name] for name in ("mean", "low", "high", "doubt", "rmse") if row[name] is not None]
        click.echo(f"{row['column']:14} {row['unit']:5} {' '.join(f'{number:8.3f}' for number in numbers)}")
    if out is not None:
        predict.write(told, out)
        click.echo(f"{len(told.time):,} windows in {out}")
    tell(as_json, {"windows": len(told.time), "rows": rows})


def lines(found: dict[str, Any]) -> list[str]:
    """Write a description for people."""
    duration = "unknown" if found["duration_s"] is None else f"{found['duration_s']:.1f} s"
    told = [f"{found['file']}: {found['format']}, {duration}"]
    told += [f"{name}: {_fact(value)}" for name, value in found["facts"].items()]
    told += [f"{'column':12} {'field':38} {'unit':6} {'rows':>8} {'Hz':>7} {'min':>11} {'max':>11} {'none':>6}"]
    told += [_row(row) for row in (*found["columns"], *found["winds"])]
    used = {row["field"].partition(".")[0] for row in found["columns"]}
    rest = [f"{name} {rate:g}" for name, rate in found["rates_hz"].items() if name not in used and name != "table"]
    told += [f"other topics, Hz: {', '.join(rest)}"] if rest else []
    told += [f"no numbers: {', '.join(found['others'])}"] if found["others"] else []
    told += [f"missing: {', '.join(found['missing'])}"] if found["missing"] else []
    return told + [f"note: {note}" for note in found["notes"]]


def _fact(value: Any) -> str:
    return ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)


def _row(row: dict[str, Any]) -> str:
    low, high = ("" if row[end] is None else f"{row[end]:.5g}" for end in ("min", "max"))
    rate = "" if row.get("rate_hz") is None else f"{row['rate_hz']:.1f}"
    name, unit = row.get("name") or "-", row["unit"] or "?"
    return f"{name:12} {row['field']:38} {unit:6} {row['rows']:8,} {rate:>7} {low:>11} {high:>11} {row['nan']:6.1%}"
