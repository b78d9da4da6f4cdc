"""The command `meadow`: one file a noun."""
