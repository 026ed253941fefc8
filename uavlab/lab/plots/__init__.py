"""Plotly figures. The picture of an environment is a function under ``uavlab.scene``, in a file imported here."""

from uavlab.lab.plots import leader_follower as leader_follower
from uavlab.lab.plots import mapping as mapping
from uavlab.lab.plots import observations as observations
from uavlab.lab.plots import pursuit as pursuit
from uavlab.lab.plots import spread as spread
from uavlab.lab.plots import target_assignment as target_assignment
