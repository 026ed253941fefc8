"""Commands that measure: bench, profile; and what there is to measure: toggles."""

from pathlib import Path
from typing import Any

import click

from uavlab.cli.base import as_json, cli, layers, print_json, with_settings
from uavlab.core.errors import ConfigError


class BenchCommand(click.Command):
    """The command ``bench``: it reads suites, their help and their options from the registry when it is used."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters of every suite, then the options that one suite alone takes."""
        known = _suites()
        own = {option.name: _click_option(name, option) for name, suite in known.items() for option in suite.options}
        return [click.Argument(["suite"], type=click.Choice(list(known))), *super().get_params(ctx), *own.values()]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each suite measures."""
        formatter.write_paragraph()
        with formatter.indentation():
            about = "; ".join(f"`{name}` ({suite.about})" for name, suite in _suites().items())
            formatter.write_text(f"Measure here: {about}.")


def _suites() -> dict[str, Any]:
    from uavlab.bench.registry import suites

    return suites()


def _click_option(suite: str, option: Any) -> click.Option:
    if option.limits is None:
        return click.Option([f"--{option.name}"], is_flag=True, help=f"{suite}: {option.about}.")
    limits = click.IntRange(*option.limits)
    return click.Option([f"--{option.name}"], type=limits, multiple=True, help=f"{suite}: {option.about}; repeatable.")


@cli.command(cls=BenchCommand, short_help="Measure here: one suite of benchmarks.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the record to this JSON file.")
@click.option("--rounds", type=click.IntRange(3, 1000), default=30, show_default=True, help="Interleaved repetitions.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@as_json
def bench(suite: str, out: Path | None, rounds: int, device: Any, as_json: bool, **options: Any) -> None:
    """Measure one suite on this machine."""
    from uavlab.bench.registry import format_rows

    known, given = _suites(), {name: value for name, value in options.items() if value}
    own = {name: [option.name for option in each.options] for name, each in known.items()}
    for option in given.keys() - own[suite]:
        owner = next(name for name, names in own.items() if option in names)
        names = " and ".join(f"--{name}" for name in own[owner])
        raise ConfigError(f"bench {suite}: {names} belong to `bench {owner}`; leave them out.")
    record = known[suite].run(rounds, device, **given)
    _report(record, format_rows(record["rows"]), out, as_json)


def _report(record: dict[str, Any], text: str, out: Path | None, as_json: bool) -> None:
    """Print a record as text, and write it with the command that made it."""
    from uavlab.storage.files import write_json
    from uavlab.storage.machine import invocation

    record = {"command": invocation(), **record}
    click.echo(text)
    if out is not None:
        write_json(out, record)
    print_json(as_json, record)


@cli.command()
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@as_json
def toggles(device: Any, as_json: bool) -> None:
    """List every optimization: its values, where it acts, how equal its results are, and whether it runs here."""
    from uavlab.bench.doctor import format_toggles, toggle_rows

    click.echo(format_toggles(device))
    print_json(as_json, {"rows": toggle_rows(device)})


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
    """Measure where the time of PRESET goes, what bounds it, and which toggles would help: predicted and measured."""
    from uavlab.bench.profile_run import format_profile, profile_preset

    record = profile_preset(preset, *layers(**options), rounds=rounds, trace=trace, every=every)
    _report(record, format_profile(record), out, as_json)
