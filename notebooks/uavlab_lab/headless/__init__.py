"""Notebooks without a browser: parameters, runner, kernel, report, and checks before a commit."""

from uavlab.core.extras import require

require("lab", "notebooks", "papermill", "nbconvert", "ipykernel")

FIGURE, PICTURE = "application/vnd.plotly.v1+json", "image/svg+xml"  # outputs of a cell that shows a figure
