"""The command that lays claims beside what was measured: claims."""

from pathlib import Path

import click

from uavlab.cli.base import as_json, cli, tell
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
    """Lay what is claimed of each technique beside what it is on this machine, with a verdict."""
    from uavlab.bench.claims import report as book
    from uavlab.bench.claims.leader_follower import Bench
    from uavlab.bench.claims.ledger import select

    chosen, bench = select(names, system), Bench(rounds)
    path = out or book.own_path(bench.device)
    if names or every:
        book.measure(chosen, path, bench, lambda line: click.echo(line, err=True))
    record, whose = book.newest(path) if out is None else (book.read(out), f"From {out}.")
    rows = book.rows(chosen, record)
    click.echo(book.told(rows))
    click.echo(one_line(whose))
    tell(as_json, {"rows": rows})
