"""The schema of settings: types, bounds, sources, and errors."""
