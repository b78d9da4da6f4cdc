"""The model and the data: softmax regression, and the digits that scikit-learn brings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Params = dict[str, Floats]

CLASSES = 10
PIXELS = 64
HOLDOUT = 360
"""So many examples belong to the server; the clients share the other 1,437."""


@cache
def _digits() -> tuple[Floats, Labels]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)


def server_data() -> tuple[Floats, Labels]:
    """Return the examples that no client has."""
    images, labels = _digits()
    return images[:HOLDOUT], labels[:HOLDOUT]


def client_data(node_config: Mapping[str, object]) -> tuple[Floats, Labels]:
    """Return one client's share: every n-th example, from its own number on."""
    index, count = _place(node_config)
    images, labels = _digits()
    return images[HOLDOUT + index :: count], labels[HOLDOUT + index :: count]


def _place(node_config: Mapping[str, object]) -> tuple[int, int]:
    for index, count in (("partition-id", "num-partitions"), ("site-index", "site-count")):
        if index in node_config and count in node_config:
            return int(str(node_config[index])), int(str(node_config[count]))
    raise KeyError('node config has no "partition-id" and "num-partitions"')


def initial_params() -> Params:
    """Return the params that training begins with."""
    return {
        "weight": np.zeros((PIXELS, CLASSES), dtype=np.float32),
        "bias": np.zeros(CLASSES, dtype=np.float32),
    }


def probabilities(params: Params, images: Floats) -> Floats:
    """Return what the model believes; shape (examples, classes)."""
    scores = images @ params["weight"] + params["bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


def train(
    params: Params,
    data: tuple[Floats, Labels],
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> Params:
    """Return the params after stochastic gradient descent on `data`."""
    images, labels = data
    generator = np.random.default_rng(seed)
    weight, bias = params["weight"].copy(), params["bias"].copy()
    for _ in range(epochs):
        order = generator.permutation(len(labels))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            error = probabilities({"weight": weight, "bias": bias}, images[batch])
            error[np.arange(len(batch)), labels[batch]] -= 1
            weight -= learning_rate / len(batch) * (images[batch].T @ error)
            bias -= learning_rate / len(batch) * error.sum(axis=0)
    return {"weight": weight, "bias": bias}


def evaluate(params: Params, data: tuple[Floats, Labels]) -> dict[str, float]:
    """Return the mean cross-entropy and the accuracy on `data`."""
    images, labels = data
    believed = probabilities(params, images)
    likelihood = believed[np.arange(len(labels)), labels]
    return {
        "loss": float(-np.log(np.maximum(likelihood, 1e-12)).mean()),
        "accuracy": float((believed.argmax(axis=1) == labels).mean()),
    }
