"""Changes of settings between updates: a run in memory may change what a resumed run may, with the same bits.

A change builds a second run with the other settings, hands the state over, and swaps the parts of the two. The second
one stays, with the state before the change, to which it goes back if the first update fails. A change back of toggles
that leave the algorithm as it is (``alternates``) builds and compiles nothing anew.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uavlab.core.errors import ConfigError, FallbackError, ResourceError, reason_of
from uavlab.experiment import build, run_state
from uavlab.experiment.config import Config
from uavlab.experiment.run_dir import IN_MEMORY, changed_values, require_resumable, with_changes
from uavlab.experiment.run_state import Change
from uavlab.runtime.toggles import TOGGLES, resolve
from uavlab.storage.trackers import OPENERS, trackers_of
from uavlab.training import training

if TYPE_CHECKING:
    from uavlab.experiment.run import Run

PARTS = (
    *("config", "machine", "rt", "rng", "learner", "source", "schedules"),
    *("not_exact_reasons", "forced", "evals_since_best"),
)
NUMERIC = ("exact", "rounding", "single", "precision")  # equality of toggles that leave the algorithm as it is
COMPARISON = "comparison"  # who changes settings to and fro


def change(run: "Run", settings: Mapping[str, Any], by: str) -> Change | None:
    """Change settings of a run between two updates; return what changed, None if nothing did."""
    if run.rt.ranks.size > 1:
        raise ConfigError(
            f"change: {run.rt.ranks.size} ranks train this run; end it, and resume it with other settings."
        )
    config = changed_config(run, settings)
    require_usable(run, config)
    if not (changed := changed_values(run.config.values, config.values)):
        return None
    event, reasons = Change(run.number, changed, by), require_resumable(IN_MEMORY, run.config.values, config)
    trackers = trackers_of(run.folder, config.values) if run.folder and changed.keys() & OPENERS.keys() else None
    other = _other(run, config)
    _hand_over(run, other)
    other.evals_since_best = 0 if run.config.run.patience is None else run.evals_since_best
    other.forced = run.forced and other.done
    reasons += run_state.machine_differences(run.machine, other.machine)
    reasons += ["it was scored once more, at its former target"] * (run.forced and not other.done)
    since = [f"update {run.number}: {why}" for why in reasons if by != COMPARISON]  # that of its change stands already
    timed = [run_state.TIMED] * (config.run.minutes is not None)
    other.not_exact_reasons = list(dict.fromkeys([*run.not_exact_reasons, *timed, *since]))
    run.linkable = run.linkable and not other.source.resized
    _swap(run, other)
    if trackers is not None:
        run.recorder.track(trackers)
    run.changes.append(event)
    if by == COMPARISON:  # the folder has the settings that were chosen
        return event
    try:
        run.store_config()
    except ResourceError:  # such as a full disk
        _swap(run, other)
        run.changes.pop()
        with suppress(ResourceError):
            run.store_config()
        raise
    return event


def changed_config(run: "Run", settings: Mapping[str, Any]) -> Config:
    """Return the settings of a run after a change, without changing anything."""
    stored = {"preset": run.config.preset, "values": run.config.values, "chosen": run.config.chosen}
    config = with_changes(run.folder, stored, (settings,))
    if (device := build.runtime(config.run).device.type) != run.rt.device.type:
        raise ConfigError(
            f"device: the run is on {run.rt.device.type}; end it, and go on with `resume --device {device}`."
        )
    return config


def alternates(names: Iterable[str]) -> bool:
    """Return whether a run may go to and fro between two values of these settings."""
    return all(name in TOGGLES and TOGGLES[name].equality in NUMERIC for name in names)


def begins_to_compile(run: "Run", settings: Mapping[str, Any]) -> bool:
    """Return whether a change makes a run compile that did not, and does nothing else.

    Other settings may belong to the process, so a run with them cannot be prepared beside one that trains.
    """
    return run.config.toggles.compile == "off" and settings.keys() == {"compile"} and settings["compile"] != "off"


def prepare(run: "Run", settings: Mapping[str, Any]) -> "Run":
    """Return a run with other settings that has made an update, so that a change to it compiles nothing (``spare``).

    This may run in another thread while ``run`` trains without compiled code.
    """
    config = changed_config(run, settings)
    require_usable(run, config)
    with build.enough_memory():
        other = type(run)(config)
        with other.rt.scope():
            next(training(other.source, other.learner, other.rng, other.rt, 0))
    for name, reason in other.rt.fell_back.items():
        if name in settings:
            raise FallbackError(f"{name}={settings[name]} fell back: {reason}")
    return other


def refusal(run: "Run", /, **settings: Any) -> str:
    """Return why these settings cannot change within a run; empty if they can."""
    try:
        require_usable(run, changed_config(run, settings))
    except ConfigError as error:
        return str(error)
    return ""


def require_usable(run: "Run", config: Config) -> None:
    """Refuse what makes a toggle fall back, so that nothing is built in vain and no other toggle is lost."""
    device = run.rt.device
    reasons = {**build.without_effect(config.task, config.toggles), **resolve(config.toggles, device)[1]}
    for name, reason in reasons.items():
        if config.values[name] != run.config.values[name] or name not in run.rt.fell_back:
            raise FallbackError(f"{name}={config.values[name]}: {reason}.")


def undo(run: "Run", error: BaseException) -> bool:
    """Take back a change after which no update was made; return whether there was one."""
    if not run.changes or run.spare is None or run.changes[-1].update != run.number or run.changes[-1].undone:
        return False
    _swap(run, run.spare)
    run.spare = None  # its state is that of an update cut in half
    _record(run, run.changes.pop(), error)
    return True


def record_failure(run: "Run", settings: Mapping[str, Any], by: str, error: BaseException) -> None:
    """Record a change that took no effect, as one that was undone."""
    if changed := changed_values(run.config.values, changed_config(run, settings).values):
        _record(run, Change(run.number, changed, by), error)


def _record(run: "Run", change: Change, error: BaseException) -> None:
    run.changes.append(replace(change, undone=reason_of(error).strip().splitlines()[0]))
    with suppress(ResourceError):  # else the run, which goes on, would be lost
        run.store_config()


def _other(run: "Run", config: Config) -> "Run":
    """Return a run with these settings: that of the last change, or a new one."""
    spare, run.spare = run.spare, None
    changed = changed_values(run.config.values, config.values)
    complete = alternates(changed) and "loader" not in changed  # nothing of its own that the state lacks stays in it
    usable = complete and config.toggles.graph == "off"
    if spare is not None and spare.config.values == config.values and usable:
        return spare
    del spare  # its memory is needed
    return type(run)(config)


def _hand_over(run: "Run", other: "Run") -> None:
    """Copy the state of ``run`` into ``other``."""
    groups = {item.name: {k: v.detach().clone() for k, v in item.read().items()} for item in run_state.items(run)}
    groups |= {name: rows for name, rows in run.source.segments(()).items() if rows is not None}
    try:
        run_state.write_items(other, groups, run.config.values)
    except run_state.MISFIT as error:
        raise ConfigError(f"the state of the run does not fit ({error}); start a new run for that.") from error
    other.schedules.alarms = run.schedules.alarms
    if other.schedules.progression and run.schedules.progression:
        other.schedules.progression.log = run.schedules.progression.log
    other.schedules.apply(other.source, other.learner)
    other.rt.retries[:] = run.rt.retries


def _swap(run: "Run", other: "Run") -> None:
    for name in PARTS:
        mine, its = getattr(run, name), getattr(other, name)
        setattr(run, name, its)
        setattr(other, name, mine)
    run.spare = other
