"""Partitions: how one data set is divided among clients, and what a site gets of it."""
