"""The driver of a sweep, and what the process of a trial does.

The driver starts a process for each trial, again if it was killed, and collects results. A process holds the end of a
pipe. When the pipe closes, because the sweep stops or is no more, the trial ends after its update and is saved.
"""

import ipaddress
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge
from filelock import FileLock, Timeout

from uavlab.core.errors import ConfigError, DivergedError, FileError, ResourceError, reason_of
from uavlab.core.extras import require
from uavlab.core.installation import entry, program
from uavlab.core.text import one_line, quote
from uavlab.experiment import scores
from uavlab.experiment.names import DIGEST, require_preset
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import (
    CONFIG,
    lock_owner,
    lock_run_dir,
    newest_meta,
    read_status,
    require_empty,
    sign_lock,
)
from uavlab.experiment.run_state import not_exact
from uavlab.experiment.settings import problems_of, strict_model
from uavlab.storage.files import json_digest, read_json, write_json
from uavlab.storage.machine import usable_cores
from uavlab.sweeps.spec import Search, Sweep, Trial, distribution, rounded

FILE, TRIALS, SEARCH = "sweep.json", "trials", "search.json"  # in the folder of a sweep
RESULT = "trial.json"  # in the folder of a trial, once it has ended
FINAL = ("complete", "diverged")  # results that the same trial would have again
MOST_KILLS = 5  # processes of a trial in a row that end without a result and without a further checkpoint
POLL = 0.1  # s between looks at a process
WAIT = 120  # s until an earlier process of a trial, which was asked to stop, has ended
WAKE_S = 1.0  # between looks at signals: one that another thread caught does not wake the main thread
LIMIT = 300  # characters of a reason
EPISODES_SEED = 0
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # GPUs stay visible to trials that reserve none, as with ``local``
    "RAY_gcs_rpc_server_connect_timeout_s": "5",
    "RAY_kill_child_processes_on_worker_exit": "false",  # a trial ends by itself, after its update
}
MODE, TOKENS = "RAY_AUTH_MODE", ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
LOOPBACKS = ("127.0.0.1", "localhost", "[::1]")

Count = Annotated[int, Ge(0)]
FAILED = {"status": (Literal["diverged", "refused", "failed"], ...), "reason": (str, ...), "episodes": (Count, ...)}
COMPLETE = {
    **FAILED,
    "status": (Literal["complete"], ...),
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
REQUEST = {"preset": (str, ...), "settings": (dict[str, Any], ...), "seed": (Count, ...), "episodes": (Count, ...)}
Result = dict[str, Any]
"""What a trial ended with: the keys of ``COMPLETE``, or of ``FAILED``."""

Row = dict[str, Any]
Plan = Iterator[tuple[list[Trial], Callable[[list[Result]], object]]]
"""Trials that belong together, and what takes their results once all have ended."""


class Engine(NamedTuple):
    """How many trials run at once, and what runs one: a function of its folder, its request and an event to stop it.

    The function returns when the process has ended, however it did.
    """

    workers: int
    run: Callable[[Path, str, Event], None]


def run_sweep(
    sweep: Sweep, folder: Path, stop: Event, begin: Callable[[int], object] = str
) -> Generator[Row, None, None]:
    """Train all trials that are not complete in ``folder``, and yield a row for each trial as soon as it has ended.

    ``stop`` asks all trials to end after their updates; the rows of those that did not end are ``interrupted``. The
    next call with the same sweep goes on. ``begin`` is called with the number of trials at once before the first one.
    """
    if not (folder / FILE).exists():
        require_empty(folder)
    folder, number = folder.resolve(), 0
    waiting = dict[Future[Result], Any]()
    with open_engine(sweep) as engine, lock_run_dir(folder):
        for path in (folder / TRIALS).glob(f"*/{RESULT}"):
            last_result(path.parent)  # refuses a damaged one before hours of training
        if sweep.search:
            plan = search_plan(sweep, folder / SEARCH, _proposals(sweep, folder / SEARCH), stop)
        else:
            plan = (([trial], str) for trial in sweep.trials(sweep.combinations))
        write_json(folder / FILE, sweep.stored())
        begin(engine.workers)
        pool = ThreadPoolExecutor(engine.workers)
        try:
            while True:
                while len(waiting) < engine.workers and (proposal := next(plan, None)):
                    trials, take = proposal
                    group = [pool.submit(_attend, engine, trial, sweep, folder, stop) for trial in trials]
                    for trial, future in zip(trials, group, strict=True):
                        waiting[future] = number, trial, group, take
                        number += 1
                if not waiting:
                    return
                for done in wait(waiting, WAKE_S, FIRST_COMPLETED).done:
                    at, trial, group, take = waiting.pop(done)
                    yield row_of(at, trial, done.result())
                    if not any(other in waiting for other in group):
                        take([other.result() for other in group])
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def search_plan(sweep: Sweep, path: Path, known: list[dict[str, Any]], stop: Event) -> Plan:
    """Yield settings that Optuna proposes, with every preset and seed; their value is the mean score.

    The ``known`` proposals of earlier calls come first, and all are kept in a file. A proposal follows from the seed of
    the search, its number, and the values of those that have ended.
    """
    require("sweep", "search", "optuna")
    import optuna

    search = Search(**(sweep.search or {}))
    kinds = {name: distribution(given) for name, given in search.ranges.items()}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for number in range(search.trials):
        study.sampler = optuna.samplers.TPESampler(seed=int(json_digest([search.seed, number])[:8], 16))
        if number < len(known):
            study.enqueue_trial(known[number])
        elif stop.is_set():
            return
        proposal = study.ask(kinds)
        if number == len(known):
            known.append(proposal.params)
            write_signed(path, {"ranges": search.ranges, "proposals": known})
        varied = {name: rounded(search.ranges[name], value) for name, value in proposal.params.items()}
        yield sweep.trials([varied]), partial(_tell, study, proposal)


def _tell(study: Any, proposal: Any, results: list[Result]) -> None:
    """Give a search the value of a proposal; one of which a trial has no score counts as failed."""
    from optuna.trial import TrialState

    scored = [result["score"] for result in results if result.get("score") is not None]
    if len(scored) == len(results):
        study.tell(proposal, sum(scored) / len(scored))
    else:
        study.tell(proposal, state=TrialState.FAIL)


def _proposals(sweep: Sweep, path: Path) -> list[dict[str, Any]]:
    """Return what earlier calls of a search proposed."""
    if not os.path.lexists(path):
        return []
    stored = read_signed(path, lambda _: strict_model(PROPOSALS), "begins the search anew")
    ranges = (sweep.search or {})["ranges"]
    if stored["ranges"] != ranges:
        raise ConfigError(
            f"{path}: of a search over other ranges, {quote(stored['ranges'])}, expected those of the sweep, "
            f"{quote(ranges)}; choose another folder, or delete the file, and the search begins anew."
        )
    return stored["proposals"]


def _attend(engine: Engine, trial: Trial, sweep: Sweep, folder: Path, stop: Event) -> Result:
    """Run the processes of a trial until it has a result, or ``stop`` is set, or they end again and again."""
    place, lost = folder / TRIALS / trial.name, 0
    if result := read_result(place, sweep.episodes):
        return result
    (place / RESULT).unlink(missing_ok=True)
    while not stop.is_set():
        before = read_status(place).get("update")
        try:
            engine.run(place, trial.request(sweep.episodes), stop)
        except Exception as error:  # of any kind: Ray has no common one
            return {"status": "failed", "reason": one_line(reason_of(error))[:LIMIT]}
        if result := last_result(place):
            return result
        lost = 0 if read_status(place).get("update") != before else lost + 1
        if lost == MOST_KILLS:
            why = one_line(f"its process ended {lost} times without a result; {place}.log has what it printed")
            return {"status": "killed", "reason": why}
    return {"status": "interrupted", "reason": ""}


def row_of(number: int, trial: Trial, result: Result) -> Row:
    """Return the row of a trial in the table; ``number`` is its place in the order of the sweep."""
    own = {key: value for key, value in result.items() if key != "episodes"}
    varied, seed = dict(trial.varied), trial.seed
    return {"number": number, "trial": trial.name, "preset": trial.preset, "settings": varied, "seed": seed, **own}


def open_engine(sweep: Sweep) -> AbstractContextManager[Engine]:
    if sweep.engine == "ray":
        return ray_engine(sweep)
    return nullcontext(Engine(sweep.workers or usable_cores(), partial(run_process, entry(), os.getcwd())))


def run_process(words: list[str], where: str, folder: Path, request: str, stop: Event | None = None) -> None:
    """Start the process of a trial and wait for its end, also where this one is interrupted.

    What it prints is added to the file ``FOLDER.log``.
    """
    try:
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
    except OSError as error:
        raise ResourceError(
            f"{folder}: cannot start a process ({error.strerror}); free some memory or space."
        ) from error
    try:
        while child.poll() is None and not (stop and stop.is_set()):
            with suppress(subprocess.TimeoutExpired):
                child.wait(POLL)
    finally:
        child.communicate()  # closes the pipe


@contextmanager
def ray_engine(sweep: Sweep) -> Iterator[Engine]:
    """Yield the engine of a Ray cluster, as many trials at once as it has cores by default.

    A Ray cluster obeys whoever reaches it. One that is started here, for the time of the sweep, listens on the loopback
    interface alone, without a dashboard, and asks for a token. One elsewhere must have a private address, or tokens.
    """
    require("ray", "engine: ray", "ray")
    address, own = sweep.address, dict(RAY)
    if address is not None:
        require_private(address)
        own["RAY_NUM_REDIS_GET_RETRIES"] = "2"  # of 20 by which Ray would wait a quarter of an hour for an absent one
    elif "ray" in sys.modules and MODE not in os.environ:
        raise ResourceError(
            "engine: Ray was imported before the sweep, so a cluster here would ask for no token; expected a process "
            f"without it: start the sweep in a new one, or set {MODE}=token before the import."
        )
    else:
        own[MODE] = "token"
        if not any(map(os.environ.get, TOKENS)):
            own[TOKENS[0]] = secrets.token_hex(32)
    if address is None or address.rpartition(":")[0] in LOOPBACKS:
        own["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # by which Ray leaves loopback addresses as they are
    for name, value in own.items():
        os.environ.setdefault(name, value)  # Ray reads them once
    import ray

    here = {"num_cpus": sweep.workers or usable_cores(), "include_dashboard": False, "_node_ip_address": LOOPBACKS[0]}
    where = {"address": "local", **here} if address is None else {"address": address}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(**where, log_to_driver=False, configure_logging=False, namespace="uavlab")
        except Exception as error:  # of any kind: Ray has no common one
            what = one_line(reason_of(error))[:LIMIT]
            raise ResourceError(
                f"engine: no Ray cluster at {address or 'this machine'} ({what}); expected one with the same Ray, "
                "Python and token; see docs/sweep.md, and start the sweep in a new process."
            ) from error
        _restore(handler)  # Ray's own would end this process
        most = max(node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"])
        if most < sweep.gpus:  # Ray would wait for a node that has them, forever
            raise ResourceError(
                f"gpus: no node of the cluster has more than {most:g}, expected {sweep.gpus:g} for each trial; set "
                "gpus: 0, or add a node that has them."
            )
        task = ray.remote(num_cpus=1, num_gpus=sweep.gpus, max_retries=0)(run_process)
        run = partial(_run_on_ray, ray, partial(task.remote, entry(), os.getcwd()))
        yield Engine(sweep.workers or max(1, int(ray.cluster_resources().get("CPU", 1))), run)
    finally:
        ray.shutdown()
        _restore(handler)


def _restore(handler: Any) -> None:
    with suppress(ValueError):  # in a thread
        signal.signal(signal.SIGTERM, handler)


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


def require_private(address: str) -> None:
    """Refuse an address that others may reach, unless Ray uses tokens."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ConfigError(f"address {quote(address)}: expected HOST:PORT, such as {LOOPBACKS[0]}:6379.")
    try:
        known = ipaddress.ip_address(LOOPBACKS[0] if host in LOOPBACKS else host.strip("[]"))
        private = (known.is_private or known.is_link_local) and not known.is_unspecified
    except ValueError:
        private = False  # a name, which may be any address
    if not private and os.environ.get(MODE, "").lower() != "token":
        raise ConfigError(
            f"address {quote(address)}: {host} is neither loopback nor a private IP address, and a Ray cluster without "
            "tokens obeys whoever reaches it; give the private address of the head node, or start the cluster and this "
            f"sweep with {MODE}=token."
        )


def read_signed(path: Path, model: Callable[[dict[str, Any]], type[Any]], then: str) -> dict[str, Any]:
    """Return what ``write_signed`` wrote, if it is as the model of what was read; ``then`` says what deleting it does.

    Raises:
        FileError: The file cannot be read, or is damaged or edited.
    """
    advice = f"delete {path}, and the next call {then}."
    try:
        stored = read_json(path)
    except FileError as error:
        raise FileError(f"{str(error).removesuffix('.')}; {advice}") from error
    problems = ["it does not match its own digest"] * (stored.pop(DIGEST, None) != json_digest(stored))
    if problems := problems or problems_of(model(stored), stored):
        raise FileError(f"{path}: damaged or edited: {'; '.join(problems)}; {advice}")
    return stored


def write_signed(path: Path, value: Mapping[str, Any]) -> None:
    """Write a table with its digest."""
    write_json(path, {**value, DIGEST: json_digest(value)})


def read_result(folder: Path, episodes: int) -> Result | None:
    """Return the result of a trial, scored in so many episodes; None if there is no such result."""
    result = last_result(folder)
    known = result is not None and result["status"] in FINAL and result["episodes"] == episodes
    return result if known else None


def last_result(folder: Path) -> Result | None:
    """Return the result of the last process of a trial, of any status; None if there is none.

    Raises:
        FileError: It is damaged, or of another run than the one in the folder.
    """
    path = folder / RESULT
    if not os.path.lexists(path):
        return None
    complete, failed = strict_model(COMPLETE), strict_model(FAILED)
    result = read_signed(
        path, lambda own: complete if own.get("status") == "complete" else failed, "scores the run again"
    )
    same = read_status(folder).get("digest") == result.get("digest")
    if result["status"] == "complete" and not (same and newest_meta(folder)):
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
            sign_lock(path)
            return read_result(folder, episodes) or _new_result(folder, trial, episodes, stop)
    except Timeout as error:
        owner = lock_owner(path)
        raise ConfigError(f"{folder}: still in use by {owner}, expected its end within {WAIT} s; stop it.") from error


def _new_result(folder: Path, trial: Trial, episodes: int, stop: Event) -> Result | None:
    (folder / RESULT).unlink(missing_ok=True)  # of a failure before
    try:
        result = _train_and_score(folder, trial, episodes, stop)
    except DivergedError as error:
        result = {"status": "diverged", "reason": reason_of(error)}
    except ConfigError as error:
        result = {"status": "refused", "reason": reason_of(error)}
    except Exception as error:  # of any kind: environments may be a user's own
        result = {"status": "failed", "reason": reason_of(error)}
    if result is not None:
        result = {"episodes": episodes, **result, "reason": one_line(result["reason"])[:LIMIT]}
        folder.mkdir(exist_ok=True)
        write_signed(folder / RESULT, result)
    return result


def _train_and_score(folder: Path, trial: Trial, episodes: int, stop: Event) -> Result | None:
    require_preset(trial.preset)  # which the sweep names, so that the folder may name it, too
    run = Run.resume(folder) if (folder / CONFIG).exists() else Run(trial.configure(), folder)
    for _ in run.train():
        if stop.is_set():
            run.stop()
    if not run.done:
        return None
    trained, env = run.trained(), run.config.evaluation
    figures = scores.measure(trained, episodes, EPISODES_SEED, trained.config.run.evaluate_mean_action)
    means = {name: values.double().mean().item() for name, values in figures.items()}
    score = scores.weigh(env.score, figures).double().mean().item()
    return {
        "status": "complete",
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
    with suppress(ValueError, RecursionError):
        given = json.loads(text)
        if isinstance(given, dict) and not problems_of(strict_model(REQUEST), given):
            return Trial(given["preset"], given["settings"], given["seed"]), given["episodes"]
    raise ConfigError(f"sweep-trial: got {quote(text)}, expected JSON that `{program()} sweep` writes; use that.")


def watch_input(stop: Callable[[], object], descriptor: int = 0) -> None:
    """Call ``stop``, on a thread, when standard input ends: the sweep asks to stop, or is no more."""

    def wait_for_end() -> None:
        while os.read(descriptor, 4096):
            pass
        stop()

    threading.Thread(target=wait_for_end, daemon=True).start()
