"""Random numbers: streams from one seed, seeded generators, unpredictable bytes."""
