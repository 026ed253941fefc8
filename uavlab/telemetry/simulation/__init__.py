"""Simulated quadrotor flights: dynamics, controller, random flights."""
