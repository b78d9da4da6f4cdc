"""Simulation: many clients on one machine, with the same app and the same numbers."""
