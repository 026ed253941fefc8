"""The environments; each registers itself when it is imported here."""

from uavlab.envs import leader_follower, mapping, pursuit, spread, target_assignment

__all__ = ["leader_follower", "mapping", "pursuit", "spread", "target_assignment"]
