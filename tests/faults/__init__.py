"""Attacks over the real thing: a daemon, mutual TLS, a run worker, and clients that misbehave."""
