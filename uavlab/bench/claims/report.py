"""The claims ledger, filled in: each claim with its number on a machine, and whether it holds.

Measured numbers are in ``figures/records/claims_<machine>.json``.
"""

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from uavlab.bench.claims import mapping, telemetry, update_interval  # noqa: F401 - they register measures
from uavlab.bench.claims.ledger import Claim, format_number, format_range, verdict
from uavlab.bench.claims.measures import MEASURES, Bench, Estimate, NotTestable
from uavlab.core.errors import DivergedError, FileError, ResourceError
from uavlab.core.text import one_line, yaml_value
from uavlab.storage.files import read_json, write_json
from uavlab.storage.machine import ROOT, describe

FOLDER = ROOT / "figures" / "records"
HEAD = ("claim", "claimed", "measured here", "verdict")


def measure(claims: Sequence[Claim], path: Path, bench: Bench, say: Callable[[str], Any] = print) -> dict[str, Any]:
    """Measure claims here, one after the other, and write each to the record at ``path`` at once.

    Raises:
        FileError: There is something else at ``path``.
        ResourceError: The disk refuses.
    """
    machine = describe(bench.device)
    record = {**(read(path) if path.exists() else {"measured": {}}), "suite": "claims", "machine": machine}
    for claim in claims:
        if not claim.measure:
            continue
        entry = {**_entry(claim, bench), "rounds": bench.rounds, "commit": machine["commit"]}
        record["measured"][claim.claim] = entry
        record["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
        expected = format_range(claim.low, claim.high, claim.unit)
        say(f"{claim.claim}: {format_number(entry['value'], claim.unit)}, claimed {expected}")
    return record


def _entry(claim: Claim, bench: Bench) -> dict[str, Any]:
    try:
        entry = asdict(measure_claim(claim, bench))
    except (NotTestable, ResourceError, DivergedError) as reason:
        return {"value": None, "low": None, "high": None, "note": str(reason)}
    return {name: float(f"{x:.4g}") if isinstance(x, int | float) else x for name, x in entry.items()}


def measure_claim(claim: Claim, bench: Bench) -> Estimate:
    """Call a claim's measure with the arguments of the ledger.

    Raises:
        NotTestable: The number cannot be measured on this machine, or is claimed of a GPU that is not this device.
    """
    result = MEASURES[claim.measure](bench, **yaml_value(f"{{{claim.arguments}}}", claim.claim))
    if claim.gpu not in bench.name:
        raise NotTestable(f"needs another device, {claim.gpu}; here it is {result.value:.3g}, {result.note}")
    return result


def read(path: Path) -> dict[str, Any]:
    """Read a record of measured claims.

    Raises:
        FileError: It is missing or damaged, or another record.
    """
    record = read_json(path)
    try:
        entries = list(record["measured"].values())
        words = [record["date"], record["machine"]["device"], *(entry["note"] for entry in entries)]
        numbers = [entry[name] for entry in entries for name in ("value", "low", "high")]
    except (KeyError, TypeError, AttributeError):
        words = [None]
    if not all(isinstance(x, str) for x in words) or not all(isinstance(x, int | float | None) for x in numbers):
        raise FileError(f"{path}: expected a record that uavlab claims --measure wrote, got other keys or values.")
    return record


def own_path(device: torch.device | str) -> Path:
    """Return the file of this machine's numbers."""
    return FOLDER / f"claims_{slug(describe(device))}.json"


def slug(machine: Mapping[str, Any]) -> str:
    """Return a machine's name for a file: its GPU, or its CPU and the cores that may be used."""
    name = machine["device"]
    if name == machine["cpu"]:
        name += f" {machine['cores']} cores"
    plain = re.sub(r"\((r|tm|c)\)", "", name.lower())
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")


def newest(own: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the record at ``own``, or else the newest of another machine, and a sentence about its machine.

    Raises:
        FileError: A record is damaged.
    """
    if own.exists():
        record = read(own)
        return record, f"Measured on {record['machine']['device']}."
    others = sorted((read(path) for path in FOLDER.glob("claims_*.json")), key=lambda record: record["date"])
    if not others:
        return None, "Not measured on this machine, nor on another; uavlab claims --all measures."
    names = ", ".join(record["machine"]["device"] for record in reversed(others))
    return others[-1], f"Not measured on this machine; uavlab claims --all does. Measured, the newest shown: {names}."


def rows(claims: Iterable[Claim], record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Join claims with their entries in a record.

    Returns:
        A row for each: ``claim``, ``claimed_low``, ``claimed_high`` (None if any more will do), ``measured`` (None if
        it was not), ``verdict``, ``command`` (which makes the row again; empty where nothing does yet), ``unit``,
        ``note`` and ``machine``.
    """
    entries = record["measured"] if record else {}
    return [_row(claim, entries.get(claim.claim), record) for claim in claims]


def _row(claim: Claim, entry: Mapping[str, Any] | None, record: Mapping[str, Any] | None) -> dict[str, Any]:
    notes = [claim.note]
    if entry and entry["low"] is not None:
        low, high = (format_number(entry[end], claim.unit) for end in ("low", "high"))
        notes.append(f"95 % interval {low} to {high}.")
    if entry and entry["note"]:
        notes.append(f"{entry['note'][0].upper()}{entry['note'][1:]}.")
    return {
        "claim": claim.claim,
        "claimed_low": claim.low,
        "claimed_high": claim.high,
        "measured": entry and entry["value"],
        "verdict": verdict(claim, entry),
        "command": f"uavlab claims --measure {claim.claim}" if claim.measure else "",
        "unit": claim.unit,
        "note": " ".join(filter(None, notes)),
        "machine": record["machine"]["device"] if record and entry else None,
    }


def texts(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Format a row's claim, claimed range, measured number and verdict."""
    claimed = format_range(row["claimed_low"], row["claimed_high"], row["unit"])
    return row["claim"], claimed, format_number(row["measured"], row["unit"]), row["verdict"]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format rows of text as a Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *rows))


def format_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Format rows for a terminal, each with its note."""
    lines = ["{:24} {:>24} {:>14}  {}".format("claim", "claimed", "measured", "verdict")]
    for row in rows:
        lines.append("{:24} {:>24} {:>14}  {}".format(*texts(row)))
        lines += [f"    {one_line(row['note'])}"] if row["note"] else []
    return "\n".join(lines)
