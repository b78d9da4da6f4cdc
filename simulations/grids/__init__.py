"""Flower's Grid over simulated clients, with or without a virtual clock."""
