"""Informative mapping with a team of UAVs, batched over missions."""
