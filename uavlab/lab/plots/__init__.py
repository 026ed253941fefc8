"""Plotly figures; the picture of an environment is one file and one line here, or one use of ``flight.scene``."""

from uavlab.lab.plots import leader_follower as leader_follower
from uavlab.lab.plots import mapping as mapping
