"""Flower's Ray simulation on scikit-learn's digits: all clients in every round, an MLP 64-64-10.

Median seconds a round, Flower 1.41.0, Ray 2.55.1, two virtual cores (AMD EPYC): 0.77; as it comes
(--cpus 2) 0.95; with 1,000 clients 12.

    flower_digits.py [--clients 100] [--rounds 20] [--cpus 1] [--threads 1]
"""

from __future__ import annotations

import argparse

from flower_federation import add_arguments, simulate
from workloads import digits_clients

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    add_arguments(parser)
    arguments = parser.parse_args()
    clients = arguments.clients
    simulate(
        digits_clients,
        arguments,
        clients=clients,
        cohort=clients,
        rounds=arguments.rounds,
    )
