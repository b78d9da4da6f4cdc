"""Accounting: the events that were released, and their epsilon."""
