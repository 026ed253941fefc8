"""Commands on notebooks: run one headless, or open JupyterLab."""

import os
import sys
from pathlib import Path

import click

from uavlab.cli.base import as_json, cli, tell


@cli.command()
@click.argument("name")
@click.option(
    "-p", "parameters", type=(str, str), multiple=True, metavar="KEY VALUE", help="One parameter; repeatable."
)
@click.option("-f", "file", type=click.Path(path_type=Path), help="Parameters from a YAML file.")
@click.option("--out", type=click.Path(path_type=Path), help="Executed notebook; runs/NAME.ipynb if not given.")
@click.option("--timeout", type=click.IntRange(1), default=3600, show_default=True, help="Seconds for one cell.")
@as_json
def notebook(
    name: str, parameters: tuple[tuple[str, str], ...], file: Path | None, out: Path | None, timeout: int, as_json: bool
) -> None:
    """Run a notebook headless, its parameters checked before a kernel starts; also written as an offline page."""
    from uavlab.lab.headless import runner as notebooks
    from uavlab.lab.headless.report import closing_words, report

    source = notebooks.notebook_path(name)
    target = out or Path("runs") / source.name
    values = notebooks.read_parameters(source, parameters, [] if file is None else [file])
    result = notebooks.run_notebook(source, values, target, timeout, progress=not as_json)
    page = target.with_suffix(".html")
    report(target, page)
    click.echo(f"{closing_words(target)}executed notebook: {target}\noffline page: {page}")
    if result.exit_code:
        click.echo(f"{result.tail}{result.reason}", err=True)
    tell(as_json, {"exit_code": result.exit_code, "reason": result.reason, "notebook": str(target), "html": str(page)})
    sys.exit(result.exit_code)


@cli.command()
@click.argument("extra", nargs=-1, type=click.UNPROCESSED)
def lab(extra: tuple[str, ...]) -> None:
    """Open JupyterLab on this machine alone; what follows ``--`` is passed on, ``-- --no-browser`` say."""
    from uavlab.lab.headless.runner import lab_command

    command = lab_command(Path.cwd(), *extra)
    os.execv(command[0], command)
