"""Parts that commands share: the group, exit codes of errors, and the options for settings of a run."""

import io
import json
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, NoReturn

import click

from uavlab.core import installation
from uavlab.core.errors import ConfigError, UavlabError
from uavlab.core.text import check_threads, one_line, printable, quote
from uavlab.experiment.names import FORMS, is_external, presets, register_external, require_names, runs_in
from uavlab.experiment.signals import exit_immediately
from uavlab.storage.files import require_writable, write_json

Command = Callable[..., Any]
Record = dict[str, Any]
"""What a command returns, and prints with ``--json``."""


class OutputFile(click.Path):
    """A file that a command writes at its end; what cannot be written is refused at its beginning."""

    def __init__(self, *suffixes: str) -> None:
        super().__init__(path_type=Path)
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(value, param, ctx)))
        if path.is_dir():
            self.fail(f"{quote(str(path))} is a folder; name a file in it.", param, ctx)
        if not path.name.endswith(self.suffixes or ""):
            self.fail(f"{quote(str(path))} must end in one of {', '.join(self.suffixes)}.", param, ctx)
        require_writable(path)
        return path


on_device = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Replaces the device of the run's settings."
)
with_monitor = click.option(
    "--monitor", is_flag=True, default=None, help="Log the time of each stage, load and memory (monitor=true)."
)
which_policy = click.option(
    "--which",
    type=click.Choice(["best", "best_by_group", "last"]),
    default="best",
    help="Policy of the run: of the highest score in training (default), each group with its own, or the newest.",
)
record_file = click.option("--out", type=OutputFile(), help="Also write the record to this JSON file.")


def add_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, in this order."""
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


with_settings = add_options(
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


def scored_by(what: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of scores to a command; ``what`` is what the seed is of."""
    return add_options(
        click.option("--episodes", type=click.IntRange(1, 100_000), default=200, show_default=True),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help=f"Seed of the {what}."),
        click.option(
            "--mean-action", is_flag=True, help="Use the mean action, or the likeliest move, instead of sampling."
        ),
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
        message = error.format_message().replace("\n\t", " ")
        message += "" if message.endswith((".", "?", "?)")) else "."
        refuse("ConfigError", f"{message} {_next_step(error)}".strip(), ConfigError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except UavlabError as error:
        show(error)
        refuse(type(error).__name__, str(error), error.exit_code)
    except (MemoryError, OSError, RecursionError) as error:  # Python makes nested folders by recursion
        refuse("ResourceError", f"{type(error).__name__}: {error}; free some memory or space, or check paths.", 5)
    except Exception as error:
        from uavlab.envs.autoreset import describe_error

        if not (message := describe_error(error)):
            raise
        show(error)
        refuse("ConfigError", message, ConfigError.exit_code)


def _next_step(error: click.ClickException) -> str:
    """Return what to do about an argument that is missing or not known."""
    missing = isinstance(error, click.MissingParameter)
    refused = isinstance(error, click.BadParameter) and not missing  # the message says what is expected
    if refused or not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    program, words = installation.program(), error.ctx.command_path.removeprefix(error.ctx.find_root().command_path)
    step = f"See `{program}{words} --help`."
    lacks = error.param.name if isinstance(error, click.MissingParameter) and error.param else None
    if lacks == "preset":
        return f"`{program} presets` lists them."
    if lacks in ("run", "runs") and (near := runs_in(Path(), Path("runs"))):
        return f"Runs here: {', '.join(near)}."
    takes_settings = not missing and any(option.name == "settings" for option in error.ctx.command.params)
    return f"Settings are given by --set NAME=VALUE. {step}" if takes_settings else step


def show(error: BaseException) -> None:
    """Print the traceback of an error and its notes, if ``--traceback`` is given."""
    if "--traceback" in sys.argv:
        echo("".join(traceback.format_exception(error)), err=True)


def refuse(kind: str, message: str, code: int) -> NoReturn:
    message = one_line(message)
    echo(f"{kind}: {message}", err=True)
    print_json({"error": kind, "message": message, "exit_code": code})
    sys.exit(code)


def echo(text: Any, err: bool = False) -> None:
    """Print text, whose characters other than line ends are escaped if a terminal could take them for commands."""
    click.echo(printable(text), err=err)


def keep_record(path: Path | None, /, **record: Any) -> Record:
    """Return a record with the command that made it, and write it to a file if one is named."""
    record = {"command": installation.invocation(), **record}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
    return record


class NamesFirst(click.Command):
    """A command that refuses unknown names before it imports torch, and answers in JSON if it is asked to."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        about = "Print one JSON object as the last line."
        self.params.append(click.Option(["--json"], is_flag=True, expose_value=False, help=about))

    def invoke(self, ctx: click.Context) -> Any:
        require_names(ctx.params)
        return super().invoke(ctx)


class NamesFirstGroup(click.Group):
    """A group of such commands and groups, which says of a preset or a run that it is no command."""

    command_class = NamesFirst
    group_class = type

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = None if args[0] in self.commands else presets().get(args[0])
        if known or os.path.exists(f"{args[0]}/config.json"):
            command = "train" if known else "evaluate"
            what = f"{quote(args[0])} is a {'preset' if known else 'run'}, expected a command"
            raise ConfigError(f"{what}, such as `{installation.program()} {command} {shlex.quote(args[0])}`.")
        return super().resolve_command(ctx, args)


@click.group(cls=NamesFirstGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(installation.VERSION)
@click.option("--env", "trusted", multiple=True, metavar="NAME", help="Code of others that the command may run.")
@click.option("--traceback", is_flag=True, expose_value=False, help="With an error, also where it was raised.")
def cli(trusted: tuple[str, ...]) -> None:
    """Train teams of UAVs fast, and measure before you believe."""
    for name in trusted:
        register_external(name)


def task_argument(command: Command) -> Command:
    """Add the argument PRESET to a command, or ``--env`` in its place."""
    env = click.option("--env", is_eager=True, metavar="NAME", help="In place of PRESET, such as pettingzoo:MODULE.")
    return click.argument("preset", required=False, metavar="PRESET", callback=_preset_or_env)(env(command))


def _preset_or_env(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    env = ctx.params.pop("env", None)
    if value is None and env is None:
        raise click.MissingParameter(ctx=ctx, param=param)
    if value is not None and env is not None:
        raise ConfigError(f"got the preset {quote(value)} and --env {quote(env)}; give one of them.")
    if env is not None and not is_external(env):
        raise ConfigError(f"--env {quote(env)}: expected {FORMS}.")
    return env if value is None else value


def show_reading(env: Any, rank: int = 0) -> None:
    """Print once what was read of an external environment on stderr, so that a guess that is wrong is seen."""
    if rank == 0 and hasattr(env, "reading"):
        echo(f"read {env.origin.name}: {env.reading}", err=True)


def layer(settings: Any, config_file: Path | None, toggles: str | None, toggle_texts: Any, **options: Any) -> Any:
    from uavlab.experiment.config import gather

    return gather(config_file, settings, options, toggles, toggle_texts)


def print_json(record: Record) -> None:
    """Print a record as one line of JSON if ``--json`` is given and there is a record."""
    if record and "--json" in sys.argv:
        echo(json.dumps(record).replace("\x7f", "\\u007f"))  # the only such character that JSON leaves as it is
