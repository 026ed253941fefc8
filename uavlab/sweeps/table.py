"""The table of a sweep: a row for each trial, figures over seeds, and files for other programs."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from uavlab.core.cards import Html, Table, card, interval_bar, notes
from uavlab.core.errors import ConfigError
from uavlab.core.statistics import MEAN, MIDDLE, Ends, compare, ends_text, method, named, rescale, summarize
from uavlab.core.text import one_line, quote, require_known
from uavlab.storage.files import write_json, write_text
from uavlab.sweeps.driver import PRUNED, SCORED, TRIALS, Row
from uavlab.sweeps.spec import Sweep

HEAD = ("number", "trial", "preset", "seed", "status", "reason", "score", "updates", "best_update", "seconds")
ALL = "all presets"
FEW_REASONS = 3  # why no trial has a score, in one message
METHODS = {
    MEAN: "fewer than ten seeds of a preset have their plain mean with Student's 95 % interval; one has no width",
    MIDDLE: "ten seeds of a preset and more have their interquartile mean with a bootstrap's 95 % interval",
}
PLAIN = "as they are"  # name of settings of which none varies


@dataclass(frozen=True)
class Summary:
    """A combination of settings, as text, on one preset, or on all of them: then scores are on the scale of each."""

    preset: str  # or ALL
    settings: str
    strata: tuple[tuple[float, ...], ...]  # the scores of its seeds, preset by preset
    trials: int  # with those that have no score

    @cached_property
    def mean(self) -> Ends | None:
        return summarize(self.strata) if self.strata else None

    @property
    def method(self) -> str:
        """Which mean and which interval: of fewer than ten seeds of a preset the plain mean and Student's."""
        return method(self.strata) if self.strata else ""

    @property
    def scored(self) -> int:
        """Return how many trials have a score."""
        return sum(map(len, self.strata))


@dataclass(frozen=True, repr=False)
class SweepTable:
    """The trials of a sweep; ``print`` and a notebook show means over seeds.

    >>> many = {"presets": ["pursuit"], "settings": {"updates": 2}, "grid": {"lr": [1e-3, 3e-4]}, "seeds": 1}
    >>> table = ul.sweep(many, "sweeps/rates", progress=False)
    >>> table.complete, [row["settings"] for row in table.rows]
    (True, [{'lr': 0.001}, {'lr': 0.0003}])

    Attributes:
        folder: Where everything is kept.
        sweep: What was trained.
        rows: A table for each trial, in the order of the sweep: ``number``, ``trial`` (name of its folder), ``preset``,
            ``settings`` (those that vary), ``seed``, ``status`` (``complete``, ``pruned``, ``diverged``, ``refused``,
            ``failed``, ``killed`` or ``interrupted``), ``reason``; where it is complete or pruned also ``score`` (the
            sum of ``figures`` with the weights ``score`` of the environment, of its best policy), ``figures``,
            ``updates``, ``best_update``, ``seconds``, ``digest``, ``device``, ``not_exact`` and ``episodes``.
    """

    folder: Path
    sweep: Sweep
    rows: tuple[Row, ...]

    @property
    def complete(self) -> bool:
        """Whether every trial ended with a run that was scored: at its target, or pruned."""
        return all(row["status"] in SCORED for row in self.rows)

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each complete trial by its name; equal sweeps have equal ones."""
        return {row["trial"]: row["digest"] for row in self.rows if row["status"] == "complete"}

    @property
    def failed(self) -> list[Row]:
        """Rows of trials that have no score."""
        return [row for row in self.rows if row.get("score") is None]

    @property
    def failure(self) -> str:
        """Why the sweep is no success: no trial has a score; empty if one has."""
        if len(self.failed) < len(self.rows):
            return ""
        states = ", ".join(sorted({f"{row['status']}{_reason(row)}" for row in self.rows})[:FEW_REASONS])
        return one_line(f"no trial of {len(self.rows)} has a score: {states}")

    @property
    def folders(self) -> list[Path]:
        """The folders of complete and pruned trials; each is a run, for ``ul.report`` and others."""
        return [self.folder / TRIALS / row["trial"] for row in self.rows if row["status"] in SCORED]

    @cached_property
    def scale(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest score of each preset, from the file of the sweep or from this table."""
        own = {name: _scores(self.rows, name) for name in self.sweep.presets} | (self.sweep.scale or {})
        return {name: (min(scores), max(scores)) for name, scores in own.items() if scores}

    @cached_property
    def summaries(self) -> tuple[Summary, ...]:
        """Figures of each combination of settings, preset by preset, and of several presets together."""
        names, presets = dict.fromkeys(map(settings_text, self.rows)), self.sweep.presets
        groups = [(name, [name]) for name in presets] + [(ALL, presets)] * (len(presets) > 1)
        return tuple(self._summarize(title, name, own) for title, own in groups for name in names)

    def _summarize(self, title: str, settings: str, presets: Sequence[str]) -> Summary:
        rows = [row for row in self.rows if settings_text(row) == settings and row["preset"] in presets]
        own = {name: scores for name in presets if (scores := _scores(rows, name))}
        strata = (scores if title != ALL else rescale(scores, *self.scale[name]) for name, scores in own.items())
        return Summary(title, settings, tuple(map(tuple, strata)), len(rows))

    def summary(self, settings: str, preset: str | None = None) -> Summary:
        """Return the figures of a combination of settings, by its text; of all presets together, or of one.

        Raises:
            ConfigError: There is none.
        """
        wanted = preset or (self.sweep.presets[0] if len(self.sweep.presets) == 1 else ALL)
        known = {one.settings: one for one in self.summaries if one.preset == wanted}
        require_known("setting", settings, known, "sweep: ")
        return known[settings]

    def compare(self, settings: str, other: str, preset: str | None = None) -> Ends:
        """Return how much higher the mean of one combination is than that of another, with its 95 % interval.

        Where a combination has fewer than ten seeds of a preset, it is the plain mean with Student's interval (without
        width where it has one seed), else the interquartile mean with a bootstrap.

        Raises:
            ConfigError: There is no such combination, or it has no score.
        """
        pair = [self.summary(name, preset) for name in (settings, other)]
        if lacking := [one.settings for one in pair if one.mean is None]:
            raise ConfigError(f"sweep: {quote(lacking[0])} has no score; compare others.")
        return compare(pair[0].strata, pair[1].strata)

    @property
    def notes(self) -> list[str]:
        """What one should know of the figures."""
        count, pruned = len(self.rows), sum(row["status"] == PRUNED for row in self.rows)
        texts = [f"{len(self.failed)} of {count} trials have no score and are left out"] * bool(self.failed)
        texts += [f"{pruned} of {count} trials were pruned, and count with the score that they had then"] * bool(pruned)
        scales = "those that the sweep gives" if self.sweep.scale else "the lowest and the highest in this table"
        texts += [f"over all presets, 0 and 1 are {scales}, preset by preset"] * (len(self.sweep.presets) > 1)
        return [*texts, *(METHODS[name] for name in sorted({one.method for one in self.summaries if one.strata}))]

    def __repr__(self) -> str:
        """Return a line for each combination of settings and preset, and the reasons of trials without a score."""
        table = self._table()
        lines = table.lines(f"{{:28}} {{:{table.width(1)}}} {{:>7}}  {{}}")
        lines += [one_line(f"{row['trial']}: {row['status']}{_reason(row)}") for row in self.failed]
        return "\n".join([*lines, *(f"{text}." for text in self.notes)])

    def _repr_html_(self) -> str:
        lacking = [(row["trial"], row["status"], row["reason"]) for row in self.failed]
        failures = Table(("trial without a score", "status", "reason"), lacking).html()
        count = f"{len(self.rows) - len(self.failed)} of {len(self.rows)}"
        facts = {"trials with a score": count, "engine": self.sweep.engine, "folder": self.folder}
        return card("Sweep", facts, self._table().html(), failures, notes(self.notes))

    def _table(self) -> Table:
        rows = [
            (
                *(one.preset, one.settings, f"{one.scored}/{one.trials}", ends_text(one.mean), one.method),
                Html("") if one.mean is None else interval_bar(one.mean[1], one.mean[0], one.mean[2]),
            )
            for one in self.summaries
        ]
        return Table(("preset", "settings", "seeds", "mean of the scores", "by", ""), rows)

    def record(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        keys = ("preset", "settings", "trials", "scored", "method")
        over = [{**{key: getattr(one, key) for key in keys}, **named(one.mean)} for one in self.summaries]
        scale = {name: list(ends) for name, ends in self.scale.items()}
        own = {"folder": str(self.folder), "complete": self.complete, "rows": list(self.rows)}
        return {**own, "summaries": over, "scale": scale}

    def write(self) -> None:
        """Write ``table.json`` and ``table.csv`` into the folder.

        Raises:
            ResourceError: A file cannot be written.
        """
        write_json(self.folder / "table.json", self.record())
        rows, text = [flat_row(row) for row in self.rows], io.StringIO()
        table = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_text(self.folder / "table.csv", text.getvalue())


def flat_row(row: Row) -> dict[str, Any]:
    """Return a row whose settings are named ``set/NAME`` and whose figures ``eval/NAME``, for a file."""
    return {
        **{name: row.get(name) for name in HEAD},
        **{f"set/{name}": _text(value) for name, value in row["settings"].items()},
        **{f"eval/{name}": value for name, value in row.get("figures", {}).items()},
        **{name: row.get(name) for name in ("digest", "device")},
    }


def settings_text(row: Row) -> str:
    """Return what distinguishes the settings of a row: ``lr=0.001, toggles=eager``."""
    return ", ".join(f"{name}={_text(value)}" for name, value in row["settings"].items()) or PLAIN


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _scores(rows: Sequence[Row], preset: str) -> list[float]:
    return [row["score"] for row in rows if row["preset"] == preset and row.get("score") is not None]


def _reason(row: Row) -> str:
    return f", {row['reason']}" if row["reason"] else ""
