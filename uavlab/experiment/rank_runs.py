"""A run of several ranks: where each keeps its part, and what must be the same for all."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from uavlab.core.errors import ConfigError, RankError
from uavlab.core.registry import Settings
from uavlab.experiment.names import read_settings
from uavlab.experiment.run_dir import changed_values
from uavlab.experiment.run_state import RunState
from uavlab.runtime.ranks import RankConfig, Ranks, join, launcher, restarts
from uavlab.runtime.toggles import TOGGLES

MAX_LISTED = 5  # settings in one message


@contextmanager
def connected(run: RankConfig, device: str) -> Iterator[Ranks]:
    """Connect the ranks that torchrun started, yield this one, and leave the group; torchrun hears of an error."""
    ranks = join(run.rank_backend, run.rank_timeout_s, device)
    try:
        yield ranks
    except RankError:  # the group is broken, and closing it may wait for a lost rank
        raise
    except BaseException as error:
        if ranks.size > 1 and isinstance(error, Exception):
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler  # late: it is seldom needed

            with suppress(OSError):
                get_error_handler().record_exception(error)
        ranks.close()
        raise
    ranks.close()


def require_same_settings(ranks: Ranks, preset: str, values: Mapping[str, Any]) -> None:
    own = {"preset": preset, **values}
    if ranks.agree(repr(sorted(own.items(), key=lambda item: item[0]))):
        return
    first, *others = ranks.exchange("settings", own)
    for rank, other in enumerate(others, 1):
        if names := [name for name in {**first, **other} if first.get(name) != other.get(name)]:
            texts = [f"{name} {first.get(name)} and {other.get(name)}" for name in names[:MAX_LISTED]]
            raise ConfigError(
                f"ranks 0 and {rank} have other settings: {', '.join(texts)}{_more(names)}; start all by one command."
            )


def ends(run: RunState) -> bool:
    """Return whether training ends now; several ranks end after the same update."""
    run.stopping |= run.rt.ranks.deserted
    return run.done or (run.all_stop if run.rt.ranks.size > 1 else run.stopping)


def agree(run: RunState, seconds: float) -> None:
    """Agree with the other ranks, after an update, on the seconds of the slowest and whether one was asked to end."""
    ranks, names = run.rt.ranks, crc32(repr(sorted(run.rt.fell_back)).encode())
    run.seconds, stop, most, least = ranks.largest(seconds, run.stopping, names, -names)
    run.all_stop = stop > 0
    if most == -least:
        return
    reasons = ranks.exchange("fell_back", run.rt.fell_back)
    each = ((rank, name) for rank, own in enumerate(reasons) for name in own)
    rank, name = next((rank, name) for rank, name in each if any(name not in other for other in reasons))
    raise ConfigError(
        f"{name}={getattr(run.rt.requested, name)} fell back on rank {rank} and not on all: {reasons[rank][name]}; "
        "expected the same steps of all ranks. Go on without it: "
        f"`{launcher()} resume RUN --toggle {name}={TOGGLES[name].default}`."
    )


def is_restart(folder: Path, preset: str, values: Mapping[str, Any]) -> bool:
    """Return whether torchrun started the ranks again, and the folder holds their run."""
    if not restarts() or not (folder / "config.json").exists():
        return False
    stored = read_settings(folder)
    if names := [*changed_values({"preset": stored["preset"], **stored["values"]}, {"preset": preset, **values})]:
        raise ConfigError(
            f"{folder}: holds a run with another {', '.join(names[:MAX_LISTED])}{_more(names)}; expected the one that "
            "torchrun starts again. Choose a new folder."
        )
    return True


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""


def totals(config: Settings, size: int) -> dict[str, Any]:
    """Return the number of ranks, and the sums of sizes that each of them has for itself; empty for one alone."""
    own = {f"{name}_of_all_ranks": size * getattr(config.source, name) for name in config.task.collector.per_rank}
    return {"ranks": size, **own} if size > 1 else {}
