"""Rounds: whom to ask, what counts, when a round is over, and what a run remembers."""
