"""Trials of a sweep: their settings, names and results, and what the process of one does."""

import itertools
import json
import math
import os
import re
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Literal

from annotated_types import Ge
from filelock import FileLock, Timeout

from uavlab.core.errors import ConfigError, DivergedError, FileError, reason_of
from uavlab.core.extras import require
from uavlab.core.installation import program
from uavlab.core.text import one_line
from uavlab.experiment import scores
from uavlab.experiment.config import Config, Layer, configure, toggle_layer
from uavlab.experiment.names import DIGEST, own_digest, require_preset
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import CONFIG, lock_owner, newest_meta, read_status, sign_lock
from uavlab.experiment.run_state import not_exact
from uavlab.experiment.settings import MAX_LISTED, problems_of, strict_model
from uavlab.experiment.sizes import AUTO, AUTOMATIC
from uavlab.storage.files import json_digest, read_json, write_json
from uavlab.sweeps.spec import Range, Sweep

RESULT = "trial.json"  # in the folder of a trial, once it has ended
FINAL = ("complete", "diverged")  # results that the same trial would have again
WAIT = 120  # s until an earlier process of a trial, which was asked to stop, has ended
LIMIT = 300  # characters of a reason
EPISODES_SEED = 0
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
FAILED_RESULT, COMPLETE_RESULT = strict_model(FAILED), strict_model(COMPLETE)
Result = dict[str, Any]
"""What a trial ended with: the keys of ``COMPLETE``, or of ``FAILED``."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    preset: str
    settings: Mapping[str, Any]  # over the preset, without the seed; ``toggles`` is a named set
    seed: int
    varied: Mapping[str, Any] = field(default_factory=dict)  # those in which trials of the sweep differ

    @property
    def name(self) -> str:
        """The name of its folder: preset, digest of the settings, seed."""
        digest = json_digest({"preset": self.preset, "settings": dict(self.settings)})[:12]
        return f"{re.sub('[^a-zA-Z0-9_.-]', '_', self.preset)[:40]}-{digest}-{self.seed}"

    def request(self, episodes: int) -> str:
        """Return what its process reads: one line of JSON."""
        settings = {**self.settings, "seed": self.seed, "runs": 1}
        return json.dumps({"preset": self.preset, "settings": settings, "episodes": episodes})


Plan = Generator[list[Trial], list[Result], None]
"""Batches of trials, in exchange for the results of the one before."""


def grid_trials(sweep: Sweep) -> Plan:
    """Yield all trials of a grid in one batch: presets, combinations of settings, seeds."""
    grid, fixed = sweep.grid or {}, sweep.settings or {}
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    yield [
        Trial(preset, {**fixed, **varied}, seed, varied)
        for preset in sweep.presets
        for varied in combinations
        for seed in sweep.all_seeds
    ]


def search_trials(sweep: Sweep) -> Plan:
    """Yield batches of trials, and take their results; a proposal is trained with every preset and seed.

    Its value is the mean score. A proposal of which a trial has no score counts as failed.
    """
    require("sweep", "search", "optuna")
    import optuna

    search = sweep.ranges
    if search is None:
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=search.seed))
    ranges = {name: Range(**given) for name, given in search.ranges.items()}
    kinds = {name: _distribution(optuna.distributions, given) for name, given in ranges.items()}
    for begun in range(0, search.trials, search.batch):
        asked = [study.ask(kinds) for _ in range(min(search.batch, search.trials - begun))]
        varied = [{name: _value(ranges[name], value) for name, value in proposal.params.items()} for proposal in asked]
        batch = [_trials(sweep, values) for values in varied]
        results = iter((yield [trial for trials in batch for trial in trials]))
        for proposal, trials in zip(asked, batch, strict=True):
            value = _mean([next(results) for _ in trials])
            failed = optuna.trial.TrialState.FAIL
            study.tell(proposal, value, failed if value is None else None)


def _trials(sweep: Sweep, varied: dict[str, Any]) -> list[Trial]:
    settings = {**(sweep.settings or {}), **varied}
    return [Trial(preset, settings, seed, varied) for preset in sweep.presets for seed in sweep.all_seeds]


def _mean(results: Sequence[Result]) -> float | None:
    scores = [result.get("score") for result in results]
    return None if None in scores else sum(scores) / len(scores)  # type: ignore[arg-type]


def _distribution(kinds: Any, given: Range) -> Any:
    """Return the values of a setting as Optuna describes them; those of a list by their numbers."""
    if given.values is not None:
        return kinds.CategoricalDistribution(range(len(given.values)))
    numbers = [number for number in (given.low, given.high, given.step) if number is not None]
    if all(isinstance(number, int) for number in numbers):
        return kinds.IntDistribution(given.low, given.high, given.log, given.step or 1)
    return kinds.FloatDistribution(given.low, given.high, given.log, given.step)


def _value(given: Range, proposed: Any) -> Any:
    """Return a value of a list by its number, and others in four digits, within their range."""
    if given.values is not None:
        return given.values[proposed]
    if isinstance(proposed, int) or given.low is None or given.high is None:
        return proposed
    return min(max(float(f"{proposed:.4g}"), given.low), given.high)


def read_result(folder: Path, episodes: int) -> Result | None:
    """Return the result of a trial, scored in so many episodes; None if there is no such result."""
    result = last_result(folder)
    known = result is not None and result["status"] in FINAL and result["episodes"] == episodes
    return result if known else None


def last_result(folder: Path) -> Result | None:
    """Return the result of the last process of a trial, of any status; None if there is none."""
    path = folder / RESULT
    if not os.path.lexists(path):
        return None
    again = f"delete {path}, and the next call scores the run again."
    try:
        stored = read_json(path)
    except FileError as error:
        raise FileError(f"{str(error).removesuffix('.')}; {again}") from error
    result = {name: value for name, value in stored.items() if name != DIGEST}
    model = COMPLETE_RESULT if stored.get("status") == "complete" else FAILED_RESULT
    problems = ["it does not match its own digest"] * (stored.get(DIGEST) != own_digest(stored))
    if problems := problems or problems_of(model, result):
        raise FileError(f"{path}: damaged or edited: {'; '.join(problems)}; {again}")
    same = read_status(folder).get("digest") == result.get("digest")
    if result["status"] == "complete" and not (same and newest_meta(folder)):
        raise FileError(
            f"{folder}: is of another run than its {RESULT}, or has lost its run.json or its checkpoints; expected "
            f"digest {result['digest'][:12]}; delete the folder, and the next call trains it again."
        )
    return result


def write_result(folder: Path, result: Result) -> None:
    """Write the result of a trial with its digest."""
    write_json(folder / RESULT, {**result, DIGEST: own_digest(result)})


def configure_trial(request: Mapping[str, Any]) -> Config:
    """Return the settings of a trial."""
    settings = dict(request["settings"])
    toggles = settings.pop("toggles", None)
    named = [] if toggles is None else [toggle_layer(toggles, settings.get("device"))]
    return configure(request["preset"], *named, Layer(settings, {}))


def require_configurable(trials: Iterable[Trial], some: bool = False) -> None:
    """Refuse trials, all or ``some``, whose settings do not fit each other; sizes of ``auto`` are not measured."""
    wrong = dict[str, str]()
    unlike = {(trial.preset, json.dumps(trial.settings)): trial for trial in trials}.values()
    refused = 0
    for trial in unlike:
        settings = {name: 1 if name in AUTOMATIC and value == AUTO else value for name, value in trial.settings.items()}
        try:
            configure_trial({"preset": trial.preset, "settings": {**settings, "seed": trial.seed, "runs": 1}})
        except ConfigError as error:
            refused += 1
            varied = ", ".join(f"{name}={value}" for name, value in trial.varied.items())
            wrong.setdefault(str(error).removesuffix("."), varied)
    texts = [f"{text} (with {varied})" if varied else text for text, varied in wrong.items()]
    if texts and (not some or refused == len(unlike)):
        raise ConfigError(f"sweep: {'; '.join(texts[:MAX_LISTED])}. Change settings, grid or search.")


def run_trial(folder: Path, request: Mapping[str, Any], stop: Event) -> Result | None:
    """Train a trial from its newest checkpoint on, score its best policy, and write and return its result.

    Any failure of the run becomes a result with its reason. None is returned if ``stop`` was set before the run was at
    its target; it is saved then.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f".{folder.name}.lock"
    lock = FileLock(path, timeout=WAIT, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        owner = lock_owner(path)
        raise ConfigError(f"{folder}: still in use by {owner}, expected its end within {WAIT} s; stop it.") from error
    try:
        sign_lock(path)
        if result := read_result(folder, request["episodes"]):
            return result
        try:
            result = _train_and_score(folder, request, stop)
        except DivergedError as error:
            result = {"status": "diverged", "reason": reason_of(error)}
        except ConfigError as error:
            result = {"status": "refused", "reason": reason_of(error)}
        except Exception as error:  # of any kind: environments may be a user's own
            result = {"status": "failed", "reason": reason_of(error)}
        if result is not None:
            result = {"episodes": request["episodes"], **result}
            result["reason"] = one_line(result.get("reason", ""))[:LIMIT]
            folder.mkdir(exist_ok=True)
            write_result(folder, result)
        return result
    finally:
        lock.release()


def _train_and_score(folder: Path, request: Mapping[str, Any], stop: Event) -> Result | None:
    (folder / RESULT).unlink(missing_ok=True)  # of a failure before
    require_preset(request["preset"])  # which the sweep names, so that the folder may name it, too
    run = Run.resume(folder) if (folder / CONFIG).exists() else Run(configure_trial(request), folder)
    for _ in run.train():
        if stop.is_set():
            run.stop()
    if not run.done:
        return None
    trained, env = run.trained(), run.config.evaluation
    figures = scores.measure(trained, request["episodes"], EPISODES_SEED, trained.config.run.evaluate_mean_action)
    means = {name: _finite(values.double().mean().item()) for name, values in figures.items()}
    return {
        "status": "complete",
        "score": _finite(scores.weigh(env.score, figures).double().mean().item()),
        "figures": means,
        "updates": run.number,
        "best_update": trained.updates[0],
        "seconds": round(run.seconds, 3),
        "digest": run.digest,
        "device": run.parts.machine.get("device"),
        "not_exact": not_exact(run),
    }


def _finite(value: float) -> float | None:
    """Return a number that JSON has, or None."""
    return value if math.isfinite(value) else None


def read_request(descriptor: int = 0) -> dict[str, Any]:
    """Read the line that describes a trial, from standard input."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(descriptor, 1)):
        line += part
    try:
        request = json.loads(line)
        known = isinstance(request["preset"], str) and isinstance(request["settings"], dict)
        if known and isinstance(request["episodes"], int):
            return request
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise ConfigError(
        f"sweep-trial: expected a line of JSON on standard input, which `{program()} sweep` writes; use that."
    )


def watch_input(stop: Callable[[], object], descriptor: int = 0) -> None:
    """Call ``stop``, on a thread, when standard input ends: the sweep asks to stop, or is no more."""

    def wait() -> None:
        while os.read(descriptor, 4096):
            pass
        stop()

    threading.Thread(target=wait, daemon=True).start()
