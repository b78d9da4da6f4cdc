"""The Ray executor: groups of clients on the workers of a Ray cluster."""
