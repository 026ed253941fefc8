"""The panel of a live run in a page of JupyterLab, as a person uses it."""

import time
from typing import Any

from tests.support.lab_browser import OpenNotebook

# What a panel shows: its status, its alert, the curve of its speed, and how many changes are marked on it.
SHOWN = """cell => {
  const live = cell.querySelector('.uavlab-live'), chart = live.querySelector('.uavlab-chart .wide');
  const text = role => live.querySelector(`[role=${role}]`)?.textContent ?? '';
  const marks = chart.querySelectorAll('line[stroke-dasharray]').length;
  return {status: text('status'), alert: text('alert'), curve: chart.querySelector('polyline').getAttribute('points'),
          marks, update: Number(text('status').match(/update ([0-9,]+)/)[1].replaceAll(',', ''))};
}"""
PATIENCE_MS = 60_000


class LivePage:
    """The panel in a cell of a notebook.

    Attributes:
        notebook: The notebook.
        cell: The cell.
    """

    def __init__(self, notebook: OpenNotebook, cell_id: str) -> None:
        """Scroll to the cell and wait for its panel."""
        self.notebook, self.page, self.cell = notebook, notebook.page, notebook.cell(cell_id)
        self.cell.locator(".uavlab-live [role=status]").first.wait_for()

    def shown(self) -> dict[str, Any]:
        """Return what the panel shows: ``status``, ``alert``, ``update``, ``curve`` (points) and ``marks``."""
        return self.cell.evaluate(SHOWN)

    def press(self, button: str) -> None:
        """Press a button."""
        self.cell.get_by_role("button", name=button, exact=True).click()

    def control(self, setting: str) -> Any:
        """Return the control of a setting."""
        return self.cell.get_by_label(setting, exact=True)

    def choose(self, setting: str, value: str | int) -> None:
        """Choose a value from a list, or type a number."""
        control = self.control(setting)
        if isinstance(value, str):
            control.select_option(value)
        else:
            control.fill(str(value))
            control.press("Enter")

    def wait(self, condition: str, patience_ms: float = PATIENCE_MS) -> float:
        """Wait until a condition on ``now``, what the panel shows, holds; return the seconds that it took."""
        began = time.monotonic()
        while not self.cell.evaluate(f"cell => {{ const now = ({SHOWN})(cell); return {condition}; }}"):
            if time.monotonic() - began > patience_ms / 1000:
                raise TimeoutError(f"{condition}: {self.shown()}")
            self.page.wait_for_timeout(30)
        return time.monotonic() - began

    def goes_on(self, updates: int = 1) -> None:
        """Wait until the panel shows that so many more updates were made."""
        self.wait(f"now.update >= {self.shown()['update'] + updates}")
