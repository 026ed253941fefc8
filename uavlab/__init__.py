"""uavlab: fast multi-UAV reinforcement learning, measured before it is believed."""

import os

# Idle OpenMP threads that spin starve a shared core; the variable must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Large tensors come in large pages where Linux grants them: fresh small ones cost three times what is written to them.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"
