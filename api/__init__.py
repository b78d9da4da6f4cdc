"""The Python API: what `meadow simulate` and `meadow run` do, for scripts and notebooks."""
