"""Commands on runs: train, resume, evaluate, cross-play, transfer, report, fly, export; and on many: sweep."""

import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import click

from uavlab.cli.base import (
    OutputFile,
    Record,
    cli,
    echo,
    keep_record,
    layer,
    on_device,
    print_json,
    record_file,
    scored_by,
    show_reading,
    task_argument,
    which_policy,
    with_monitor,
    with_settings,
)
from uavlab.core.errors import ConfigError, UavlabError
from uavlab.core.installation import program
from uavlab.core.text import one_line, quote
from uavlab.experiment.names import trust_option
from uavlab.experiment.signals import graceful_stop


@cli.command()
@task_argument
@with_settings
@with_monitor
@click.option("--learner", help="Learner that fits the task, such as masac, coma, mappo or ippo; default the preset's.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run, new or empty; default runs/NAME.")
@click.option("--name", help="Name of the run; default PRESET-SEED.")
@click.option("--dry-run", is_flag=True, help="Print steps, updates, bytes and the time it takes here, and stop.")
def train(preset: str, out: Path | None, name: str | None, dry_run: bool, **options: Any) -> Record:
    """Train a PRESET."""
    from uavlab.experiment.config import configure
    from uavlab.experiment.rank_runs import totals
    from uavlab.experiment.run_dir import default_name, run_name

    number, count = own_place()
    settings = layer(**options)
    require_one_measure(settings, count)
    config = configure(preset, settings)
    planned = {**config.task.plan(config), **totals(config, count), **config.chosen}
    show_reading(config.env, number)
    if name and out:
        raise ConfigError("--name and --out both say where the run is kept; give one of them.")
    folder = out or Path("runs") / run_name(default_name(preset, config.run.seed) if name is None else name)
    if dry_run:
        for key, value in planned.items():
            if value is not None:
                echo(f"{key:22} {value}")
        return {**planned, "estimate": _estimate(config)} if number == 0 else {}
    what, size = next((key, value) for key, value in planned.items() if key.endswith("_bytes"))
    what = {"replay_bytes": "replay takes", "world_bytes": "worlds take"}.get(what, "flights take")
    amount = f"{planned['flights']} logs to read" if size is None else f"{what} {size / 2**20:.1f} MiB"
    with started(config, folder) as run:
        goes_on = f", and goes on from update {run.number}" if run.number else ""
        echo(f"{amount}; the run is kept in {folder}{goes_on}")
        return drive(run)


def _estimate(config: Any) -> Record:
    """Measure and print how long a run will take here, if it works here."""
    from uavlab.experiment.fit import measure

    try:
        estimate = measure(config).estimate(config.run)
    except UavlabError as error:
        echo(f"{'time':22} not measured: {error}")
        return {"error": type(error).__name__, "message": str(error)}
    echo(f"{'time':22} {estimate}")
    return vars(estimate)


@cli.command()
@click.argument("run")
@with_settings
@with_monitor
@click.option("--fresh-replay", is_flag=True, help="Start with new replay, for a run whose replay is damaged.")
def resume(run: str, fresh_replay: bool, **options: Any) -> Record:
    """Continue RUN from its newest intact checkpoint to its target, or to one set here.

    On the same machine, the result equals that of an uninterrupted run bit for bit. Targets count from its beginning.
    """
    from uavlab.experiment.names import run_folder

    with resumed(run_folder(run), layer(**options), fresh_replay) as going:
        echo(f"{run}: goes on from update {going.number}")
        return drive(going)


@cli.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@scored_by("episodes")
@click.option(
    "--policy", "plan", help="Evaluate this baseline, which needs no training, on the task of each RUN or PRESET."
)
@which_policy
@on_device
@record_file
def evaluate(runs: Any, plan: str | None, which: Any, device: Any, out: Path | None, **scoring: Any) -> Record:
    """Evaluate the best policy of each RUN on its evaluation task, with 95 % intervals."""
    from uavlab import api
    from uavlab.storage.machine import describe

    # all are read before the first episode
    what: Any = runs if plan else [api.load(run, device, which) for run in runs]
    trained, rows = [] if plan else _statuses(runs), []
    episodes = {"episodes": scoring["episodes"], "seed": scoring["seed"]}
    how = {"policy": plan} if plan else {"action": "mean" if scoring["mean_action"] else "sampled"}
    how |= {} if plan or which == "best" else {"which": which}
    for run, player in zip(runs, what, strict=True):
        result = api.evaluate(player, policy=plan, device=device, **scoring)
        title = f"{plan}, {result.count}"
        if not plan:
            age = f"<= {player.update}" if min(player.updates) < 0 else ", ".join(map(str, player.updates))
            title = f"policy of update {age}, {result.count} x {len(player.parameters)} run(s)"
        echo(f"{run}: {title}\n{result}")
        kind = "run" if os.path.exists(f"{run}/config.json") else "preset"
        rows.append({**result, kind: run, **how, **episodes})
    keep_record(out, machine=describe(result.device), rows=rows, trained=trained)
    return rows[0] if len(rows) == 1 else {"rows": rows}


@cli.command("cross-play")
@click.argument("runs", nargs=-1, required=True, metavar="RUN_OR_PRESET...")
@click.option("--policy", "plans", multiple=True, help="A baseline that also plays, such as random; repeatable.")
@scored_by("episodes")
@which_policy
@record_file
def cross_play(runs: tuple[str, ...], plans: tuple[str, ...], which: Any, out: Path | None, **scoring: Any) -> Record:
    """Score groups of each run against those of the others, and of baselines, in every pairing.

    A preset is no player: it names the task that is flown, which otherwise is that of the first run.
    """
    from uavlab import api
    from uavlab.experiment.names import presets
    from uavlab.storage.machine import describe

    tasks = [name for name in runs if name in presets() and not os.path.exists(name)]
    if len(tasks) > 1:
        raise ConfigError(f"cross-play: got the presets {', '.join(tasks)}; expected one task at most.")
    players: Any = {run: api.load(run, which=which) for run in runs if run not in tasks}
    players |= {plan: plan for plan in plans}
    play = api.cross_play(players, *tasks, **scoring)
    echo(play)
    rows = [{**row, "figures": dict(row["figures"])} for row in play.rows]
    machine = describe(play.rows[0]["figures"].device)
    return keep_record(out, machine=machine, episodes=scoring["episodes"], seed=scoring["seed"], rows=rows)


@cli.command()
@click.argument("run")
@click.option("--sizes", default="", help="Whole numbers, such as 2,4,8,16,32.")
@click.option("--stages", metavar="PRESET", default="", help="In place of sizes, the stages of a preset's curriculum.")
@click.option("--policy", "plans", multiple=True, help="A baseline that is scored, too; repeatable.")
@scored_by("episodes")
@which_policy
@record_file
def transfer(run: str, sizes: str, stages: str, plans: Any, which: Any, out: Path | None, **scoring: Any) -> Record:
    """Score the policy of RUN in teams of other sizes, or at each stage of a curriculum, without training."""
    from uavlab import api
    from uavlab.storage.machine import describe

    if not stages and not re.fullmatch(r"\d{1,4}(,\d{1,4})*", sizes, re.ASCII):
        raise ConfigError(f"--sizes {quote(sizes)}: expected whole numbers with commas, such as 2,4,8.")
    trained = api.load(run, which=which)
    numbers = [int(part) for part in sizes.split(",")] if sizes else []
    table = api.transfer(trained, numbers, stages=stages, policies=plans, **scoring)
    echo(table)
    facts = {"machine": describe(trained.rt.device), "episodes": scoring["episodes"], "seed": scoring["seed"]}
    facts |= {"kind": table.kind, "metric": table.metric, "home": table.home, "rows": list(table.rows)}
    return keep_record(out, **facts, trained=_statuses([run]))


def _statuses(runs: Iterable[str]) -> list[Record]:
    """Return what ``run.json`` says of each run that has one."""
    from uavlab.experiment.names import run_folder
    from uavlab.storage.files import read_json

    paths = [run_folder(run) / "run.json" for run in runs]
    return [read_json(path) for path in paths if path.exists()]


@cli.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--out",
    type=OutputFile(),
    help="HTML file; default report.html in the folder of the run, of several in the folder above the first.",
)
@scored_by("episodes and flights")
@on_device
def report(runs: tuple[str, ...], out: Path | None, device: Any, **scoring: Any) -> Record:
    """Write one page about each RUN: scores, learning curves, a flight, settings, machine, commands.

    The page is one file that needs no network. Runs that differ by their seed alone are pooled, like the seeds of one
    run. What cannot be read of an unfinished or damaged run is left out, with the reason.
    """
    from uavlab import api

    page, folders, missing = api.write_report(runs, out, device=device, **scoring)
    for note in missing:
        echo(one_line(f"warning: {note}"), err=True)
    echo(f"{len(folders)} run(s); open {page}")
    return {"page": str(page), "runs": [str(folder) for folder in folders], "missing": missing}


@cli.command()
@click.argument("run")
@click.option(
    "--out",
    type=OutputFile(),
    help="File: .html (default flight.html in the folder of the run) or .mp4; or one moment of it as .png, "
    ".svg or .pdf.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the flight.")
@click.option("--mean-action", is_flag=True, help="Use the mean action instead of sampling.")
@click.option(
    "--policy", "plan", help="Fly this baseline, which needs no training, in the task of RUN, or of a PRESET."
)
@which_policy
@on_device
def fly(run: str, out: Path | None, seed: int, mean_action: bool, plan: str | None, which: Any, device: Any) -> Record:
    """Write an animated flight of the best policy of RUN, as a page or a film."""
    from uavlab import api
    from uavlab.experiment.names import run_folder

    page = out or (Path(f"{run}-{plan}.html") if plan else run_folder(run) / "flight.html")
    what = run if plan else api.load(run, device, which)
    figure = api.fly(what, page, policy=plan, seed=seed, mean_action=mean_action)
    steps = figure.layout.meta["steps"]
    echo(f"{steps} steps; open {page}")
    return {"page": str(page), "steps": steps}


@cli.command()
@click.argument("run")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--seed-index", type=click.IntRange(0), default=0, show_default=True, help="Of a file: which seed.")
@click.option("--agent", type=click.IntRange(0), help="Of a file: one agent instead of the team.")
@which_policy
def export(run: str, out: Path, seed_index: int, agent: int | None, which: Any) -> Record:
    """Write the best policy of RUN to OUT: a new folder for uavlab, or a file that runs without uavlab.

    A folder, whose name has no dot, holds settings and policies, and can be evaluated and flown. FILE.pt2 is a program
    of torch, FILE.onnx a model of ONNX; FILE.json beside it describes inputs and outputs.
    """
    from uavlab import api

    echo(api.export(api.load(run, "cpu", which), out, run=seed_index, agent=agent))
    return {"run": run, "out": str(out)}


def drive(run: Any) -> Record:
    """Train to the end with a progress bar; the first SIGINT or SIGTERM ends it after the update in progress."""
    from uavlab.experiment.progress_bar import watch
    from uavlab.experiment.run_dir import saves
    from uavlab.experiment.run_state import not_exact

    for reason in not_exact(run):
        echo(one_line(f"not bit for bit repeatable: {reason}"))
    if run.done:
        echo("nothing to do: the target was reached before; --updates sets a farther one.")
    with graceful_stop(run.stop) as received:
        for _ in watch(run) if run.rt.ranks.rank == 0 else run:
            pass
    follow = [*trust_option(run.config.preset), "evaluate" if run.done else "resume", str(run.folder)]
    echo(f"{run.status}: {run.number} updates in {run.seconds:.0f} s; next: {program()} {shlex.join(follow)}")
    if (saved := saves(run))["count"]:
        echo(
            f"saved {saved['count']} times: training paused {saved['mean_s']:.3f} s on average, at most "
            f"{saved['longest_s']:.3f} s; the last save wrote {saved['last_bytes'] / 2**20:.1f} MiB"
        )
    highest = [score if math.isfinite(score) else None for score in run.best_score.tolist()]
    record = {"run": str(run.folder), "status": run.status, "updates": run.number, "seconds": run.seconds}
    return end({**record, "highest_scores_in_training": highest}, 128 + received[0] if received else 0)


def end(record: Record, code: int) -> Record:
    """Return the record of a command, or print it and end the process with another exit code than 0."""
    if code:
        print_json(record)
        sys.exit(code)
    return record


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder; default sweeps/NAME of the file. It goes on there."
)
def sweep(file: Path, out: Path | None) -> Record:
    """Train all trials that FILE names, several at once, and write one table and one page about them.

    \b
    FILE is YAML with these keys:
      presets: [NAME, ...]       what is trained
      settings: {NAME: VALUE}    of every trial; toggles: SET is a named set
      grid: {NAME: [VALUE, ...]} every combination is trained
      search: {ranges: {NAME: {low: A, high: B, log: true}}, trials: N}
                                 in place of grid, by Optuna; also seed, prune
      seeds: N or [SEED, ...]    default 3
      episodes: N                by which trials are scored; default 100
      scale: {PRESET: [LOW, HIGH]}
      engine: local or ray, workers: N, address: HOST:PORT, gpus: SHARE

    A second call goes on where the first one was ended or killed: complete trials stay, others are resumed. Without a
    score of any trial, the exit code is 1.
    """  # noqa: D301
    from uavlab.api import run_and_report
    from uavlab.sweeps.spec import read_sweep

    spec, stop = read_sweep(file), Event()
    with graceful_stop(stop.set, os._exit) as received:  # trials end by themselves when this process does
        table, page = run_and_report(spec, out or Path("sweeps") / file.stem, stop)
    echo(table)
    echo(f"open {page}")
    if table.failure and not received:
        echo(f"sweep: {table.failure}", err=True)
    code = 128 + received[0] if received else UavlabError.exit_code * bool(table.failure)
    return end({**table.record(), "page": str(page)}, code)


@cli.command("sweep-trial")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("request")
def trial(folder: Path, request: str) -> Record:
    """Train a trial of a sweep in FOLDER; REQUEST describes it as JSON, and the end of standard input stops it."""
    from uavlab.sweeps.driver import parse_request, run_trial, watch_input

    (described, episodes), stop = parse_request(request), Event()
    watch_input(stop.set)
    with graceful_stop(stop.set):
        result = run_trial(folder, described, episodes, stop) or {"status": "interrupted"}
    echo(one_line(f"{folder}: {result['status']} {result.get('reason', '')}").strip())
    return result


def own_place() -> tuple[int, int]:
    """Return the number of this process among ranks, and their count; all but the first print nothing from now on."""
    from uavlab.runtime.ranks import place

    number, count = place()
    if number > 0:
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 until the process ends
    return number, count


def require_one_measure(settings: Mapping[str, Any], count: int) -> None:
    """Refuse numbers that each rank would measure by itself."""
    from uavlab.experiment.sizes import AUTO

    if count > 1 and settings.get("worlds") == AUTO:
        raise ConfigError(
            f"worlds: got auto in {count} ranks, which would measure different numbers; expected one number for all, "
            f"such as that of `{program()} fit`."
        )


@contextmanager
def started(config: Any, folder: Path) -> Iterator[Any]:
    """Yield a new run in a folder; when torchrun starts its ranks again, the one that they were training."""
    from uavlab import api
    from uavlab.experiment.rank_runs import connected, is_restart, require_same_settings
    from uavlab.experiment.run import Run
    from uavlab.experiment.run_dir import require_empty

    number, _ = own_place()
    with connected(config.run, config.run.device) as ranks:
        require_same_settings(ranks, config.preset, config.values)
        if is_restart(folder, config.preset, config.values):
            yield Run.resume(folder, ranks=ranks)
            return
        if number == 0:
            require_empty(folder, run=True)
        yield api.build_run(config, folder, ranks)


@contextmanager
def resumed(folder: Path, changes: Mapping[str, Any], fresh_replay: bool) -> Iterator[Any]:
    """Yield the run in a folder, as it goes on with the ranks that torchrun started."""
    from uavlab.experiment.config import RunConfig
    from uavlab.experiment.rank_runs import connected
    from uavlab.experiment.run import Run
    from uavlab.experiment.run_dir import restore_config

    _, count = own_place()
    require_one_measure(changes, count)
    settings = restore_config(folder, changes)[0].run if count > 1 else RunConfig()
    with connected(settings, settings.device) as ranks:
        yield Run.resume(folder, changes, fresh_replay=fresh_replay, ranks=ranks)
