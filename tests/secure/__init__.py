"""Tests of secure rounds: the wrapped grid and the wrapped client apps, together."""
