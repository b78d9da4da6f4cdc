"""Telling somebody what has happened to the server: a webhook, or a command that gets a mail."""
