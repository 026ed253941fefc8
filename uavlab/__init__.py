"""uavlab: batched multi-UAV reinforcement learning with torch, and measurements of each of its optimizations."""

import os

# Idle OpenMP threads that spin starve a shared core; the variable must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Use huge pages for large tensors where Linux allows it: page faults of small ones cost three times the write itself.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"
