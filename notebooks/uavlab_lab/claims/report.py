"""The measurement of claims, and a verdict on each.

Measured numbers are in ``figures/records/claims_<machine>.json``.
"""

import datetime
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from uavlab.core import installation
from uavlab.core.errors import DivergedError, FileError, ResourceError
from uavlab.core.installation import program
from uavlab.core.text import one_line
from uavlab.profiling.timing import ENOUGH
from uavlab.storage.files import read_json, write_json
from uavlab.storage.machine import describe
from uavlab_lab.claims import mapping, telemetry  # noqa: F401 - they register measures
from uavlab_lab.claims.ledger import Claim
from uavlab_lab.claims.measures import MEASURES, Bench, Estimate, NotTestable

FOLDER = installation.ROOT / "figures" / "records"
NOT_BUILT, ILL_DEFINED, NOT_MEASURED, NOT_TESTABLE = "not built yet", "ill-defined", "not measured", "not testable here"
REFUTED = "refuted by arithmetic"
UNDECIDED = (NOT_BUILT, ILL_DEFINED, NOT_MEASURED, NOT_TESTABLE)
COUNTED = ("constant", "missions")  # measures that calculate, the same on any machine


def entry_of(claim: Claim, record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a claim's entry: calculated, or from a record if it belongs to the claim's present measure, or None."""
    if claim.measure in COUNTED:
        return _entry(claim, None)
    entry = record["measured"].get(claim.claim) if record and claim.measure else None
    return entry if entry and entry.get("digest") == claim.digest else None


def verdict(claim: Claim, record: Mapping[str, Any] | None) -> str:
    """Return the verdict on a claim from a record, or the reason why there is none.

    A number decides only where the claim is about it: arithmetic does so on any machine; a measurement does not where
    the claim is about another kind, model or number of devices than the record's, or about one program. Of these, the
    utilisation of a GPU alone has a verdict, which is one on this program.
    """
    if claim.standing in (NOT_BUILT, ILL_DEFINED):
        return claim.standing
    entry, arithmetic = entry_of(claim, record), claim.standing == "arithmetic"
    elsewhere = claim.subject == "program" and not (record and of_this_program(claim))
    if not arithmetic and (elsewhere or (record and not applies(claim, record["machine"]))):
        return NOT_TESTABLE
    if entry is None:
        return NOT_MEASURED
    if entry["value"] is None:
        return NOT_TESTABLE
    judged = judge(claim, entry["value"], entry["low"], entry["high"])
    return REFUTED if arithmetic and judged == "does not hold" else judged


def of_this_program(claim: Claim) -> bool:
    """Return whether a number decides a claim about another program for this one: the utilisation of a GPU."""
    return claim.subject == "program" and claim.metric.startswith("device utilisation")


def applies(claim: Claim, machine: Mapping[str, Any]) -> bool:
    """Return whether a claim is about the kind, model and number of the devices of which a record has its number.

    A claim about a CPU is measured on the CPU of any machine, all others on the machine's GPU if it has one.
    """
    has_gpu = machine["device"] != machine.get("cpu", machine["device"])
    model = _plain(device_of(claim, machine))
    return (claim.device != "gpu" or has_gpu) and f"{claim.only.lower()}-" in f"{model}-"  # i9-9900K, but not 3090 Ti


def device_of(claim: Claim, machine: Mapping[str, Any]) -> str:
    """Return the model of the device on which ``measure_claim`` measures a claim."""
    return machine.get("cpu", machine["device"]) if claim.device == "cpu" else machine["device"]


def judge(claim: Claim, value: float, low: float | None = None, high: float | None = None) -> str:
    """Judge a number, given its 95 % interval (of few rounds their range) where there is one.

    ``holds``: rounded to the claim's digits it is in the claimed range. Of effects, which have a direction:
    ``exceeds``: it is beyond the range in the claimed direction, with its whole interval; with a part of it, it holds.
    ``partly``: it falls short of the range but is at least half of the smallest effect claimed.
    An effect whose interval contains no effect, and everything else, ``does not hold``.
    """
    if claim.neutral is None:
        return "holds" if claim.low <= round(value, claim.digits) <= _upper(claim) else "does not hold"
    if _upper(claim) > claim.neutral:  # more is claimed, else less; effects count in the claimed direction
        sign, near, far, weak = 1, claim.low, _upper(claim), low
    else:
        sign, near, far, weak = -1, _upper(claim), claim.low, high
    weak = value if weak is None else weak
    if sign * (weak - claim.neutral) <= 0:
        return "does not hold"
    if sign * (round(value, claim.digits) - near) >= 0:
        return "exceeds" if sign * (round(weak, claim.digits) - far) > 0 else "holds"
    return "partly" if 2 * sign * (value - claim.neutral) >= sign * (near - claim.neutral) else "does not hold"


def _upper(claim: Claim) -> float:
    return math.inf if claim.high is None else claim.high


def format_number(value: float | None, unit: str) -> str:
    """Format a number with its unit."""
    if value is None:
        return "-"
    if unit == "boolean":
        return "yes" if value else "no"
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return {"ratio": f"{value:.2f}x", "fraction": f"{100 * value:.3g} %"}.get(unit, f"{number} {unit}")


def format_range(low: float, high: float | None, unit: str, neutral: float | None = None) -> str:
    """Format a claimed range; an open one that begins at no effect excludes it."""
    if high is None:
        return f"{'more than' if low == neutral else 'at least'} {format_number(low, unit)}"
    return format_number(low, unit) if low == high else f"{format_number(low, unit)} to {format_number(high, unit)}"


def measure(claims: Sequence[Claim], path: Path, bench: Bench, say: Callable[[str], Any] = print) -> dict[str, Any]:
    """Measure claims here, one after the other, and write each to the record at ``path`` at once.

    A claim without a measure, or whose measure is gone, keeps the entry that it has.
    """
    machine = describe(bench.device)
    record = {**(read(path) if path.exists() else {"measured": {}}), "suite": "claims", "machine": machine}
    for claim in claims:
        if claim.measure not in MEASURES:
            say(f"{claim.claim}: nothing measures it")
            continue
        entry = {**_entry(claim, bench), "commit": machine["commit"], "digest": claim.digest}
        record["measured"][claim.claim] = entry
        record["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
        expected = format_range(claim.low, claim.high, claim.unit, claim.neutral)
        say(f"{claim.claim}: {format_number(entry['value'], claim.unit)}, claimed {expected}")
    return record


def _entry(claim: Claim, bench: Bench | None) -> dict[str, Any]:
    try:
        entry = asdict(measure_claim(claim, bench))
    except (NotTestable, ResourceError, DivergedError) as reason:
        return {"value": None, "low": None, "high": None, "note": str(reason), "rounds": None}
    digits = 9 if claim.measure in COUNTED else 4
    numbers = {name: entry[name] for name in ("value", "low", "high") if entry[name] is not None}
    return entry | {name: float(f"{number:.{digits}g}") for name, number in numbers.items()}


def measure_claim(claim: Claim, bench: Bench | None) -> Estimate:
    """Call a claim's measure with the arguments of the ledger; ``COUNTED`` ones need no bench."""
    if bench and claim.device == "cpu" and bench.device.type != "cpu":
        bench = Bench(bench.rounds, **{**bench.settings, "device": "cpu"})
    return MEASURES[claim.measure](bench, **claim.call)


def read(path: Path) -> dict[str, Any]:
    """Read a record of measured claims."""
    record = read_json(path)
    try:
        entries = list(record["measured"].values())
        words = [record["date"], record["machine"]["device"], *(entry["note"] for entry in entries)]
        numbers = [entry[name] for entry in entries for name in ("value", "low", "high")]
    except (KeyError, TypeError, AttributeError):
        words = [None]
    if not all(isinstance(x, str) for x in words) or not all(isinstance(x, int | float | None) for x in numbers):
        raise FileError(f"{path}: expected a record that {program()} claims --measure wrote, got other keys or values.")
    return record


def own_path(device: torch.device | str) -> Path:
    """Return the path of the record of this machine."""
    folder = Path("figures", "records") if installation.INSTALLED else FOLDER  # an installed package is read only
    return folder / f"claims_{slug(describe(device))}.json"


def slug(machine: Mapping[str, Any]) -> str:
    """Return a machine's name for use in a file name: its GPU, or its CPU, ``cpu_id`` and usable cores."""
    name = machine["device"]
    if name == machine["cpu"]:
        name += f" {machine.get('cpu_id', '')} {machine['cores']} cores"
    return re.sub("[^a-z0-9]+", "-", _plain(name)).strip("-")


def _plain(model: str) -> str:
    return re.sub(r"\((r|tm|c)\)", "", model.lower())


def newest(own: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the record at ``own``, or else the newest of another machine, and a sentence about its machine.

    The records of all further machines, the newest first, are under its key ``others``: they decide what it does not.
    """
    paths = [path for path in FOLDER.glob("claims_*.json") if path.resolve() != own.resolve()]
    others = sorted(map(read, paths), key=lambda record: record["date"], reverse=True)
    if own.exists():
        record = read(own)
        where = f"Measured on {record['machine']['device']}."
    elif others:
        names = ", ".join(record["machine"]["device"] for record in others)
        record, *others = others
        measures = f"{program()} claims --measure all does"
        where = f"Not measured on this machine; {measures}. Measured, the newest shown: {names}."
    else:
        return None, f"Not measured on this machine, nor on another; {program()} claims --measure all measures."
    return record | {"others": others}, where


def beside(claim: Claim, record: Mapping[str, Any]) -> str:
    """Return what a record that is not shown has measured of a claim, as a sentence; empty if nothing."""
    entry = entry_of(claim, record)
    if claim.measure in COUNTED or not entry or entry["value"] is None:
        return ""
    number = format_number(entry["value"], claim.unit)
    return f"On {device_of(claim, record['machine'])}: {number}, {verdict(claim, record)}."


def _rank(claim: Claim, record: Mapping[str, Any]) -> tuple[bool, bool]:
    """Order records: those that decide a claim are first, then those with a number of it."""
    entry = entry_of(claim, record)
    return verdict(claim, record) in UNDECIDED, not entry or entry["value"] is None


def rows(claims: Iterable[Claim], record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Join claims with their entries in a record, or in the first of its ``others`` that decides where it does not.

    Returns:
        A row for each: ``claim``, ``wording``, ``source``, ``device``, ``unit``, ``neutral``, ``claimed_low``,
        ``claimed_high`` (None for an open range), ``measured`` (None if it was not), its 95 % interval ``low`` and
        ``high`` (of fewer than ``ENOUGH`` rounds their range), ``verdict``, ``command`` (to measure it again; empty
        without a measure), ``note`` and ``machine``, the device that was measured.
    """
    records = [record, *record.get("others", ())] if record else []
    return [_row(claim, records) for claim in claims]


def _row(claim: Claim, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shown = min(records, key=partial(_rank, claim), default=None)
    entry, judged = entry_of(claim, shown) or {}, verdict(claim, shown)
    counted = claim.measure in COUNTED
    notes = ["By arithmetic." if claim.standing == "arithmetic" else "", claim.note, *_measurement(claim, entry)]
    if of_this_program(claim) and judged not in UNDECIDED:
        notes.append("Decided of this program on this GPU, not of theirs.")
    notes += [beside(claim, another) for another in records if another is not shown]
    return {
        **{name: getattr(claim, name) for name in ("claim", "wording", "source", "device", "unit", "neutral")},
        "claimed_low": claim.low,
        "claimed_high": claim.high,
        **{name: entry.get(key) for name, key in (("measured", "value"), ("low", "low"), ("high", "high"))},
        "verdict": judged,
        "command": f"uavlab claims --measure {claim.claim}" if claim.measure in MEASURES else "",
        "note": " ".join(filter(None, notes)),
        "machine": device_of(claim, shown["machine"]) if shown and entry and not counted else None,
    }


def _measurement(claim: Claim, entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the interval of a measured number, and what the number depends on, as sentences."""
    if entry.get("low") is not None:
        low, high = (format_number(entry[end], claim.unit) for end in ("low", "high"))
        rounds = entry.get("rounds") or ENOUGH
        yield f"{'95 % interval' if rounds >= ENOUGH else f'Range of {rounds} rounds:'} {low} to {high}."
    if note := entry.get("note"):
        yield f"{note[0].upper()}{note[1:]}."


def count_verdicts(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return how many rows have each verdict, the most frequent first: ``3 claims: 2 holds, 1 partly``."""
    counts = Counter(row["verdict"] for row in rows)
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return f"{counts.total()} claims: {parts}" if counts else "no such claims"


def texts(row: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Format a row's claim, claimed range, device, measured number and verdict."""
    claimed = format_range(row["claimed_low"], row["claimed_high"], row["unit"], row["neutral"])
    return row["claim"], claimed, row["device"], format_number(row["measured"], row["unit"]), row["verdict"]


def format_rows(rows: Sequence[Mapping[str, Any]], every: bool = True) -> str:
    """Format rows for a terminal, each with its wording, note and command, and count all verdicts.

    Without ``every``, rows that nothing decides are counted and not shown.
    """
    line = "{:26} {:>26}  {:6} {:>20}  {}"
    lines = [line.format("claim", "claimed", "device", "measured", "verdict")]
    shown = [row for row in rows if every or row["verdict"] not in UNDECIDED]
    for row in shown:
        lines.append(line.format(*texts(row)))
        parts = f"{row['wording']} ({row['source']})", one_line(row["note"]), row["command"]
        lines += [f"    {part}" for part in parts if part]
    hidden = len(rows) - len(shown)
    more = [f"{hidden} of them, which nothing decides here, are not shown; {program()} claims --all shows them."]
    return "\n".join([*lines, count_verdicts(rows), *more * bool(hidden)])
