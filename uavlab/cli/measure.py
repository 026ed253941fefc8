"""Commands that measure: bench, profile; and what there is to measure: toggles."""

from pathlib import Path
from typing import Any

import click

from uavlab.cli.base import as_json, cli, layers, tell, with_settings
from uavlab.core.errors import ConfigError

SUITES = {
    "update": "batched learner over the loop",
    "env": "steps per second",
    "guard": "what checking numbers costs",
    "replay": "prioritized replay and its rivals",
    "ladder": "every rung of the update",
    "maps": "belief maps on the host and batched",
    "missions": "training steps of the published mapping network",
    "telemetry": "bringing windows of logs, and learning from them",
    "runs": "five runs in one process, and in five",
    "learning": "plain against `laptop`, by the clock",
}


@cli.command(help="Measure here: " + "; ".join(f"`{name}` ({about})" for name, about in SUITES.items()) + ".")
@click.argument("suite", type=click.Choice(list(SUITES)))
@click.option("--out", type=click.Path(path_type=Path), help="Also write the record to this JSON file.")
@click.option("--rounds", type=click.IntRange(3, 1000), default=30, show_default=True, help="Interleaved repetitions.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1, 256), multiple=True, help="ladder: thread counts; repeatable.")
@click.option("--full", is_flag=True, help="ladder: 16 agents too.")
@as_json
def bench(
    suite: str, out: Path | None, rounds: int, device: Any, threads: tuple[int, ...], full: bool, as_json: bool
) -> None:
    """Measure one suite on this machine."""
    from uavlab.bench import registry
    from uavlab.bench.suites.update import table
    from uavlab.storage.files import write_json
    from uavlab.storage.machine import invocation

    if suite != "ladder" and (threads or full):
        raise ConfigError(f"bench {suite}: --threads and --full belong to `bench ladder`; leave them out.")
    options = {"threads": threads, "full": full} if suite == "ladder" else {}
    record = {"command": invocation(), **registry.SUITES[suite](rounds, device, **options)}
    click.echo(table(record))
    if out is not None:
        write_json(out, record)
    tell(as_json, record)


@cli.command()
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@as_json
def toggles(device: Any, as_json: bool) -> None:
    """List every optimization: its values, where it acts, how equal its results are, and whether it runs here."""
    from uavlab.bench.toggle_table import rows, table

    click.echo(table(device))
    tell(as_json, {"rows": rows(device)})


@cli.command()
@click.argument("preset")
@with_settings
@click.option(
    "--rounds", type=click.IntRange(3, 1000), default=20, show_default=True, help="Interleaved repetitions, at most."
)
@click.option("--trace", type=click.Path(path_type=Path), help="Also write a trace for Perfetto; .json or .json.gz.")
@click.option("--all", "every", is_flag=True, help="Measure every usable toggle, not the three worth trying.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the record to this JSON file.")
@as_json
def profile(
    preset: str, rounds: int, trace: Path | None, every: bool, out: Path | None, as_json: bool, **options: Any
) -> None:
    """Tell where the time of PRESET goes, what it is bound by, and which toggles would help: predicted and measured."""
    from uavlab.bench.profile_run import profiled, told
    from uavlab.storage.files import write_json
    from uavlab.storage.machine import invocation

    record = {"command": invocation(), **profiled(preset, *layers(**options), rounds=rounds, trace=trace, every=every)}
    click.echo(told(record))
    if out is not None:
        write_json(out, record)
    tell(as_json, record)
