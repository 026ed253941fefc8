"""The ledger of claims as a table to filter, with the verdict on each from a record of measurements."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from uavlab.core.installation import program
from uavlab.experiment import build
from uavlab.experiment.config import RunConfig
from uavlab_lab.claims import report
from uavlab_lab.claims.ledger import Claim, ledger
from uavlab_lab.plots.tables import Row, table
from uavlab_lab.widgets import Panel, guard, matches, paragraphs, scroll_box, write_status

ALL = "all"
FILTERS = {  # keys of a row, with what the choice between their values is about
    "system": "the system that the claim is about",
    "device": "the kind of device that it is about",
    "standing": "what decides it",
    "verdict": "what the record says",
}
HEADS = {
    **{"claim": "claim", "wording": "in words", "claimed_text": "claimed", "device": "device"},
    **{"measured_text": "measured", "verdict": "verdict", "note": "note"},
}


def claim_rows(ledger: Sequence[Claim], record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Join claims with the measurements of a record, as ``report.rows`` does, and add the claims' own words.

    The rows also have ``system``, ``technique``, ``setting``, ``metric``, ``standing``, ``claimed_text`` and
    ``measured_text``.
    """
    rows = []
    for claim, row in zip(ledger, report.rows(ledger, record), strict=True):
        _, claimed, _, measured, _ = report.texts(row)
        words = {name: getattr(claim, name) for name in ("system", "technique", "setting", "metric", "standing")}
        rows.append({**row, **words, "claimed_text": claimed, "measured_text": measured})
    return rows


def select_rows(rows: Sequence[Row], system: str = ALL, verdict: str = ALL, text: str = "", **more: str) -> list[Row]:
    """Return the rows of a system, with a verdict and ``more`` values by key, that hold every word of a text."""
    chosen = {"system": system, "verdict": verdict, **more}
    wanted = {name: value for name, value in chosen.items() if value != ALL}
    return [
        row for row in rows if all(row[name] == value for name, value in wanted.items()) and matches(text, row.values())
    ]


class ClaimsBrowser(Panel):
    """The claims that pass the filters, and how many have each verdict.

    Attributes:
        rows: All claims, as ``claim_rows`` returns them.
    """

    def __init__(self, record: str | Path | None = None) -> None:
        """Show all claims with the verdicts from a ``record``: by default this machine's, or else the newest.

        Raises:
            FileError: The record is missing or damaged.
        """
        if record is None:
            measured, whose = report.newest(report.own_path(build.runtime(RunConfig()).device))
        else:
            measured = report.read(Path(record))
            whose = f"Measured on {measured['machine']['device']}."
        self.rows = claim_rows(ledger(), measured)
        self.filters = {
            name: widgets.Dropdown(
                options=[ALL, *dict.fromkeys(row[name] for row in self.rows)], description=name, tooltip=about
            )
            for name, about in FILTERS.items()
        }
        self.text = widgets.Text(description="search", placeholder="words", tooltip="Words that a claim must have")
        self.status, self.table = widgets.HTML(), widgets.HTML()
        controls = [*self.filters.values(), self.text]
        layout = widgets.Layout(flex_flow="row wrap")
        again = f"{program()} claims --measure NAME measures a claim here."
        about = widgets.HTML(paragraphs([f"{whose} {again}"]))
        super().__init__([about, widgets.Box(controls, layout=layout), self.status, self.table], "claims to filter")
        for control in controls:
            control.observe(guard(self.status)(self._show), "value")
        guard(self.status)(self._show)()

    def selected(self) -> list[Row]:
        """Return the rows that pass the filters."""
        return select_rows(self.rows, text=self.text.value, **{name: each.value for name, each in self.filters.items()})

    def _show(self, _: Any = None) -> None:
        rows = self.selected()
        self.table.value = scroll_box(table(rows, HEADS)._repr_html_(), "claims", "32em") if rows else ""
        write_status(self.status, f"{report.count_verdicts(rows)}; {len(self.rows)} in all")
