"""Random numbers: streams from one seed, seeded generators, bytes that nobody foretells."""
