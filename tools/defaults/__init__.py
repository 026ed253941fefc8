"""Ordinary tasks that other people might set, on which the defaults of learners are tried."""
