"""The notebooks' side: figures, panels, live runs, headless notebooks, reports."""

from uavlab.core.extras import require

require("lab", "figures", "plotly")
