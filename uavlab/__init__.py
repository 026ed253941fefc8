"""uavlab: fast multi-UAV reinforcement learning, measured before it is believed."""

import os

# Idle OpenMP threads that spin starve a shared core; the variable must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
