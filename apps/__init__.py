"""Apps: folders with a meadow.toml or a plain Flower app, loaded and hashed."""
