"""The sections of meadow.toml: every key, its type, default, bounds and meaning.

docs/configuration.md is made from these files.
"""
