"""Secure aggregation: the server learns the sum of the clients' vectors, and nothing else."""
