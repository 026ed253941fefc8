"""Notebooks without a browser: parameters, runner, kernel, report, and what may be committed."""

from uavlab.core.extras import require

require("lab", "notebooks", "papermill", "nbconvert", "ipykernel")
