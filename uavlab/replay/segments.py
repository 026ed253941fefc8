"""Replay on disk in immutable segments, so that a checkpoint only writes new rows.

The rows of each run are numbered from 0 in the order in which they were added; all runs add in step. Row n lies in slot
n mod capacity, and after ``total`` rows the ring holds the last min(total, capacity) of them. A segment holds the rows
[lo, hi) of every run and is named by them. All segments together take at most about twice the space of a full ring,
because the oldest is kept until its last row is overwritten.
"""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.installation import program
from uavlab.core.types import leaves
from uavlab.replay.ring import Ring, describe_leaf, matches

MOST = 64  # segments; instead of more, replay is rewritten as one
NAME = re.compile(r"replay-([0-9]{12,18})-([0-9]{12,18})")


def plan(known: Iterable[str], total: int, capacity: int) -> list[str]:
    """Return the names of the segments that hold the last min(total, capacity) rows, oldest first.

    They are those in ``known`` that hold some of these rows and, if rows remain, a new one for them; or a single new
    one if these would be more than ``MOST``. After a return to an earlier checkpoint, only its segments are known,
    because rows with later numbers differ. Those that are too old, reach beyond ``total`` or follow a gap are left out.
    """
    start = at = max(0, total - capacity)
    spans = []
    for lo, hi in sorted(map(_span, known)):
        if lo <= at < hi <= total and at in (lo, start):  # the first may begin with overwritten rows
            spans.append((lo, hi))
            at = hi
    if at < total:
        spans.append((at, total))
    if len(spans) > MOST:
        spans = [(start, total)]
    return [_name(lo, hi) for lo, hi in spans]


def cut(ring: Ring, name: str) -> dict[str, Tensor]:
    """Copy the rows of a segment (leading axes R n), by leaf name, out of the ring, which training overwrites."""
    lo, hi = _span(name)
    if hi - lo > ring.capacity:
        raise _refusal(f"segment {name}", f"means {hi - lo} rows, expected at most the {ring.capacity} of the ring")
    parts = _slots(lo, hi, ring.capacity)
    return {leaf: torch.cat([stored[:, part] for part in parts], 1) for leaf, stored in leaves(ring.rows)}


def paste(ring: Ring, segments: Mapping[str, Mapping[str, Tensor]], total: int) -> None:
    """Write segments into the ring and set cursor and size to those after ``total`` rows; other slots do not change."""
    spans, start = sorted((*_span(name), name) for name in segments), max(0, total - ring.capacity)
    _require_cover([span for span in spans if span[1] > start], start, total)
    for lo, hi, name in spans:
        _require_fit(ring, name, hi - lo, segments[name])
    stored = dict(leaves(ring.rows))
    for lo, hi, name in spans:
        first = max(lo, start)  # earlier rows were overwritten
        if first < hi:
            head, tail = _slots(first, hi, ring.capacity)
            for leaf, rows in segments[name].items():
                before, after = rows[:, first - lo :].tensor_split((head.stop - head.start,), 1)
                stored[leaf][:, head].copy_(before)
                stored[leaf][:, tail].copy_(after)
    ring.cursor.fill_(total % ring.capacity)
    ring.size.fill_(total - start)


def _name(lo: int, hi: int) -> str:
    return f"replay-{lo:012d}-{hi:012d}"


def _span(name: str) -> tuple[int, int]:
    match = NAME.fullmatch(name)
    lo, hi = map(int, match.groups()) if match else (0, 0)
    if lo >= hi or name != _name(lo, hi):
        raise _refusal(f"segment {name!r}", "is no segment's name, expected replay-LO-HI, row numbers of 12 digits")
    return lo, hi


def _slots(lo: int, hi: int, capacity: int) -> tuple[slice, slice]:
    """Return the slots of rows [lo, hi): those up to the end of the ring, and those from its beginning."""
    first, last = lo % capacity, lo % capacity + hi - lo
    return slice(first, min(last, capacity)), slice(0, max(0, last - capacity))


def _require_cover(spans: list[tuple[int, int, str]], start: int, total: int) -> None:
    """Check that sorted spans hold every row of [start, total) exactly once."""
    at = start
    for lo, hi, name in spans:
        if max(lo, start) != at:
            raise _refusal(f"segment {name}", f"goes on from row {lo}, expected {at}")
        if hi > total:
            raise _refusal(f"segment {name}", f"ends at row {hi}, expected {total} at most")
        at = hi
    if at != total:
        raise _refusal(f"rows [{at}, {total})", f"are in no segment, expected each of [{start}, {total}) in one")


def _require_fit(ring: Ring, name: str, count: int, rows: Mapping[str, Tensor]) -> None:
    """Check that leaves are ``count`` rows of the ring's shapes and types."""
    stored = dict(leaves(ring.rows))
    if rows.keys() != stored.keys():
        got, expected = (", ".join(sorted(names)) or "nothing" for names in (rows, stored))
        raise _refusal(f"segment {name}", f"holds {got}, expected {expected}")
    for leaf, old in stored.items():
        if not matches(old, rows[leaf], count):
            raise _refusal(
                f"segment {name}", f"has {leaf} as {describe_leaf(rows[leaf])}, expected {describe_leaf(old, count)}"
            )


def _refusal(what: str, why: str) -> FileError:
    return FileError(
        f"Replay {what} {why}. Resume another checkpoint of the run, or let `{program()} resume --fresh-replay` start "
        "replay anew."
    )
