"""What stands beside the notebooks: figures, panels, pages, headless runs, suites of measurements, and claims.

``uavlab`` finds this package by its entry points and imports nothing of it otherwise.

    plots/ live/ explore/   figures of plotly, the panel of a live run, other widgets
    headless/               notebooks without a browser
    measure/                calls timed in turn, the profile of a preset, what a machine offers
    suites/ claims/         what ``uavlab bench`` and ``uavlab claims`` measure
    lessons/                measurements and figures of single notebooks
"""

from typing import Any


def panel(run: Any) -> Any:
    """Show the panel of a run, or of the folder of one; see ``uavlab_lab.live.panel.panel``."""
    from uavlab_lab.live.panel import panel as show

    return show(run)
