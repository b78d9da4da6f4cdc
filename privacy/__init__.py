"""Privacy: clipping, noise, accounting and secure aggregation, as pure functions."""
