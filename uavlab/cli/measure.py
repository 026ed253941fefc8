"""Commands that report (presets, settings, check, doctor, toggles) or measure (bench, profile, fit, claims)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from uavlab.cli.base import (
    NamesFirst,
    OutputFile,
    Record,
    cli,
    echo,
    keep_record,
    layer,
    record_file,
    show_reading,
    task_argument,
    with_settings,
)
from uavlab.core.extras import load_lab
from uavlab.core.text import one_line

with_rounds = click.option(
    "--rounds", type=click.IntRange(3, 1000), default=30, show_default=True, help="Interleaved repetitions."
)
here = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
SYSTEMS = ("leader_follower", "mapping", "assignment", "telemetry", "scale_out")


@cli.command()
def presets() -> Record:
    """List the presets."""
    from uavlab.experiment.names import presets as known

    rows = {name: preset.about for name, preset in known().items()}
    for name, about in rows.items():
        echo(f"{name:28} {about}")
    return rows


@cli.command()
@task_argument
def settings(preset: str) -> Record:
    """List every setting of PRESET with its value, range and meaning."""
    from uavlab.experiment.config import configure, parts
    from uavlab.experiment.settings import describe_settings, format_settings

    config = configure(preset)
    show_reading(config.env)
    rows = describe_settings(parts(config.task.settings), config.values)
    echo(format_settings(rows, config.task.settings[-1]))
    return {"rows": rows}


@cli.command()
@task_argument
@with_settings
@click.option("--learner", "both", is_flag=True, help="Check its learner, too.")
def check(preset: str, both: bool, **options: Any) -> Record:
    """Check that the environment of PRESET keeps its contract, or that its flights can be learned from."""
    from uavlab.experiment.config import configure
    from uavlab.testing import check_env, check_learner

    config = configure(preset, layer(**options))
    show_reading(config.env)
    evaluation = config.task.evaluation
    report = check_env(config.env) if evaluation.flies else evaluation.check(config)
    echo(report)
    if not both:
        return vars(report)
    hyper = {name: config.values[name] for name in vars(config.learner)}
    learner = check_learner(config.task.learner, config.env, hyper)
    echo(learner)
    return {**vars(report), "learner": vars(learner)}


@cli.command()
def doctor() -> Record:
    """Report the hardware and software of this machine, what is usable, and why the rest is not."""
    rows = load_lab("measure.doctor", "doctor").examine()
    for row in rows:
        echo(row)
    return {"rows": [vars(row) for row in rows]}


@cli.command()
@here
def toggles(device: Any) -> Record:
    """List every optimization: its values, where it acts, how equal its results are, and whether it runs here."""
    machine = load_lab("measure.doctor", "toggles")
    echo(machine.format_toggles(device))
    return {"rows": machine.toggle_rows(device)}


class BenchCommand(NamesFirst):
    """The command ``bench``: its suites, their help and their options are those registered when it is used."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        known = _suites()
        own: dict[str, dict[str, Any]] = {}
        for name, suite in known.items():
            for option in suite.options:
                own.setdefault(option.name, {})[name] = option
        return [
            click.Argument(["suite"], type=click.Choice(list(known)), metavar="SUITE"),
            *super().get_params(ctx),
            *map(_click_option, own.values()),
        ]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        with formatter.indentation():
            about = "; ".join(f"`{name}` ({suite.about})" for name, suite in _suites().items())
            formatter.write_text(f"Measure here: {about}.")


def _suites() -> dict[str, Any]:
    from uavlab.benchmarks import suites

    return suites()


def _click_option(suites: Mapping[str, Any]) -> click.Option:
    """Return an option, which means something of its own for each of its suites."""
    option = next(iter(suites.values()))
    name, flag = f"--{option.name}", option.limits is None and option.kind is int
    repeatable = "; repeatable" * (option.several and not flag)
    about = " ".join(f"{suite}: {variant.about}{repeatable}." for suite, variant in suites.items())
    if flag:
        return click.Option([name], is_flag=True, help=about)
    ranges = {int: click.IntRange, float: click.FloatRange}
    kind = click.STRING if option.limits is None else ranges[option.kind](*option.limits)
    return click.Option([name], type=kind, multiple=option.several, help=about)


@cli.command(cls=BenchCommand, short_help="Measure here: one suite of benchmarks.")
@record_file
@with_rounds
@here
def bench(suite: str, out: Path | None, rounds: int, device: Any, **options: Any) -> Record:
    """Measure one suite on this machine."""
    from uavlab import benchmarks

    given = {name: value for name, value in options.items() if value}
    record = benchmarks.bench(suite, rounds=rounds, device=device, **given)
    echo(benchmarks.format_rows(record["rows"]))
    return keep_record(out, **record)


@cli.command()
@task_argument
@with_settings
@click.option(
    "--rounds", type=click.IntRange(3, 1000), default=20, show_default=True, help="Interleaved repetitions, at most."
)
@click.option(
    "--trace", type=OutputFile(".json", ".json.gz"), help="Also write a trace for Perfetto; .json or .json.gz."
)
@click.option("--all", "every", is_flag=True, help="Measure every usable toggle, on whole cycles.")
@click.option(
    "--limit",
    type=click.FloatRange(min=0),
    help="Seconds after the start beyond which no further function is compiled for a trial (75; with --all no limit).",
)
@record_file
def profile(preset: str, out: Path | None, **options: Any) -> Record:
    """Measure where the time of PRESET goes, what bounds it, and which toggles would help: predicted and measured."""
    from uavlab import api

    how = {name: options.pop(name) for name in ("rounds", "trace", "every", "limit")}
    record = api.profile(preset, settings=layer(**options), **how)
    echo(record)
    return keep_record(out, **record)


@cli.command()
@task_argument
@with_settings
@click.option("--memory", metavar="SIZE", help="Limit on the bytes of tensors, such as 512MB or 2GiB.")
@click.option(
    "--most", type=click.IntRange(1, 1_000_000), default=16_384, show_default=True, help="Most worlds, and rows, tried."
)
@record_file
def fit(preset: str, memory: str | None, most: int, out: Path | None, **options: Any) -> Record:
    """Measure how many worlds PRESET should have here, and the largest batch that fits into memory.

    Without --memory, trials take at most half of what a CPU has free, or what a GPU grants. The last line has the
    settings as options of train.
    """
    from uavlab.experiment.build import runtime
    from uavlab.experiment.config import configure
    from uavlab.experiment.fit import fit as search
    from uavlab.storage.machine import describe

    config = configure(preset, layer(**options))
    result = search(config, memory, most, say=echo)
    facts = {"machine": describe(runtime(config.run).device), "memory": memory, "most": most}
    return keep_record(out, **facts, settings=result.settings, trials=result.trials)


@cli.command()
@click.option(
    "--measure", "names", multiple=True, metavar="CLAIM", help="Measure this claim here; repeatable; all for every one."
)
@click.option("--all", "every", is_flag=True, help="Also show the claims that nothing decides.")
@click.option("--system", type=click.Choice(SYSTEMS), help="Only what is claimed of this system.")
@with_rounds
@click.option("--out", type=OutputFile(), help="Keep the numbers in this file, not in figures/records.")
def claims(names: tuple[str, ...], every: bool, system: str | None, rounds: int, out: Path | None) -> Record:
    """Compare published claims about techniques with measurements on this machine, each with a verdict.

    Those that are decided are shown, and the verdicts of all are counted.
    """
    report, ledger = load_lab("claims.report", "claims"), load_lab("claims.ledger", "claims")
    named = () if "all" in names else names
    selection, bench = ledger.select(named, system), load_lab("claims.measures", "claims").Bench(rounds)
    path = out or report.own_path(bench.device)
    if names:
        report.measure(selection, path, bench, lambda line: echo(line, err=True))
    record, whose = report.newest(path) if out is None else (report.read(out), f"From {out}.")
    rows = report.rows(selection, record)
    echo(report.format_rows(rows, every=every or bool(named)))
    echo(one_line(whose))
    return {"rows": rows}
