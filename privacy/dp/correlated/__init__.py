"""Correlated noise (DP-FTRL): a round's noise partly cancels the noise of earlier rounds."""
