"""The rules of meadow.toml: what is refused, and what a config stands for."""
