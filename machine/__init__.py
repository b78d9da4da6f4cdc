"""The machine: its accelerators, the limits of its processes, memory that processes share."""
