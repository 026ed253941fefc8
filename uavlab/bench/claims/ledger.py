"""The claims about each technique, row by row of ``ledger.csv``, and when a measured number supports one."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, suggest

LEDGER = Path(__file__).with_name("ledger.csv")
ILL_DEFINED, NOT_TESTABLE, NOT_BUILT = "ill-defined", "not testable on this machine", "not built yet"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Claim:
    """A row of the ledger.

    Attributes:
        claim: Its name.
        system: What it is about.
        technique: What has the claimed effect.
        setting: For which sizes and devices it is claimed; where it names a GPU's model, for that model alone.
        metric: What the number is.
        low: The least that is claimed.
        high: The most; None where any number from ``low`` on will do.
        digits: Decimals of the claimed numbers.
        unit: Of both.
        neutral: The number that would show no effect; None where no effect is claimed, but a size.
        measure: What measures the number here, one of ``MEASURES``; empty if nothing does yet.
        arguments: Its arguments, as a YAML mapping without braces.
        standing: ``judged`` by its number, ``ill-defined`` whatever that is, or ``not built yet``.
        note: Why, or what the number depends on.
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
                raise ConfigError(f"unknown {what} {quote(name)}{suggest(name, known)}. All of them: uavlab claims.")
    wanted = set(names) or set(claims)
    return [claim for claim in claims.values() if claim.claim in wanted and system in (None, claim.system)]


def verdict(claim: Claim, entry: Mapping[str, Any] | None) -> str:
    """Decide by its entry in a record whether a claim holds, or return why that cannot be decided."""
    if not claim.measure:
        return NOT_BUILT
    if entry is None:
        return NOT_MEASURED
    if entry["value"] is None:
        return NOT_TESTABLE
    if claim.standing == ILL_DEFINED:
        return ILL_DEFINED
    return judge(claim, entry["value"], entry["low"], entry["high"])


def judge(claim: Claim, value: float, low: float | None = None, high: float | None = None) -> str:
    """Judge a number, given its 95 % interval where there is one.

    ``holds``: rounded to the claim's digits it lies in the claimed range, or beyond it in the claimed direction.
    ``partly``: it falls short of that, but its whole interval is on the claimed side of no effect.
    ``does not hold``: anything else. Where a size is claimed and no effect, there is no direction and no ``partly``.
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
