"""Commands that report: presets, settings, check, doctor."""

from typing import Any

import click

from uavlab.cli.base import as_json, cli, layers, print_json, with_settings


@cli.command()
@as_json
def presets(as_json: bool) -> None:
    """List the presets."""
    from uavlab.experiment.presets import presets as known

    rows = {name: preset.about for name, preset in known().items()}
    for name, about in rows.items():
        click.echo(f"{name:28} {about}")
    print_json(as_json, rows)


@cli.command()
@click.argument("preset")
@as_json
def settings(preset: str, as_json: bool) -> None:
    """List every setting of PRESET with its value, range and meaning."""
    from uavlab.experiment.config import configure, parts
    from uavlab.experiment.settings import describe_settings, format_settings

    config = configure(preset)
    rows = describe_settings(parts(config.task.settings), config.values)
    click.echo(format_settings(rows))
    print_json(as_json, {"rows": rows})


@cli.command()
@click.argument("preset")
@with_settings
@as_json
def check(preset: str, as_json: bool, **options: Any) -> None:
    """Check that the environment of PRESET keeps its contract, or that its flights can be learned from."""
    from uavlab.experiment.config import configure

    config = configure(preset, *layers(**options))
    report = config.task.evaluation.check(config)
    click.echo(report)
    print_json(as_json, vars(report))


@cli.command()
@as_json
def doctor(as_json: bool) -> None:
    """Report the hardware and software of this machine, what is usable, and why the rest is not."""
    from uavlab.bench.doctor import examine

    rows = examine()
    for row in rows:
        click.echo(row)
    print_json(as_json, {"rows": [vars(row) for row in rows]})
