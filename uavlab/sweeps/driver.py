"""The driver of a sweep, and what the process of a trial does.

The driver starts a process for each trial, again if it was killed, and collects results. A process holds the end of a
pipe. When the pipe closes, because the sweep stops or is no more, the trial ends after its update and is saved.
"""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import Annotated, Any, Literal

from annotated_types import Ge
from filelock import FileLock, Timeout

from uavlab.core.errors import ConfigError, DivergedError, FileError, ResourceError, reason_of
from uavlab.core.extras import require
from uavlab.core.installation import entry, program
from uavlab.core.text import one_line, quote
from uavlab.experiment import run_dir, scores
from uavlab.experiment.diagnostics import SCORE
from uavlab.experiment.names import DIGEST, require_preset
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import not_exact
from uavlab.experiment.settings import problems_of, strict_model
from uavlab.storage.files import json_digest, read_json, write_json, write_text
from uavlab.storage.machine import usable_cores
from uavlab.storage.metrics_log import Recorder
from uavlab.sweeps.spec import Search, Sweep, Trial, distribution, rounded

FILE, TRIALS, SEARCH = "sweep.json", "trials", "search.json"  # in the folder of a sweep
RESULT = "trial.json"  # in the folder of a trial, once it has ended
PRUNED = "pruned"  # the status of a trial that a search ended early, and an empty file in its folder that says so
SCORED = ("complete", PRUNED)  # results that come with a run
FINAL = (*SCORED, "diverged")  # results of trials that are not trained again
MOST_KILLS = 5  # processes of a trial in a row that end without a result and without a further checkpoint
POLL = 0.1  # s between looks at a process
WAIT = 120  # s until an earlier process of a trial, which was asked to stop, has ended
WAKE_S = 1.0  # between looks at scores and at signals: one that another thread caught does not wake the main thread
LIMIT = 300  # characters of a reason
EPISODES_SEED = 0
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # GPUs stay visible to trials that reserve none, as with ``local``
    "RAY_kill_child_processes_on_worker_exit": "false",  # a trial ends by itself, after its update
}
HERE = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # the latter keeps loopback addresses
ELSEWHERE = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_gcs_rpc_server_connect_timeout_s": "5"}  # not a quarter of an hour

Count = Annotated[int, Ge(0)]
FAILED = {"status": (Literal["diverged", "refused", "failed"], ...), "reason": (str, ...), "episodes": (Count, ...)}
RUN = {
    **FAILED,
    "status": (Literal["complete", "pruned"], ...),
    "score": (float | None, ...),
    "figures": (dict[str, float | None], ...),
    "updates": (Count, ...),
    "best_update": (int, ...),
    "seconds": (float, ...),
    "digest": (str, ...),
    "device": (str | None, ...),
    "not_exact": (list[str], ...),
}
PROPOSALS = {"ranges": (dict[str, Any], ...), "proposals": (list[dict[str, Any]], ...)}

Result = dict[str, Any]
"""What a trial ended with: the keys of ``RUN`` where a run was scored, or of ``FAILED``."""

Row = dict[str, Any]
Engine = tuple[int, Callable[[Path, str, Event], None]]
"""How many trials run at once, and what runs one: it returns when the process has ended, however it did."""


@dataclass(eq=False)
class Group:
    """Trials that belong together: one of a grid, or those of what Optuna proposed, ``asked`` of a ``study``."""

    trials: list[Trial]
    study: Any = None
    asked: Any = None
    prune: bool = False
    results: list[Result] = field(default_factory=list)
    reported: set[int] = field(default_factory=set)  # updates

    def look(self, folder: Path) -> None:
        """Give the study the mean of each validation that all trials have logged, and end those that it prunes."""
        if not self.prune:
            return
        curves = [validations(folder / TRIALS / trial.name, trial) for trial in self.trials]
        pruned = False
        for update in sorted(set.intersection(*map(set, curves)) - self.reported):
            self.reported.add(update)
            self.asked.report(fmean(curve[update] for curve in curves), update)
            pruned |= self.asked.should_prune()
        for place in [folder / TRIALS / trial.name for trial in self.trials] if pruned else ():
            if not (place / RESULT).exists():
                write_text(place / PRUNED, "")

    def take(self, result: Result, folder: Path) -> None:
        """Take the result of a trial; once all have ended, give the study their mean score, or that one has none."""
        self.results.append(result)
        if self.study is None or len(self.results) < len(self.trials):
            return
        self.look(folder)
        from optuna.trial import TrialState

        known = [result["score"] for result in self.results if result.get("score") is not None]
        if len(known) < len(self.trials):
            self.study.tell(self.asked, state=TrialState.FAIL)
        elif any(result["status"] == PRUNED for result in self.results):
            self.study.tell(self.asked, state=TrialState.PRUNED)
        else:
            self.study.tell(self.asked, fmean(known))


def validations(folder: Path, trial: Trial) -> dict[int, float]:
    """Return the score of each validation that the run of a trial has logged, by its update; none of a damaged log."""
    recorder = Recorder(folder)
    with suppress(FileError):
        recorder.read(SCORE)
    return {
        row["update"]: sum(weight * row[f"{SCORE}{name}"] for name, weight in trial.weights.items())
        for row in recorder.rows
        if {f"{SCORE}{name}" for name in trial.weights} <= {*row}
    }


def run_sweep(sweep: Sweep, folder: Path, stop: Event) -> Generator[Row, None, None]:
    """Train all trials that are not complete in ``folder``, and yield a row for each trial as soon as it has ended.

    ``stop`` asks all trials to end after their updates; the rows of those that did not end are ``interrupted``. The
    next call with the same sweep goes on.
    """
    if not (folder / FILE).exists():
        run_dir.require_empty(folder)
    folder, number, waiting = folder.resolve(), 0, dict[Future[Result], tuple[int, Trial, Group]]()
    with open_engine(sweep) as (workers, run), run_dir.lock_run_dir(folder):
        for path in (folder / TRIALS).glob(f"*/{RESULT}"):
            last_result(path.parent)  # refuses a damaged one before hours of training
        if sweep.search:
            groups = propose(sweep, folder / SEARCH, _proposals(sweep, folder / SEARCH), stop)
        else:
            groups = (Group([trial]) for trial in sweep.trials(sweep.combinations))
        write_json(folder / FILE, sweep.stored())
        pool = ThreadPoolExecutor(workers)
        try:
            while True:
                while len(waiting) < workers and (group := next(groups, None)):
                    for trial in group.trials:
                        waiting[pool.submit(_attend, run, trial, sweep, folder, stop)] = number, trial, group
                        number += 1
                if not waiting:
                    return
                for done in wait(waiting, WAKE_S, FIRST_COMPLETED).done:
                    at, trial, group = waiting.pop(done)
                    group.take(result := done.result(), folder)
                    origin = {"trial": trial.name, "preset": trial.preset, "settings": dict(trial.varied)}
                    yield {"number": at, **origin, "seed": trial.seed, **result}
                for group in {group for _, _, group in waiting.values()}:
                    group.look(folder)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def propose(sweep: Sweep, path: Path, known: list[dict[str, Any]], stop: Event) -> Iterator[Group]:
    """Yield what Optuna proposes, the ``known`` proposals of earlier calls first, and keep all in a file.

    A proposal follows from the seed of the search, its number, and the values of those that have ended.
    """
    require("sweep", "search", "optuna")
    import optuna

    search = Search(**(sweep.search or {}))
    kinds = {name: distribution(given) for name, given in search.ranges.items()}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner())
    for number in range(search.trials):
        study.sampler = optuna.samplers.TPESampler(seed=int(json_digest([search.seed, number])[:8], 16))
        if number < len(known):
            study.enqueue_trial(known[number])
        elif stop.is_set():
            return
        asked = study.ask(kinds)
        if number == len(known):
            known.append(asked.params)
            write_signed(path, {"ranges": search.ranges, "proposals": known})
        varied = {name: rounded(search.ranges[name], value) for name, value in asked.params.items()}
        yield Group(sweep.trials([varied]), study, asked, search.prune)


def _proposals(sweep: Sweep, path: Path) -> list[dict[str, Any]]:
    """Return what earlier calls of a search proposed."""
    ranges, stored = (sweep.search or {})["ranges"], read_signed(path, "begins the search anew", PROPOSALS)
    if stored is None or stored["ranges"] == ranges:
        return stored["proposals"] if stored else []
    raise ConfigError(
        f"{path}: of a search over other ranges, {quote(stored['ranges'])}, expected those of the sweep, "
        f"{quote(ranges)}; choose another folder, or delete the file, and the search begins anew."
    )


def _attend(run: Callable[[Path, str, Event], None], trial: Trial, sweep: Sweep, folder: Path, stop: Event) -> Result:
    """Run the processes of a trial until it has a result, or ``stop`` is set, or they end again and again."""
    place, lost = folder / TRIALS / trial.name, 0
    if result := read_result(place, sweep.episodes):
        return result
    (place / RESULT).unlink(missing_ok=True)
    while not stop.is_set():
        before = run_dir.read_status(place).get("update")
        try:
            run(place, trial.request(sweep.episodes), stop)
        except Exception as error:  # of any kind: Ray has no common one
            return {"status": "failed", "reason": one_line(reason_of(error))[:LIMIT]}
        if result := last_result(place):
            return result
        lost = 0 if run_dir.read_status(place).get("update") != before else lost + 1
        if lost == MOST_KILLS:
            why = one_line(f"its process ended {lost} times without a result; {place}.log has what it printed")
            return {"status": "killed", "reason": why}
    return {"status": "interrupted", "reason": ""}


def open_engine(sweep: Sweep) -> AbstractContextManager[Engine]:
    if sweep.engine == "ray":
        return ray_engine(sweep)
    return nullcontext((sweep.workers or usable_cores(), partial(run_process, entry(), os.getcwd())))


def run_process(words: list[str], where: str, folder: Path, request: str, stop: Event | None = None) -> None:
    """Start the process of a trial and wait for its end, also where this one is interrupted.

    What it prints is added to the file ``FOLDER.log``.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, *words, "sweep-trial", str(folder), request],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=where,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the sweep, which asks its trials to stop
        )
    try:
        while child.poll() is None and not (stop and stop.is_set()):
            with suppress(subprocess.TimeoutExpired):
                child.wait(POLL)
    finally:
        child.communicate()  # closes the pipe


@contextmanager
def ray_engine(sweep: Sweep) -> Iterator[Engine]:
    """Yield the engine of a Ray cluster, as many trials at once as it has cores by default.

    A cluster that is started here, for the time of the sweep, listens on the loopback interface alone.
    """
    require("ray", "engine: ray", "ray")
    for name, value in {**RAY, **(ELSEWHERE if sweep.address else HERE)}.items():
        os.environ.setdefault(name, value)  # Ray reads them once
    import ray

    cores, handler = sweep.workers or usable_cores(), signal.getsignal(signal.SIGTERM)
    here = {"address": "local", "num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    where = {"address": sweep.address} if sweep.address else here
    try:
        try:
            ray.init(**where, log_to_driver=False, configure_logging=False, namespace="uavlab")
        except Exception as error:  # of any kind: Ray has no common one
            raise ResourceError(
                f"engine: no Ray cluster at {sweep.address or 'this machine'} ({one_line(reason_of(error))[:LIMIT]}); "
                "see docs/sweep.md, and start the sweep in a new process."
            ) from error
        finally:
            with suppress(ValueError):  # in a thread
                signal.signal(signal.SIGTERM, handler)  # Ray's own would end this process
        task = ray.remote(num_cpus=1, num_gpus=sweep.gpus, max_retries=0)(run_process)
        run = partial(_run_on_ray, ray, partial(task.remote, entry(), os.getcwd()))
        yield sweep.workers or max(1, int(ray.cluster_resources().get("CPU", 1))), run
    finally:
        ray.shutdown()


def _run_on_ray(ray: Any, start: Callable[[Path, str], Any], folder: Path, request: str, stop: Event) -> None:
    """Return whatever ended the task: its worker or the whole node was lost, or it was cancelled."""
    task, asked = start(folder, request), False
    while not ray.wait([task], timeout=POLL)[0]:
        if stop.is_set() and not asked:
            ray.cancel(task)  # interrupts the function, which closes the pipe and waits for the trial
            asked = True
    try:
        ray.get(task)
    except ray.exceptions.RayTaskError as error:  # a node lacks something
        if not stop.is_set():
            raise error.cause from None
    except ray.exceptions.RayError:
        pass


def read_signed(path: Path, then: str, *forms: Mapping[str, tuple[Any, Any]]) -> dict[str, Any] | None:
    """Return what ``write_signed`` wrote in one of some forms, None if there is no such file.

    A file that is damaged or edited is refused; ``then`` says what deleting it does.
    """
    if not os.path.lexists(path):
        return None
    try:
        stored = read_json(path)
        if stored.pop(DIGEST, None) != json_digest(stored):
            raise FileError(f"{path}: damaged or edited: it does not match its own digest.")
        problems = [problems_of(strict_model(form), stored) for form in forms]
        if all(problems):
            raise FileError(f"{path}: damaged or edited: {'; '.join(sorted(problems, key=len)[0])}.")
    except FileError as error:
        raise FileError(f"{str(error).removesuffix('.')}; delete {path}, and the next call {then}.") from error
    return stored


def write_signed(path: Path, value: Mapping[str, Any]) -> None:
    """Write a table with its digest."""
    write_json(path, {**value, DIGEST: json_digest(value)})


def read_result(folder: Path, episodes: int) -> Result | None:
    """Return the result of a trial, scored in so many episodes; None if there is no such result."""
    result = last_result(folder)
    return result if result and result["status"] in FINAL and result["episodes"] == episodes else None


def last_result(folder: Path) -> Result | None:
    """Return the result of the last process of a trial, of any status; None if there is none.

    A result that is damaged, or of another run than the one in the folder, is refused.
    """
    result = read_signed(folder / RESULT, "scores the run again", RUN, FAILED)
    same = result is None or run_dir.read_status(folder).get("digest") == result.get("digest")
    if result and result["status"] in SCORED and not (same and run_dir.newest_meta(folder)):
        raise FileError(
            f"{folder}: is of another run than its {RESULT}, or has lost its run.json or its checkpoints; expected "
            f"digest {result['digest'][:12]}; delete the folder, and the next call trains it again."
        )
    return result


def run_trial(folder: Path, trial: Trial, episodes: int, stop: Event) -> Result | None:
    """Train a trial from its newest checkpoint on, score its best policy, and write and return its result.

    Any failure of the run becomes a result with its reason. None is returned if ``stop`` was set before the run was at
    its target; it is saved then.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f".{folder.name}.lock"
    try:
        with FileLock(path, timeout=WAIT, thread_local=False):
            run_dir.sign_lock(path)
            return read_result(folder, episodes) or _new_result(folder, trial, episodes, stop)
    except Timeout as error:
        owner = run_dir.lock_owner(path)
        raise ConfigError(f"{folder}: still in use by {owner}, expected its end within {WAIT} s; stop it.") from error


def _new_result(folder: Path, trial: Trial, episodes: int, stop: Event) -> Result | None:
    (folder / RESULT).unlink(missing_ok=True)  # of a failure before
    try:
        result = _train_and_score(folder, trial, episodes, stop)
    except Exception as error:  # of any kind: environments may be a user's own
        known = {DivergedError: "diverged", ConfigError: "refused"}
        status = next((status for kind, status in known.items() if isinstance(error, kind)), "failed")
        result = {"status": status, "reason": one_line(reason_of(error))[:LIMIT]}
    if result is not None:
        result = {"episodes": episodes, **result}
        folder.mkdir(exist_ok=True)
        write_signed(folder / RESULT, result)
    return result


def _train_and_score(folder: Path, trial: Trial, episodes: int, stop: Event) -> Result | None:
    require_preset(trial.preset)  # which the sweep names, so that the folder may name it, too
    run = Run.resume(folder) if (folder / run_dir.CONFIG).exists() else Run(trial.configure(), folder)
    pruned = (folder / PRUNED).exists  # also by an earlier process, which was killed before it had a result
    if pruned():
        run.stop()
    for _ in run.train():
        if stop.is_set() or pruned():
            run.stop()
    if not (run.done or pruned()):
        return None
    trained, env = run.trained(), run.config.evaluation
    figures = scores.measure(trained, episodes, EPISODES_SEED, trained.config.run.evaluate_mean_action)
    means = {name: values.double().mean().item() for name, values in figures.items()}
    score = scores.weigh(env.score, figures).double().mean().item()
    return {
        "status": "complete" if run.done else PRUNED,
        "reason": "",
        "score": score if math.isfinite(score) else None,  # JSON has no other numbers
        "figures": {name: mean if math.isfinite(mean) else None for name, mean in means.items()},
        "updates": run.number,
        "best_update": trained.updates[0],
        "seconds": round(run.seconds, 3),
        "digest": run.digest,
        "device": run.parts.machine.get("device"),
        "not_exact": not_exact(run),
    }


def parse_request(text: str) -> tuple[Trial, int]:
    """Return the trial that ``Trial.request`` described, and the episodes by which it is scored."""
    try:
        given = json.loads(text)
        return Trial(given["preset"], given["settings"], given["seed"]), given["episodes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"sweep-trial: got {quote(text)}, expected JSON that `{program()} sweep` writes; use that."
        ) from None


def watch_input(stop: Callable[[], object], descriptor: int = 0) -> None:
    """Call ``stop``, on a thread, when standard input ends: the sweep asks to stop, or is no more."""

    def wait_for_end() -> None:
        while os.read(descriptor, 4096):
            pass
        stop()

    threading.Thread(target=wait_for_end, daemon=True).start()
