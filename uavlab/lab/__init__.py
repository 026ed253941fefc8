"""Tools for notebooks: figures, widget panels, live runs, headless runs and reports."""

from typing import Any

from uavlab.core.extras import require

require("lab", "figures", "plotly")


def panel(run: Any) -> Any:
    """Show the panel of a run, or of the folder of one; see ``uavlab.lab.live.panel.panel``."""
    from uavlab.lab.live.panel import panel as show

    return show(run)
