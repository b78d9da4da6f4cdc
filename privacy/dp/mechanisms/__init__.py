"""Mechanisms: clipping on the clients, noise on either side."""
