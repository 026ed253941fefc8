"""The command that compares claims with measured numbers: claims."""

from pathlib import Path

import click

from uavlab.cli.base import as_json, cli, print_json
from uavlab.core.text import one_line

SYSTEMS = ("leader_follower", "mapping", "assignment", "telemetry", "scale_out")


@cli.command()
@click.option("--measure", "names", multiple=True, metavar="CLAIM", help="Measure this claim here; repeatable.")
@click.option("--all", "every", is_flag=True, help="Measure every claim that can be measured so far.")
@click.option("--system", type=click.Choice(SYSTEMS), help="Only what is claimed of this system.")
@click.option("--rounds", type=click.IntRange(3, 1000), default=30, show_default=True, help="Interleaved repetitions.")
@click.option("--out", type=click.Path(path_type=Path), help="Keep the numbers in this file, not in figures/records.")
@as_json
def claims(
    names: tuple[str, ...], every: bool, system: str | None, rounds: int, out: Path | None, as_json: bool
) -> None:
    """Compare what is claimed of each technique with what it is on this machine, with a verdict."""
    from uavlab.bench.claims import report
    from uavlab.bench.claims.measures import Bench

    selection, bench = report.select(names, system), Bench(rounds)
    path = out or report.own_path(bench.device)
    if names or every:
        report.measure(selection, path, bench, lambda line: click.echo(line, err=True))
    record, whose = report.newest(path) if out is None else (report.read(out), f"From {out}.")
    rows = report.rows(selection, record)
    click.echo(report.format_rows(rows))
    click.echo(one_line(whose))
    print_json(as_json, {"rows": rows})
