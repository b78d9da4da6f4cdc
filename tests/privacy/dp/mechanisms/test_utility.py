"""What distributed noise costs in accuracy: hardly more than the server's, for the same epsilon."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from meadow.privacy.dp.accounting.calibration import calibrate_noise
from meadow.privacy.dp.mechanisms.integer_sum import Law
from meadow.privacy.secagg.protocol.noisy_encoding import NoisyEncoding
from meadow.randomness.entropy import system_entropy

CLIENTS, ROUNDS, CLIP = 90, 8, 0.5
Reals = NDArray[np.float64]


def gradient(weights: Reals, images: Reals, labels: NDArray[np.int64]) -> Reals:
    """Return softmax regression's."""
    logits = images @ weights
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    return images.T @ shares / len(labels)


def accuracy(multiplier: float, *, law: Law | None, seed: int) -> float:
    """Return what digits are told apart by after noisy sums of the clients' deltas; without a law
    the server adds the noise."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    random = np.random.default_rng(seed)
    order = random.permutation(len(digits.target))
    images = np.hstack([digits.data[order] / 16, np.ones((len(order), 1))])
    labels = digits.target[order]
    parts = np.array_split(np.arange(1_400), CLIENTS)
    weights = np.zeros((65, 10))
    for number in range(ROUNDS):
        changes = []
        for part in parts:
            moved = weights.copy()
            for _ in range(3):
                moved -= 0.8 * gradient(moved, images[part], labels[part])
            change = (moved - weights).reshape(-1)
            changes.append(change * min(1, CLIP / np.linalg.norm(change)))
        if law is not None:
            made = NoisyEncoding(
                length=650,
                bits=24,
                clip_norm=CLIP,
                noise_multiplier=multiplier,
                clients=CLIENTS,
                noisy=CLIENTS,
                seed=bytes([number]),
                law=law,
            )
            numbers = [made.encode(each, 1, entropy=system_entropy) for each in changes]
            total, _ = made.decode(np.sum(numbers, axis=0, dtype=np.uint32))
        else:
            total = sum(changes) + random.normal(0, multiplier * CLIP, 650)
        weights = weights + total.reshape(65, 10) / CLIENTS
    return float(((images[1_400:] @ weights).argmax(axis=1) == labels[1_400:]).mean())


@pytest.mark.parametrize(
    ("source", "law"), [("distributed", "skellam"), ("distributed_gaussian", "discrete_gaussian")]
)
def test_utility_is_within_a_twentieth_of_the_servers_noise(source: str, law: Law) -> None:
    """Mean accuracy of four runs each; with six times the noise it is not."""
    budget = {"epsilon": 8.0, "delta": 1e-5, "rounds": ROUNDS, "probability": None}
    servers = calibrate_noise(**budget)  # type: ignore[arg-type]
    ours = calibrate_noise(**budget, source=source)  # type: ignore[arg-type]
    central = np.mean([accuracy(servers, law=None, seed=seed) for seed in range(4)])
    spread = np.mean([accuracy(ours, law=law, seed=seed) for seed in range(4)])
    noisier = np.mean([accuracy(6 * ours, law=law, seed=seed) for seed in range(2)])
    assert spread >= 0.95 * central
    assert noisier < 0.95 * central
