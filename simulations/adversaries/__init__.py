"""Simulated adversaries: clients that answer, or learn from, what they should not."""
