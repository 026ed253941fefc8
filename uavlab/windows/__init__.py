"""Learning from logs: flights, simulated or read from files, and the batches of windows that come from them."""
