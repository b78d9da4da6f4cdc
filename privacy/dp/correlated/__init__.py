"""Correlated noise (DP-FTRL): a round takes back some of the noise of earlier ones."""
