"""pfl-research on scikit-learn's digits: all clients in every round, an MLP 64-64-10.

Best with two processes: 0.053 (one process: 0.089, with two threads: 0.099); with 1,000 clients
0.35 (0.60).

    pfl_digits.py [--clients 100] [--rounds 20] [--threads 1] [--processes 2]
"""

from __future__ import annotations

import argparse

from pfl_federation import accuracy_on, arguments_of, dense_network, simulate
from workloads import DIGITS_MLP, dense_params, digits, digits_clients

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = arguments_of(__file__, parser)
    network = dense_network(dense_params(DIGITS_MLP))
    simulate(
        network,
        digits_clients(arguments.clients),
        arguments,
        cohort=arguments.clients,
        rounds=arguments.rounds,
        accuracy=accuracy_on(network, digits()),
    )
