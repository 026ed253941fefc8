"""Leader-follower path planning, batched over worlds."""
