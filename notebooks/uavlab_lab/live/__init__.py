"""The panel of a live run: its pictures, its switches, and the table of what each change did."""

from uavlab.core.extras import require

require("lab", "panel", "plotly", "ipywidgets")
