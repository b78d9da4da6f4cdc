"""pfl-research with 10,000 clients of 5 to 50 digits, 1,000 of them in a round, an MLP 64-64-10.

Best with two processes: 0.69 (one process: 1.22).

    pfl_scale.py [--clients 10000] [--cohort 1000] [--rounds 5] [--threads 1] [--processes 2]
"""

from __future__ import annotations

import argparse

from pfl_federation import accuracy_on, arguments_of, dense_network, simulate
from workloads import DIGITS_MLP, dense_params, digits, scale_clients

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = arguments_of(__file__, parser)
    network = dense_network(dense_params(DIGITS_MLP))
    simulate(
        network,
        scale_clients(arguments.clients),
        arguments,
        cohort=arguments.cohort,
        rounds=arguments.rounds,
        accuracy=accuracy_on(network, digits()),
    )
