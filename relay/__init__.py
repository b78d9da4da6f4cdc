"""A relay: a client of the server above it, and the server of the clients below it."""
