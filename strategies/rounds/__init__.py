"""Rounds: selection of clients, checks of replies, the end of a round, and the state of a run."""
