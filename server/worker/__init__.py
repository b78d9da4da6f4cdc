"""The run worker: the process of one run, and its end of the daemon's connection."""
