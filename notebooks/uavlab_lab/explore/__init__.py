"""Exploring in JupyterLab, beside a run that trains in a cell.

    compare_runs   learning curves with intervals, scores, and settings that differ, of runs or folders
    verdict        how far a run is and how good, what ails it, and how baselines do
    flight_of      a flight of the newest policy of a run, also while it trains

They take a run of this process or a folder, and change neither.
"""

from uavlab.core.extras import require

require("lab", "figures", "plotly", "ipywidgets")

from uavlab_lab.explore.flight import flight_of as flight_of
from uavlab_lab.explore.runs import compare_runs as compare_runs
from uavlab_lab.explore.verdict import verdict as verdict
