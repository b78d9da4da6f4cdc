"""A federation under random faults for as long as it is told: `make soak SECONDS=3600`."""
