"""Exploring in JupyterLab, beside a run that trains in a cell.

    PresetPicker   presets, all settings of one, and fields for those to change: ``config()``, ``settings()``
    StageEditor    the stages of a curriculum as a table to edit: ``table()``, ``plan()``
    RunComparer    the runs below a folder to choose from and compare
    compare_runs   learning curves with intervals, scores, and settings that differ, of runs or folders
    verdict        how far a run is and how good, what ails it, and how baselines do
    flight_of      a flight of the newest policy of a run, also while it trains
    ClaimsBrowser  the ledger of claims, filtered, with verdicts

Functions take a run of this process or a folder, and change neither.
"""

from uavlab.core.extras import require

require("lab", "widgets", "plotly", "ipywidgets")

from uavlab_lab.explore.claims import ClaimsBrowser as ClaimsBrowser
from uavlab_lab.explore.flight import flight_of as flight_of
from uavlab_lab.explore.presets import PresetPicker as PresetPicker
from uavlab_lab.explore.runs import RunComparer as RunComparer
from uavlab_lab.explore.runs import compare_runs as compare_runs
from uavlab_lab.explore.stages import StageEditor as StageEditor
from uavlab_lab.explore.verdict import verdict as verdict
