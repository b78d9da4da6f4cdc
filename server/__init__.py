"""The server: a daemon that holds connections and state, and one worker process a run."""
