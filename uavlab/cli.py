"""The command line: ``uavlab`` and ``python -m uavlab``. Each command is a thin layer over ``app`` and ``lab``.

Exit codes: 0 ok, 1 a notebook's own failure or nobody reads the output, 2 settings, 3 files, 4 diverged, 5 input/output
or memory, 124 time-out, 130 and 143 signals, 138 dead kernel.
"""

import io
import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from uavlab import __version__
from uavlab.app.signals import at_once, first_asks
from uavlab.core.errors import ConfigError, UavlabError
from uavlab.core.text import check_threads, one_line

Command = Callable[..., Any]
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on the last line.")
on_device = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Instead of the run's own device."
)
settings_options = (
    click.option("--seed", type=int, help="Seed of the first run."),
    click.option("--runs", type=int, help="Independent runs in this process."),
    click.option("--updates", type=int, help="Updates to make."),
    click.option("--minutes", type=float, help="Minutes of training; alone, it replaces the preset's updates."),
    click.option("--device", help="auto, cpu or cuda."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any setting; repeatable."),
    click.option("--config", "config_file", type=click.Path(path_type=Path), help="Settings from a YAML file."),
)


def main() -> None:
    """Run a command; a refusal is one line on stderr and its exit code, and with ``--json`` an object on stdout."""
    warnings.formatwarning = lambda message, *where: f"warning: {message}\n"
    try:
        check_threads(os.environ)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # what the terminal's encoding lacks
        with at_once():
            cli(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        refuse("ConfigError", error.format_message(), ConfigError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except UavlabError as error:
        refuse(type(error).__name__, str(error), error.exit_code)
    except (MemoryError, OSError) as error:
        refuse("ResourceError", f"{type(error).__name__}: {error}; free some memory or space, or check paths.", 5)


def refuse(kind: str, message: str, code: int) -> NoReturn:
    """End with one line that says why."""
    message = one_line(message)
    click.echo(f"{kind}: {message}", err=True)
    tell("--json" in sys.argv, {"error": kind, "message": message, "exit_code": code})
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Train teams of UAVs fast, and measure before you believe."""


def with_settings(command: Command) -> Command:
    """Add the options that make up a run's settings."""
    for option in reversed(settings_options):
        command = option(command)
    return command


@cli.command()
@as_json
def presets(as_json: bool) -> None:
    """List the presets."""
    from uavlab.app.presets import presets as known

    rows = {name: preset.about for name, preset in known().items()}
    for name, about in rows.items():
        click.echo(f"{name:28} {about}")
    tell(as_json, rows)


@cli.command()
@click.argument("preset")
@as_json
def settings(preset: str, as_json: bool) -> None:
    """List every setting of PRESET: its value there, what it may be and what it means."""
    from uavlab.app.settings import described, table

    rows = described(preset)
    click.echo(table(rows))
    tell(as_json, {"rows": rows})


@cli.command()
@click.argument("preset")
@with_settings
@as_json
def check(preset: str, as_json: bool, **options: Any) -> None:
    """Check that the environment of PRESET, as it is set, keeps its contract."""
    from uavlab.app.config import configure
    from uavlab.testing import check_env

    report = check_env(configure(preset, *layers(**options)).env)
    click.echo(report)
    tell(as_json, vars(report))


@cli.command()
@click.argument("preset")
@with_settings
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run, new or empty; runs/NAME if not given.")
@click.option("--name", help="Name of the run; PRESET-SEED if not given.")
@click.option("--dry-run", is_flag=True, help="Print steps, updates and bytes, and stop.")
@as_json
def train(preset: str, out: Path | None, name: str | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Train a PRESET."""
    from uavlab.app.build import plan
    from uavlab.app.config import configure
    from uavlab.app.folder import require_empty, run_name
    from uavlab.app.run import Run

    config = configure(preset, *layers(**options))
    planned = plan(config)
    folder = Path("runs") / run_name(f"{preset}-{config.run.seed}" if name is None else name)
    if name and out:
        raise ConfigError("--name and --out both say where the run is kept; give one of them.")
    folder = out or folder
    if dry_run:
        for key, value in planned.items():
            click.echo(f"{key:22} {value}")
        return tell(as_json, planned)
    require_empty(folder)
    click.echo(f"replay takes {planned['replay_bytes'] / 2**20:.1f} MiB; the run is kept in {folder}")
    drive(Run(config, folder), as_json)


@cli.command()
@click.argument("run")
@with_settings
@click.option("--fresh-replay", is_flag=True, help="Fill replay anew: for a run whose replay is damaged.")
@as_json
def resume(run: str, fresh_replay: bool, as_json: bool, **options: Any) -> None:
    """Continue RUN from its newest intact checkpoint to its own target, or to one set here.

    Unchanged, on its own machine, it ends in the same bits as one never stopped. Targets count from its beginning.
    """
    from uavlab.app.folder import run_folder
    from uavlab.app.run import Run

    resumed = Run.resume(run_folder(run), *layers(**options), fresh_replay=fresh_replay)
    click.echo(f"{run}: goes on from update {resumed.number}")
    drive(resumed, as_json)


@cli.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--episodes", type=click.IntRange(1, 100_000), default=200, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the episodes.")
@click.option("--mean-action", is_flag=True, help="Fly the mean action instead of sampling.")
@on_device
@click.option("--out", type=click.Path(path_type=Path), help="Also write the record to this JSON file.")
@as_json
def evaluate(
    runs: tuple[str, ...], episodes: int, seed: int, mean_action: bool, device: Any, out: Path | None, as_json: bool
) -> None:
    """Score the policy kept by each RUN on its evaluation task, with 95 % bootstrap intervals."""
    from uavlab.app.record import write_json
    from uavlab.app.scores import score

    record = score(runs, episodes, seed, mean_action, device, click.echo)
    if out is not None:
        write_json(out, record)
    rows = record["rows"]
    tell(as_json, rows[0] if len(rows) == 1 else {"rows": rows})


@cli.command()
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path), help="HTML file; flight.html in the run if not given.")
@click.option("--picture", type=click.Path(path_type=Path), help="Also draw one moment of it, as PNG, SVG or PDF.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the flight.")
@click.option("--mean-action", is_flag=True, help="Fly the mean action instead of sampling.")
@on_device
@as_json
def fly(
    run: str, out: Path | None, picture: Path | None, seed: int, mean_action: bool, device: Any, as_json: bool
) -> None:
    """Write an HTML page with one animated flight of the policy kept by RUN."""
    from uavlab.app import kept
    from uavlab.app.folder import run_folder
    from uavlab.lab import figures

    folder = run_folder(run)
    loaded = kept.load(folder, device)
    states = list(kept.flight(loaded, seed, mean_action))
    page = out or folder / "flight.html"
    animation = figures.flight(loaded.config.evaluation, states)
    figures.write_page(animation, page)
    if picture is not None:
        figures.write_picture(figures.picture(animation), picture)
    click.echo(f"{len(states) - 1} steps; open {page}")
    tell(as_json, {"page": str(page), "steps": len(states) - 1})


@cli.command()
@click.argument("run")
@click.argument("out", type=click.Path(path_type=Path))
@as_json
def export(run: str, out: Path, as_json: bool) -> None:
    """Copy the settings and the kept policy of RUN to the new folder OUT; it evaluates and flies like the run."""
    from uavlab.app import kept
    from uavlab.app.folder import run_folder

    click.echo(kept.export(run_folder(run), out))
    tell(as_json, {"run": run, "out": str(out)})


@cli.command()
@click.argument("suite", type=click.Choice(["update", "env", "guard"]))
@click.option("--out", type=click.Path(path_type=Path), help="Also write the record to this JSON file.")
@click.option("--rounds", type=click.IntRange(3, 1000), default=30, show_default=True, help="Interleaved repetitions.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@as_json
def bench(suite: str, out: Path | None, rounds: int, device: Any, as_json: bool) -> None:
    """Measure here: `update` (batched learner over the loop), `env` (steps per second), `guard` (what it costs)."""
    from uavlab.app import bench as measure
    from uavlab.app.record import invocation, write_json

    record = {"command": invocation(), **measure.SUITES[suite](rounds, device)}
    click.echo(measure.table(record))
    if out is not None:
        write_json(out, record)
    tell(as_json, record)


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
    from uavlab.lab import notebook as notebooks
    from uavlab.lab.report import closing_words, report

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
    from uavlab.lab.notebook import lab_command

    command = lab_command(Path.cwd(), *extra)
    os.execv(command[0], command)


@cli.command()
@as_json
def doctor(as_json: bool) -> None:
    """Tell what this machine has, what of it is usable, and why the rest is not."""
    from uavlab.app.doctor import examine

    rows = examine()
    for row in rows:
        click.echo(row)
    tell(as_json, {"rows": [vars(row) for row in rows]})


def layers(settings: tuple[str, ...], config_file: Path | None, **options: Any) -> Any:
    """Gather a settings file, ``--set`` and the options, in the order in which they are laid over a preset."""
    from uavlab.app.config import gather

    return gather(config_file, settings, options)


def drive(run: Any, as_json: bool) -> None:
    """Train to the end with a progress bar; the first SIGINT or SIGTERM ends after the update in progress."""
    from tqdm import tqdm

    from uavlab.app.record import program

    for reason in run.lifted:
        click.echo(f"not bit for bit repeatable: {reason}")
    settings = run.config.run
    row = run.config.replay.world_steps * run.config.replay.worlds * settings.runs * run.config.env.spec.agents
    seconds = 0.5 if sys.stderr.isatty() else 60  # where nobody watches, one line a minute
    bar = tqdm(total=settings.updates, initial=run.number, unit="update", mininterval=seconds, maxinterval=seconds)
    if run.done:
        click.echo("nothing to do: the target was reached before; --updates sets a farther one.")
    with first_asks(run.stop) as received, bar:
        for progress in run.train():
            bar.update(progress.number - bar.n)
            if progress.metrics:
                rate = row * run.number / run.seconds
                clock = f", {run.seconds / 60:.1f} of {settings.minutes:g} min" if settings.minutes else ""
                bar.set_postfix_str(f"{rate:,.0f} agent-steps/s{clock}", refresh=False)
            if progress.score:
                figures = {k.removeprefix("eval/"): v for k, v in progress.score.items()}
                tqdm.write(f"{progress.number:>8}  " + "  ".join(f"{k} {figures[k]:.3f}" for k in run.headline))
    command = "evaluate" if run.done else "resume"
    click.echo(f"{run.status}: {run.number} updates in {run.seconds:.0f} s; next: {program()} {command} {run.folder}")
    saves = run.saves()
    if saves["count"]:
        click.echo(
            f"saved {saves['count']} times: training paused {saves['mean_s']:.3f} s on average, at most "
            f"{saves['longest_s']:.3f} s; the last save wrote {saves['last_bytes'] / 2**20:.1f} MiB"
        )
    result = {"run": str(run.folder), "status": run.status, "updates": run.number, "seconds": run.seconds}
    scores = [score if math.isfinite(score) else None for score in run.best_score.tolist()]
    tell(as_json, {**result, "score": scores})
    if received:
        sys.exit(128 + received[0])


def tell(as_json: bool, value: dict[str, Any]) -> None:
    """Print the JSON line if it was asked for."""
    if as_json:
        click.echo(json.dumps(value))
