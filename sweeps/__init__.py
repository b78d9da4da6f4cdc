"""Sweeps: simulations of one app under many settings, side by side, and their comparison."""
