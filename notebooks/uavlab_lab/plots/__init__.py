"""Plotly figures; the pictures of environments are functions under ``uavlab.scene`` in ``scenes``."""

from uavlab.core.extras import require

require("lab", "figures", "plotly")

from uavlab_lab.plots import scenes as scenes
