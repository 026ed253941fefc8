"""Replay: what was seen, kept where it is learned from."""
