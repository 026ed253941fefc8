"""Simulated quadrotor flights: dynamics, controller, sampled fleets."""
