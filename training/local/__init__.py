"""A task at one site: a ClientApp, its data, and what it answers."""
