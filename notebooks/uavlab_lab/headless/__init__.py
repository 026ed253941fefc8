"""Notebooks without a browser: parameters, runner, kernel, report, and checks before a commit."""

from uavlab.core.extras import require

require("lab", "notebooks", "papermill", "nbconvert", "ipykernel")
