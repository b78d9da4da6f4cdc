"""Simulated devices: speed, availability, and the virtual clock."""
