"""Commands that look things up: presets, settings, check, doctor."""

from typing import Any

import click

from uavlab.cli.base import as_json, cli, layers, tell, with_settings


@cli.command()
@as_json
def presets(as_json: bool) -> None:
    """List the presets."""
    from uavlab.experiment.presets import presets as known

    rows = {name: preset.about for name, preset in known().items()}
    for name, about in rows.items():
        click.echo(f"{name:28} {about}")
    tell(as_json, rows)


@cli.command()
@click.argument("preset")
@as_json
def settings(preset: str, as_json: bool) -> None:
    """List every setting of PRESET: its value there, what it may be and what it means."""
    from uavlab.experiment.config_help import describe, table

    rows = describe(preset)
    click.echo(table(rows))
    tell(as_json, {"rows": rows})


@cli.command()
@click.argument("preset")
@with_settings
@as_json
def check(preset: str, as_json: bool, **options: Any) -> None:
    """Check PRESET as it is set: that its environment keeps its contract, or that its flights can be learned from."""
    from uavlab.experiment.config import configure

    config = configure(preset, *layers(**options))
    report = config.task.evaluation.check(config)
    click.echo(report)
    tell(as_json, vars(report))


@cli.command()
@as_json
def doctor(as_json: bool) -> None:
    """Report what this machine has, what of it is usable, and why the rest is not."""
    from uavlab.bench.doctor import examine

    rows = examine()
    for row in rows:
        click.echo(row)
    tell(as_json, {"rows": [vars(row) for row in rows]})
