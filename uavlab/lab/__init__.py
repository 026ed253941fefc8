"""Tools for notebooks: figures, widget panels, live runs, headless runs and reports."""

from uavlab.core.extras import require

require("lab", "figures", "plotly")
