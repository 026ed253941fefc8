"""The ledger of claims (``ledger.csv``), their measurement, and a verdict on each claim.

Measured numbers are in ``figures/records/claims_<machine>.json``.
"""

import csv
import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from uavlab.benchmarks.claims import mapping, telemetry, update_interval  # noqa: F401 - they register measures
from uavlab.benchmarks.claims.measures import MEASURES, Bench, Estimate, NotTestable
from uavlab.core import installation
from uavlab.core.errors import ConfigError, DivergedError, FileError, ResourceError
from uavlab.core.installation import program
from uavlab.core.text import one_line, quote, suggest, yaml_value
from uavlab.storage.files import read_json, write_json
from uavlab.storage.machine import describe

FOLDER = installation.ROOT / "figures" / "records"
LEDGER = Path(__file__).with_name("ledger.csv")
NOT_BUILT = "not built yet"


@dataclass(frozen=True)
class Claim:
    """A row of the ledger.

    Attributes:
        claim: Its name.
        system: The system that it is about.
        technique: The technique with the claimed effect.
        setting: Sizes and devices that it holds for; a GPU's model, if named, restricts it to that model.
        metric: Meaning of the number.
        low: Lower end of the claimed range.
        high: Upper end; None for an open range.
        digits: Decimals of the claimed numbers.
        unit: Unit of ``low`` and ``high``.
        neutral: The number that means no effect; None where a quantity is claimed and not an effect.
        measure: The measure in ``MEASURES``; empty if there is none yet.
        arguments: Arguments of the measure, as a YAML mapping without braces.
        standing: ``judged`` (by its number), ``ill-defined`` (no number decides it) or ``not built yet``.
        note: The reason for ``standing``, or what the number depends on.
    """

    claim: str
    system: str
    technique: str
    setting: str
    metric: str
    low: float
    high: float | None
    digits: int
    unit: str
    neutral: float | None
    measure: str
    arguments: str
    standing: str
    note: str

    @property
    def gpu(self) -> str:
        """The model of GPU that the claim is about; empty if it is about any device."""
        return next((part for part in self.setting.split(", ") if part.startswith(("RTX ", "GTX "))), "")


def ledger() -> list[Claim]:
    """Read all claims."""
    with LEDGER.open(encoding="utf-8", newline="") as file:
        return [_claim(row) for row in csv.DictReader(file)]


def _claim(row: dict[str, str]) -> Claim:
    texts = [row[end] for end in ("low", "high") if row[end]]
    numbers = {name: float(row[name]) if row[name] else None for name in ("high", "neutral")}
    digits = max(len(text.partition(".")[2]) for text in texts)
    return Claim(**{**row, **numbers, "low": float(row["low"]), "digits": digits})  # type: ignore[arg-type]


def select(names: Iterable[str] = (), system: str | None = None) -> list[Claim]:
    """Choose claims by their names (all if there are none) and system, in the ledger's order.

    Raises:
        ConfigError: There is no claim, or no system, of that name.
    """
    claims = {claim.claim: claim for claim in ledger()}
    systems = {claim.system for claim in claims.values()}
    for what, given, known in (("claim", names, claims), ("system", [system] if system else [], systems)):
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"unknown {what} {quote(name)}{suggest(name, known)}. All of them: {program()} claims."
                )
    wanted = set(names) or set(claims)
    return [claim for claim in claims.values() if claim.claim in wanted and system in (None, claim.system)]


def verdict(claim: Claim, entry: Mapping[str, Any] | None) -> str:
    """Return the verdict on a claim from its entry in a record, or the reason why there is none."""
    if not claim.measure:
        return NOT_BUILT
    if entry is None:
        return "not measured"
    if entry["value"] is None:
        return "not testable on this machine"
    if claim.standing != "judged":
        return claim.standing
    return judge(claim, entry["value"], entry["low"], entry["high"])


def judge(claim: Claim, value: float, low: float | None = None, high: float | None = None) -> str:
    """Judge a number, given its 95 % interval where there is one.

    ``holds``: rounded to the claim's digits it lies in the claimed range, or beyond it in the claimed direction.
    ``partly``: it falls short of that, but its whole interval is on the claimed side of no effect.
    ``does not hold``: anything else. A claimed quantity, unlike an effect, has no direction and no ``partly``.
    """
    rounded = round(value, claim.digits)
    if claim.neutral is None:
        inside = claim.low <= rounded and (claim.high is None or rounded <= claim.high)
        return "holds" if inside else "does not hold"
    if claim.high is None or claim.high > claim.neutral:  # more is claimed, else less
        effect, reached = (value if low is None else low) > claim.neutral, rounded >= claim.low
    else:
        effect, reached = (value if high is None else high) < claim.neutral, rounded <= claim.high
    return ("holds" if reached else "partly") if effect else "does not hold"


def format_number(value: float | None, unit: str) -> str:
    """Format a number with its unit."""
    if value is None:
        return "-"
    if unit == "boolean":
        return "yes" if value else "no"
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return {"ratio": f"{value:.2f}x", "fraction": f"{100 * value:.3g} %"}.get(unit, f"{number} {unit}")


def format_range(low: float, high: float | None, unit: str) -> str:
    """Format a claimed range."""
    if high is None:
        return f"at least {format_number(low, unit)}"
    return format_number(low, unit) if low == high else f"{format_number(low, unit)} to {format_number(high, unit)}"


def measure(claims: Sequence[Claim], path: Path, bench: Bench, say: Callable[[str], Any] = print) -> dict[str, Any]:
    """Measure claims here, one after the other, and write each to the record at ``path`` at once.

    Raises:
        FileError: The file at ``path`` is not a record of claims.
        ResourceError: The record cannot be written.
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
        FileError: The file is missing, damaged or another kind of record.
    """
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
    """Return a machine's name for use in a file name: its GPU, or its CPU and number of usable cores."""
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
        return None, f"Not measured on this machine, nor on another; {program()} claims --all measures."
    names = ", ".join(record["machine"]["device"] for record in reversed(others))
    where = f"Not measured on this machine; {program()} claims --all does. Measured, the newest shown: {names}."
    return others[-1], where


def rows(claims: Iterable[Claim], record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Join claims with their entries in a record.

    Returns:
        A row for each: ``claim``, ``claimed_low``, ``claimed_high`` (None for an open range), ``measured`` (None if it
        was not), ``verdict``, ``command`` (to measure it again; empty without a measure), ``unit``, ``note`` and
        ``machine``.
    """
    entries, rows = record["measured"] if record else {}, []
    for claim in claims:
        entry, notes = entries.get(claim.claim), [claim.note]
        if entry and entry["low"] is not None:
            low, high = (format_number(entry[end], claim.unit) for end in ("low", "high"))
            notes.append(f"95 % interval {low} to {high}.")
        if entry and entry["note"]:
            notes.append(f"{entry['note'][0].upper()}{entry['note'][1:]}.")
        rows.append(
            {
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
        )
    return rows


def texts(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Format a row's claim, claimed range, measured number and verdict."""
    claimed = format_range(row["claimed_low"], row["claimed_high"], row["unit"])
    return row["claim"], claimed, format_number(row["measured"], row["unit"]), row["verdict"]


def format_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Format rows for a terminal, each with its note."""
    lines = ["{:24} {:>24} {:>14}  {}".format("claim", "claimed", "measured", "verdict")]
    for row in rows:
        lines.append("{:24} {:>24} {:>14}  {}".format(*texts(row)))
        lines += [f"    {one_line(row['note'])}"] if row["note"] else []
    return "\n".join(lines)
