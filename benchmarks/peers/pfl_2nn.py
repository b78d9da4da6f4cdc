"""pfl-research with McMahan's 2NN on 5,000 MNIST images: 100 clients of 40, 10 of them in a round.

Trains 5 epochs a round until the test accuracy is reached (0.90 iid, 0.80 shards), evaluating
after every round, outside the timed part; `accuracy` has one value a round.
Best with two processes: 0.070 (one process: 0.110, with two threads: 0.120).

    pfl_2nn.py [--division iid|shards] [--rounds 200] [--learning-rate 0.1] [--threads 1]
        [--processes 2]
"""

from __future__ import annotations

import argparse

from pfl_federation import accuracy_on, arguments_of, dense_network, simulate
from workloads import LEARNING_RATE, MCMAHAN_2NN, dense_params, mnist, mnist_clients

ENOUGH = {"iid": 0.90, "shards": 0.80}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--division", choices=sorted(ENOUGH), default="iid")
    parser.add_argument("--rounds", type=int, default=200, help="at most this many")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    arguments = arguments_of(__file__, parser)
    network = dense_network(dense_params(MCMAHAN_2NN))
    train, test = mnist()
    simulate(
        network,
        mnist_clients(train, arguments.division),
        arguments,
        cohort=10,
        rounds=arguments.rounds,
        epochs=5,
        learning_rate=arguments.learning_rate,
        accuracy=accuracy_on(network, test),
        enough=ENOUGH[arguments.division],
    )
