"""Configuration: meadow.toml, client.toml and server.toml as frozen dataclasses."""
