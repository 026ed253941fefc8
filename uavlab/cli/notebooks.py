"""Commands for notebooks: run one headless, or open JupyterLab."""

import os
import re
import sys
from pathlib import Path

import click

from uavlab.cli.base import cli, echo, print_json
from uavlab.core import installation
from uavlab.core.errors import ConfigError
from uavlab.core.extras import load_lab, require
from uavlab.core.text import quote
from uavlab.storage.files import copy_missing

PASSED_ON = re.compile(r"--(no-browser|allow-root|debug|port=[0-9]{1,5})")  # options that change no access


@cli.command()
@click.argument("name")
@click.option(
    "-p", "parameters", type=(str, str), multiple=True, metavar="KEY VALUE", help="One parameter; repeatable."
)
@click.option("-f", "file", type=click.Path(path_type=Path), help="Parameters from a YAML file.")
@click.option("--out", type=click.Path(path_type=Path), help="Executed notebook; runs/NAME.ipynb if not given.")
@click.option("--timeout", type=click.IntRange(1), default=3600, show_default=True, help="Seconds for one cell.")
def notebook(
    name: str, parameters: tuple[tuple[str, str], ...], file: Path | None, out: Path | None, timeout: int
) -> None:
    """Check the parameters of a notebook, run it headless, and also write it as an offline page."""
    runner, pages = load_lab("headless.runner", "notebook"), load_lab("headless.report", "notebook")
    source = runner.notebook_path(name)
    target = out or Path("runs") / f"{runner.short_name(source)}.ipynb"
    values = load_lab("headless.parameters", "notebook").read_parameters(source, parameters, file)
    result = runner.run_notebook(source, values, target, timeout, progress="--json" not in sys.argv)
    page = target.with_suffix(".html")
    pages.report(target, page)
    echo(f"{pages.last_printed(target)}executed notebook: {target}\noffline page: {page}")
    if result.exit_code:
        echo(result.reason, err=True)
    record = {"exit_code": result.exit_code, "reason": result.reason, "notebook": str(target), "html": str(page)}
    print_json(record)
    sys.exit(result.exit_code)


@cli.command(cls=click.Command)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[FOLDER] [-- OPTION...]")
def lab(words: tuple[str, ...]) -> None:
    """Open JupyterLab for this machine only; with FOLDER, in that folder, after copying the notebooks that it lacks.

    Of JupyterLab's options, ``--no-browser``, ``--port=N``, ``--allow-root`` and ``--debug`` may follow after ``--``.
    """
    require("lab", "lab", "jupyterlab")
    root = Path(words[0]) if words and not words[0].startswith("-") else None
    if refused := [word for word in words[root is not None :] if not PASSED_ON.fullmatch(word)]:
        problem = f"lab: option {quote(refused[0])}; expected --no-browser, --port=N, --allow-root or --debug"
        raise ConfigError(f"{problem}. Others could turn off the token: start `jupyter lab` yourself for them.")
    if root is not None:
        copies = copy_missing(sorted((installation.ROOT / "notebooks").glob("*.ipynb")), root)
        echo(f"{len(copies)} notebooks copied to {root}")
    command = lab_command(root or Path.cwd(), *words[root is not None :])
    sys.stdout.flush()  # nothing flushes it later: this process becomes another program
    os.execv(command[0], command)


def lab_command(root: Path, *extra: str) -> list[str]:
    """Return the command that serves JupyterLab from ``root`` to this machine only, with more options.

    JupyterLab neither fetches news and versions nor asks whether it should, unless one's own settings say so; its
    figures follow the width of the page.
    """
    fixed = [
        "--ServerApp.ip=127.0.0.1",
        "--KernelManager.transport_encryption=auto",
        f"--LabApp.app_settings_dir={installation.LAB / 'settings'}",
        f"--LabApp.extra_labextensions_path={installation.LAB / 'labextensions'}",
    ]
    return [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={Path(root).resolve()}", *extra, *fixed]
