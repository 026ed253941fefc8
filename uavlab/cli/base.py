"""Parts that commands share: the group, exit codes of errors, and the options for settings of a run."""

import io
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from uavlab import __version__
from uavlab.core import installation
from uavlab.core.errors import ConfigError, UavlabError
from uavlab.core.text import check_threads, one_line, printable
from uavlab.experiment.names import require_names
from uavlab.experiment.signals import exit_immediately

Command = Callable[..., Any]
Record = dict[str, Any]
"""What a command returns, and prints with ``--json``."""

as_json = click.option("--json", is_flag=True, expose_value=False, help="Print one JSON object as the last line.")
on_device = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Replaces the device of the run's settings."
)
settings_options = (
    click.option("--seed", type=int, help="Seed of the first run."),
    click.option("--runs", type=int, help="Independent runs in this process."),
    click.option("--updates", type=int, help="Number of updates."),
    click.option("--minutes", type=float, help="Minutes of training; alone, it replaces the preset's updates."),
    click.option("--device", help="auto, cpu or cuda."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any setting; repeatable."),
    click.option("--toggle", "toggle_texts", multiple=True, metavar="NAME=VALUE", help="One optimization; repeatable."),
    click.option("--toggles", metavar="SET", help="plain, eager, laptop, gpu or max; see the command toggles."),
    click.option("--config", "config_file", type=click.Path(path_type=Path), help="Settings from a YAML file."),
)


def main() -> None:
    """Run a command; print an error as one line on stderr, with ``--json`` as an object on stdout, and exit."""
    installation.command_line = True
    warnings.formatwarning = lambda message, *where: f"warning: {one_line(str(message))}\n"
    try:
        check_threads(os.environ)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # for characters that the terminal's encoding lacks
        with exit_immediately():
            print_json(cli(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        hint = f" {installation.program()} presets lists them." if _lacks_preset(error) else ""
        refuse("ConfigError", error.format_message() + hint, ConfigError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except UavlabError as error:
        refuse(type(error).__name__, str(error), error.exit_code)
    except (MemoryError, OSError, RecursionError) as error:  # Python makes nested folders by recursion
        refuse("ResourceError", f"{type(error).__name__}: {error}; free some memory or space, or check paths.", 5)
    except Exception as error:
        from uavlab.envs.forms import describe_error

        if not (message := describe_error(error)):
            raise
        refuse("ConfigError", message, ConfigError.exit_code)


def _lacks_preset(error: click.ClickException) -> bool:
    return isinstance(error, click.MissingParameter) and error.param is not None and error.param.name == "preset"


def refuse(kind: str, message: str, code: int) -> NoReturn:
    """Print an error in one line and end the process."""
    message = one_line(message)
    echo(f"{kind}: {message}", err=True)
    print_json({"error": kind, "message": message, "exit_code": code})
    sys.exit(code)


def echo(text: Any, err: bool = False) -> None:
    """Print text, whose characters other than line ends are escaped if a terminal could take them for commands."""
    click.echo(printable(text), err=err)


class NamesFirst(click.Command):
    """A command that refuses unknown names before it imports torch."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check the names among the parameters, then run the command."""
        require_names(ctx.params)
        return super().invoke(ctx)


class NamesFirstGroup(click.Group):
    """A group of such commands and groups."""

    command_class = NamesFirst
    group_class = type


@click.group(cls=NamesFirstGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Train teams of UAVs fast, and measure before you believe."""


def with_settings(command: Command) -> Command:
    """Add the options for settings of a run to a command."""
    for option in reversed(settings_options):
        command = option(command)
    return command


def layer(
    settings: tuple[str, ...],
    config_file: Path | None,
    toggles: str | None,
    toggle_texts: tuple[str, ...],
    **options: Any,
) -> Any:
    """Return the settings that a command line gives."""
    from uavlab.experiment.config import gather

    return gather(config_file, settings, options, toggles, toggle_texts)


def print_json(record: Record) -> None:
    """Print a record as one line of JSON if ``--json`` is given and there is a record."""
    if record and "--json" in sys.argv:
        echo(json.dumps(record).replace("\x7f", "\\u007f"))  # the only such character that JSON leaves as it is
