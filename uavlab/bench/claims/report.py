"""The claims ledger, filled in: each claim beside what was measured on a machine, and whether it holds.

Measured numbers live in ``figures/records/claims_<machine>.json``.
"""

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from uavlab.bench.claims import gpu, leader_follower, mapping, telemetry, update_interval
from uavlab.bench.claims.leader_follower import Bench, Measure, NotTestable
from uavlab.bench.claims.ledger import Claim, claimed, quantity, verdict
from uavlab.core.errors import DivergedError, FileError, ResourceError
from uavlab.core.text import one_line
from uavlab.storage.files import read_json, write_json
from uavlab.storage.machine import ROOT, describe

FOLDER = ROOT / "figures" / "records"

KINDS = (leader_follower, gpu, update_interval, mapping, telemetry)
MEASURES: dict[str, Measure] = {name: each for kind in KINDS for name, each in kind.MEASURES.items()}


def measure(claims: Sequence[Claim], path: Path, bench: Bench, say: Callable[[str], Any] = print) -> dict[str, Any]:
    """Measure claims here, one after the other, each kept in the record at ``path`` as soon as it is there.

    Raises:
        FileError: There is something else at ``path``.
        ResourceError: The disk refuses.
    """
    machine = describe(bench.device)
    record = {**(read(path) if path.exists() else {"measured": {}}), "suite": "claims", "machine": machine}
    for claim in claims:
        if not claim.measure:
            continue
        entry = {**_entry(MEASURES[claim.measure], bench), "rounds": bench.rounds, "commit": machine["commit"]}
        record["measured"][claim.claim] = entry
        record["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
        said = claimed(claim.low, claim.high, claim.unit)
        say(f"{claim.claim}: {quantity(entry['value'], claim.unit)}, claimed {said}")
    return record


def _entry(of: Measure, bench: Bench) -> dict[str, Any]:
    try:
        found = asdict(of(bench))
    except (NotTestable, ResourceError, DivergedError) as reason:
        return {"value": None, "low": None, "high": None, "note": str(reason)}
    return {name: float(f"{x:.4g}") if isinstance(x, int | float) else x for name, x in found.items()}


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
    """Give the file in which this machine's numbers are kept."""
    return FOLDER / f"claims_{slug(describe(device))}.json"


def slug(machine: Mapping[str, Any]) -> str:
    """Name a machine for a file: its GPU, or its CPU and the cores that may be used."""
    name = machine["device"]
    if name == machine["cpu"]:
        name += f" {machine['cores']} cores"
    plain = re.sub(r"\((r|tm|c)\)", "", name.lower())
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")


def newest(own: Path) -> tuple[dict[str, Any] | None, str]:
    """Find the record at ``own``, or else the newest of another machine; and say whose it is.

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
    """Lay claims beside what a record has of them.

    Returns:
        A row for each: ``claim``, ``claimed_low``, ``claimed_high`` (None if any more will do), ``measured`` (None if
        it was not), ``verdict``, ``command`` (which makes the row again; empty where nothing does yet), ``unit``,
        ``note`` and ``machine``.
    """
    found = record["measured"] if record else {}
    made = []
    for claim in claims:
        entry = found.get(claim.claim)
        made.append(
            {
                "claim": claim.claim,
                "claimed_low": claim.low,
                "claimed_high": claim.high,
                "measured": entry and entry["value"],
                "verdict": verdict(claim, entry),
                "command": f"uavlab claims --measure {claim.claim}" if claim.measure else "",
                "unit": claim.unit,
                "note": _note(claim, entry),
                "machine": record["machine"]["device"] if record and entry else None,
            }
        )
    return made


def _note(claim: Claim, entry: Mapping[str, Any] | None) -> str:
    said = [claim.note]
    if entry and entry["low"] is not None:
        said.append(f"95 % interval {quantity(entry['low'], claim.unit)} to {quantity(entry['high'], claim.unit)}.")
    if entry and entry["note"]:
        said.append(f"{entry['note'][0].upper()}{entry['note'][1:]}.")
    return " ".join(filter(None, said))


def texts(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Write a row's claim, what is claimed, what was measured, and the verdict."""
    said = claimed(row["claimed_low"], row["claimed_high"], row["unit"])
    return row["claim"], said, quantity(row["measured"], row["unit"]), row["verdict"]


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Lay rows out as a Markdown table."""
    lines = [("claim", "claimed", "measured here", "verdict"), ("---",) * 4, *map(texts, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def told(rows: Iterable[Mapping[str, Any]]) -> str:
    """Lay rows out for a terminal, each with its note."""
    lines = ["{:24} {:>24} {:>14}  {}".format("claim", "claimed", "measured", "verdict")]
    for row in rows:
        lines.append("{:24} {:>24} {:>14}  {}".format(*texts(row)))
        lines += [f"    {one_line(row['note'])}"] if row["note"] else []
    return "\n".join(lines)
