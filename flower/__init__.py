"""The bridge to Flower: its messages, its grids, and what its public API leaves out."""
