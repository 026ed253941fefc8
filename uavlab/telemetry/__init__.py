"""Learning from flight logs: flights, windows, the network, its scores."""
