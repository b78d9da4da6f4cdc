"""Flower's Ray simulation with 10,000 clients of 5 to 50 digits, 1,000 of them in a round.

The model is an MLP 64-64-10.

    flower_scale.py [--clients 10000] [--cohort 1000] [--rounds 3] [--cpus 1] [--threads 1]
"""

from __future__ import annotations

import argparse

from flower_federation import add_arguments, simulate
from workloads import scale_clients

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    add_arguments(parser)
    arguments = parser.parse_args()
    simulate(
        scale_clients,
        arguments,
        clients=arguments.clients,
        cohort=arguments.cohort,
        rounds=arguments.rounds,
    )
