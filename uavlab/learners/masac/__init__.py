"""Multi-agent soft actor-critic: batched, as a loop over agents, and through vmap."""
