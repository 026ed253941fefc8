"""From worlds to batches: off-policy through replay, on-policy by whole episodes."""
