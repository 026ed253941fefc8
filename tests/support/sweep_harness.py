"""Run sweeps as commands, kill their trials and their drivers at random, and find out what became of them."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from tests.support.sweeps import SETTINGS
from uavlab.experiment.run_dir import read_status

ROOT = Path(__file__).parents[2]
UAVLAB = [sys.executable, "-W", "ignore", "-m", "uavlab"]
SWEEP: dict[str, Any] = {
    "presets": ["leader_follower", "spread"],
    "settings": {**SETTINGS, "learner": "masac", "evaluate_every": 2, "evaluate_episodes": 20},
    "episodes": 3,
    "workers": 2,
}
UPDATES = ["loop", "merged", "batched"]
LATEST = 4.0  # s from the start of a process of a trial to a kill, at most
PATIENCE = 240  # s for a trial to end after its driver is no more


def write(path: Path, **keys: Any) -> Path:
    """Write the file of a small sweep with some keys changed."""
    YAML(typ="safe").dump({**SWEEP, **keys}, path)
    return path


def start(file: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a sweep as a person does, beside its file; by ``mine.py`` there, if it is a command line."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    mine = file.with_name("mine.py")
    by_file = mine.exists() and "ul.main()" in mine.read_text()
    program = [sys.executable, "-W", "ignore", mine.name] if by_file else UAVLAB
    return subprocess.Popen(
        [*program, "sweep", str(file), "--out", str(folder), "--json"],
        cwd=file.parent,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(file: Path, folder: Path) -> dict[str, Any]:
    """Run a sweep to its end and return its table."""
    out, err = (driver := start(file, folder)).communicate()
    assert driver.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def results(table: dict[str, Any]) -> dict[str, Any]:
    """Return what must be equal in equal sweeps, by trial."""
    keys = ("status", "score", "figures", "digest", "updates", "best_update", "settings", "seed", "number")
    return {row["trial"]: {key: row[key] for key in keys} for row in table["rows"]}


def trials_of(folder: Path) -> list[psutil.Process]:
    """Return the processes of trials of a sweep, whoever started them."""
    own = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if "sweep-trial" in words and any(word.startswith(f"{folder}{os.sep}") for word in words):
                own.append(process)
    return own


def worker_of(trial: psutil.Process) -> psutil.Process | None:
    """Return the worker of Ray that waits for the process of a trial; None if it is gone, or there is none."""
    with suppress(psutil.Error):
        parent = trial.parent()
        return parent if parent and any(word.startswith("ray::") for word in parent.cmdline()) else None
    return None


def kills(file: Path, folder: Path, trials: int, drivers: list[signal.Signals], seed: int) -> dict[str, Any]:
    """Kill so many random trials, and the driver by each of these signals, then let the sweep end.

    Half of the trials that a worker of Ray waits for lose that worker instead.

    Returns:
        ``table``, ``killed`` (trials and workers), ``workers`` (those of Ray), ``trained`` (how many of the trials had
        saved an update), ``codes`` of the drivers.
    """
    dice, killed, workers, trained, codes = random.Random(seed), 0, 0, 0, []
    signals = [*drivers]
    driver = start(file, folder)
    while driver.poll() is None and (killed < trials or signals):
        victims = trials_of(folder)
        if not victims:
            time.sleep(0.02)
            continue
        if signals and killed * len(drivers) >= (len(drivers) - len(signals)) * max(trials, 1):
            time.sleep(LATEST * dice.random())
            driver.send_signal(number := signals.pop(0))
            driver.communicate()
            codes.append((number.name, driver.returncode))
            driver = start(file, folder)
            continue
        victim = dice.choice(victims)
        with suppress(psutil.Error):
            place = next(Path(word) for word in victim.cmdline() if word.startswith(f"{folder}{os.sep}"))
            begun, until = updates(place), time.monotonic() + LATEST * dice.random()
            if dice.random() < 0.6 or not trained:  # once it trains, which is a small part of its life
                while victim.is_running() and updates(place) == begun:
                    time.sleep(0.002)
            else:
                time.sleep(max(until - time.monotonic(), 0.0))
            worker = worker_of(victim) if workers * 2 <= killed else None
            (worker or victim).kill()
            (worker or victim).wait(10)
            killed += 1
            workers += worker is not None
            trained += updates(place) > begun
    out, err = driver.communicate()
    assert driver.returncode == 0, err
    table = json.loads(out.splitlines()[-1])
    return {"table": table, "killed": killed, "workers": workers, "trained": trained, "codes": codes}


def updates(place: Path) -> int:
    """Return the updates that the run in a folder has saved."""
    return read_status(place).get("update", 0)


def left_alone(folder: Path) -> list[psutil.Process]:
    """Wait for processes of trials that nobody waits for; return those that do not end."""
    until = time.monotonic() + PATIENCE
    while (alive := trials_of(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    return alive
