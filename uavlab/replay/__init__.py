"""Replay: the transitions that off-policy learners draw their batches from."""
