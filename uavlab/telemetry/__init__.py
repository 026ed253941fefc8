"""Learning from flight logs: flights, windows, the forecaster and its scores."""
