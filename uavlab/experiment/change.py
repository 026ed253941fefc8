"""Changes of settings between updates: a run in memory may change what a resumed run may, with the same bits.

A change builds other parts by the new settings, copies the state into them, and puts them in place of those of the run.
The run keeps the former parts, with the state before the change, to which it returns if the first update fails. A
change back of toggles that leave the algorithm as it is (``alternates``) builds and compiles nothing anew.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from uavlab.core.errors import ConfigError, FallbackError, ResourceError, reason_of
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.experiment.resume import MISFIT, write_items
from uavlab.experiment.run_dir import IN_MEMORY, changed_values, require_resumable, store_config, with_changes
from uavlab.experiment.run_state import (
    COMPARISON,
    TIMED,
    Change,
    Parts,
    RunState,
    build_parts,
    items_of,
    machine_differences,
    not_exact,
)
from uavlab.runtime.toggles import TOGGLES, resolve
from uavlab.storage.metrics_log import OPENERS, trackers_of

NUMERIC = ("exact", "rounding", "single", "precision")  # equality of toggles that leave the algorithm as it is


def change(run: RunState, settings: Mapping[str, Any], by: str) -> Change | None:
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
    parts = _parts_for(run, config)
    _copy_state(run.parts, parts)
    _carry_over(run, parts, reasons, noted=by == COMPARISON)
    run.linkable = run.linkable and not parts.source.resized
    run.parts, run.spare = parts, run.parts
    if trackers is not None:
        run.recorder.track(trackers)
    run.changes.append(event)
    if by == COMPARISON:  # the folder has the settings that were chosen
        return event
    try:
        store_config(run)
    except ResourceError:  # such as a full disk
        run.parts, run.spare = run.spare, parts
        run.changes.pop()
        with suppress(ResourceError):
            store_config(run)
        raise
    return event


def _carry_over(run: RunState, parts: Parts, reasons: list[str], noted: bool) -> None:
    """Carry over patience, whether the run was scored at its end, and why it is not exact, if that is not ``noted``."""
    before = run.parts
    parts.evals_since_best = 0 if before.config.run.patience is None else before.evals_since_best
    done = parts.done(run.number, run.seconds)
    parts.forced = before.forced and done
    reasons += machine_differences(before.machine, parts.machine)
    reasons += ["it was scored once more, at its former target"] * (before.forced and not done)
    since = [] if noted else [f"update {run.number}: {why}" for why in reasons]
    timed = [TIMED] * (parts.config.run.minutes is not None)
    parts.not_exact_reasons = list(dict.fromkeys([*not_exact(run), *timed, *since]))


def changed_config(run: RunState, settings: Mapping[str, Any]) -> Config:
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


def refusal(run: RunState, /, **settings: Any) -> str:
    """Return why these settings cannot change within a run; empty if they can."""
    try:
        require_usable(run, changed_config(run, settings))
    except ConfigError as error:
        return str(error)
    return ""


def require_usable(run: RunState, config: Config) -> None:
    """Refuse what makes a toggle fall back, so that nothing is built in vain and no other toggle is lost."""
    device = run.rt.device
    reasons = {**build.without_effect(config.task, config.toggles), **resolve(config.toggles, device)[1]}
    for name, reason in reasons.items():
        if config.values[name] != run.config.values[name] or name not in run.rt.fell_back:
            raise FallbackError(f"{name}={config.values[name]}: {reason}.")


def undo(run: RunState, error: BaseException) -> bool:
    """Take back a change after which no update was made; return whether there was one."""
    if not run.changes or run.spare is None or run.changes[-1].update != run.number or run.changes[-1].undone:
        return False
    run.parts, run.spare = run.spare, None  # the state of the other parts is that of an update cut in half
    _record(run, run.changes.pop(), error)
    return True


def record_failure(run: RunState, settings: Mapping[str, Any], by: str, error: BaseException) -> None:
    """Record a change that took no effect, as one that was undone."""
    if changed := changed_values(run.config.values, changed_config(run, settings).values):
        _record(run, Change(run.number, changed, by), error)


def _record(run: RunState, change: Change, error: BaseException) -> None:
    run.changes.append(replace(change, undone=reason_of(error).strip().splitlines()[0]))
    with suppress(ResourceError):  # else the run, which goes on, would be lost
        store_config(run)


def _parts_for(run: RunState, config: Config) -> Parts:
    """Return parts with these settings: those before the last change, or new ones."""
    spare, run.spare = run.spare, None
    changed = changed_values(run.config.values, config.values)
    complete = alternates(changed) and "loader" not in changed  # nothing of its own that the state lacks stays in it
    usable = complete and config.toggles.graph == "off"
    if spare is not None and spare.config.values == config.values and usable:
        return spare
    del spare  # its memory is needed
    return build_parts(config)


def _copy_state(before: Parts, after: Parts) -> None:
    groups = {item.name: {k: v.detach().clone() for k, v in item.read().items()} for item in items_of(before)}
    groups |= {name: rows for name, rows in before.source.segments(()).items() if rows is not None}
    try:
        write_items(after, items_of(after), groups, before.config.values)
    except MISFIT as error:
        raise ConfigError(f"the state of the run does not fit ({error}); start a new run for that.") from error
    if after.schedules.progression and before.schedules.progression:
        after.schedules.progression.log = before.schedules.progression.log
    after.schedules.apply(after.source, after.learner)
    after.rt.retries[:] = before.rt.retries
