"""Plotly figures. The picture of an environment is a function under ``uavlab.scene``, in a file imported here."""

from uavlab.core.extras import require

require("lab", "figures", "plotly")

from uavlab_lab.plots import leader_follower as leader_follower
from uavlab_lab.plots import mapping as mapping
from uavlab_lab.plots import observations as observations
from uavlab_lab.plots import pursuit as pursuit
from uavlab_lab.plots import spread as spread
from uavlab_lab.plots import target_assignment as target_assignment
