"""The page of commands, docs/commands.md, from click itself: ``python -m tools.commands --write``."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import click

from uavlab.cli import cli

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """# Commands

Activate the environment with `source .venv/bin/activate`, or call `.venv/bin/uavlab`. [Running](running.md) shows how \
the commands serve common tasks. All commands have `--help`, which prints what this page says; {json} `--json`, which \
prints one JSON object as the last line. `python -m tools.commands --write` writes this page."""


def walk(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield a context for a command that is no group, and for each command below a group."""
    context = click.Context(command, parent, path.rpartition(" ")[2])
    if parent is None or not isinstance(command, click.Group):
        yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), f"{path} {name}", context)


def about(context: click.Context) -> str:
    """Return the text of a command; paragraphs of several lines, which click does not wrap, are blocks."""
    formatter = click.HelpFormatter(width=10_000)
    context.command.format_help_text(context, formatter)
    paragraphs = dedent(formatter.getvalue().strip("\n")).split("\n\n")
    return "\n\n".join(f"```text\n{part}\n```" if "\n" in part else part for part in paragraphs)


def section(context: click.Context) -> str:
    """Return title, text, usage and options of a command."""
    usage = context.command.get_usage(context).removeprefix("Usage: ")
    parts = [f"## {context.command_path}", about(context), f"```text\n{usage}\n```"]
    options = [param for param in context.command.get_params(context) if isinstance(param, click.Option)]
    records = [param.get_help_record(context) for param in options if not {"--help", "--json"} & {*param.opts}]
    if rows := [[cell.replace("|", r"\|") for cell in record] for record in records if record]:
        lines = ["| option | meaning |", "| --- | --- |", *(f"| `{names}` | {text} |" for names, text in rows)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def page() -> str:
    """Return the page."""
    contexts = list(walk(cli, "uavlab"))
    lacking = [each.info_name for each in contexts[1:] if "json" not in {p.name for p in each.command.params}]
    head = HEAD.format(json=f"all but {', '.join(f'`{name}`' for name in lacking)} have")
    return "\n\n".join([head, *map(section, contexts)]) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
