"""Learners: batches into better policies."""
