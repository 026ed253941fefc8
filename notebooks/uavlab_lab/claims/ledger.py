"""The ledger of claims, ``ledger.csv``: what is claimed, of which device, where, and how it is measured."""

import csv
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.installation import program
from uavlab.core.text import quote, suggest, yaml_value
from uavlab_lab.claims.measures import STAGES

LEDGER = Path(__file__).with_name("ledger.csv")


@dataclass(frozen=True)
class Claim:
    """A row of the ledger.

    Attributes:
        claim: Its name.
        system: The system that it is about.
        technique: The technique with the claimed effect.
        setting: Sizes and devices that it holds for; a device's model or a number of devices restricts it to them.
        metric: Meaning of the number.
        low: Lower end of the claimed range.
        high: Upper end; None for an open range.
        digits: Decimals of the claimed numbers; of a fraction at least two, the digits of its percents.
        unit: Unit of ``low`` and ``high``.
        neutral: The number that means no effect; None where a quantity is claimed and not an effect.
        device: ``gpu``, ``cpu`` or ``any``: the kind of device that it is about.
        subject: ``technique``, or ``program`` for an observation of one program, which no other program can test.
        source: The document in words, and its lines; companion documents are of the same programs.
        wording: The claim in plain words.
        measure: The measure in ``MEASURES``. Of one that is gone, whose number decided no claim, the recorded numbers
            stay; empty if there is none yet.
        arguments: Arguments of the measure, as a YAML mapping without braces.
        standing: ``judged`` (by a measured number), ``arithmetic`` (by a number that follows from the document or from
            counting, on any machine), ``ill-defined`` (no number decides it) or ``not built yet``.
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
    device: str
    subject: str
    source: str
    wording: str
    measure: str
    arguments: str
    standing: str
    note: str

    @property
    def only(self) -> str:
        """The model or number of devices that the claim is about; empty if the setting names neither."""
        parts = self.setting.split(", ")
        return next((part for part in parts if part.startswith(("RTX ", "GTX ", "Core ")) or part == "8 devices"), "")

    @property
    def call(self) -> dict[str, Any]:
        """The arguments of the measure."""
        return _arguments(self.arguments, self.claim)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of measure, arguments (stages written out) and unit: what an entry belongs to."""
        text = json.dumps([self.measure, _written_out(self.call), self.unit], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=512)
def _arguments(text: str, claim: str) -> dict[str, Any]:
    return yaml_value(f"{{{text}}}", claim)


def _written_out(value: Any) -> Any:
    """Replace each key ``stage`` that is a number by the toggles of that stage."""
    if not isinstance(value, dict):
        return value
    number = value.get("stage")
    stage, own = (STAGES[number], {**value, "stage": "number"}) if isinstance(number, int) else ({}, value)
    return {**stage, **{name: _written_out(each) for name, each in own.items()}}


def ledger() -> list[Claim]:
    """Read all claims."""
    with LEDGER.open(encoding="utf-8", newline="") as file:
        return [_claim(row) for row in csv.DictReader(file)]


def _claim(row: dict[str, str]) -> Claim:
    texts = [row[end] for end in ("low", "high") if row[end]]
    numbers = {name: float(row[name]) if row[name] else None for name in ("high", "neutral")}
    digits = max(2 * (row["unit"] == "fraction"), *(len(text.partition(".")[2]) for text in texts))
    return Claim(**{**row, **numbers, "low": float(row["low"]), "digits": digits})  # type: ignore[arg-type]


def select(names: Iterable[str] = (), system: str | None = None) -> list[Claim]:
    """Choose claims by their names (all if there are none) and system, in the ledger's order."""
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
