"""FedJAX on scikit-learn's digits: all clients in every round, an MLP 64-64-10, jitted.

As FedJAX's own examples do it: `fed_avg.federated_averaging` with SGD on both sides, on its jit
backend. Its stock batches (`shuffle_repeat_batch`) fill up a client's last batch with examples that
were used already; padded batches, whose padding is masked in the loss, do the work of the others.

    fedjax_digits.py [--clients 100] [--rounds 20]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from rounds import Rounds
from workloads import (
    BATCH_SIZE,
    DIGITS_MLP,
    LEARNING_RATE,
    Examples,
    dense_params,
    digits,
    digits_clients,
)

jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 needs the name that jax has since removed

import fedjax
from fedjax.algorithms import fed_avg

Params = list[tuple[jax.Array, jax.Array]]


class ShuffledPadded(fedjax.ClientDataset):
    """A client's data in shuffled batches of which the last is padded and masked."""

    generator = np.random.default_rng(1)

    def shuffle_repeat_batch(self, hparams: fedjax.ShuffleRepeatBatchHParams) -> Iterator[dict]:
        order = self.generator.permutation(len(self))
        shuffled = {name: values[order] for name, values in self.raw_examples.items()}
        return fedjax.ClientDataset(shuffled).padded_batch(batch_size=hparams.batch_size)


def logits(params: Params, inputs: jax.Array) -> jax.Array:
    """Apply the MLP."""
    (weight, bias), (last_weight, last_bias) = params
    return jax.nn.relu(inputs @ weight.T + bias) @ last_weight.T + last_bias


def losses(params: Params, batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
    """Return the cross-entropy of each example."""
    log_shares = jax.nn.log_softmax(logits(params, batch["x"]))
    return -jnp.take_along_axis(log_shares, batch["y"][:, None], axis=1)[:, 0]


def main() -> None:
    """Train, evaluate on all digits, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    clock = Rounds()
    algorithm = fed_avg.federated_averaging(
        fedjax.grad(losses),
        fedjax.optimizers.sgd(LEARNING_RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH_SIZE),
    )
    datasets = [ShuffledPadded({"x": x, "y": y}) for x, y in digits_clients(arguments.clients)]
    state = algorithm.init(jax.tree_util.tree_map(jnp.asarray, dense_params(DIGITS_MLP)))
    key = jax.random.key(0)
    clock.start()
    for _ in range(arguments.rounds):
        key, *keys = jax.random.split(key, len(datasets) + 1)
        cohort = [(name, data, keys[name]) for name, data in enumerate(datasets)]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)
        clock.end()
    clock.evaluated(accuracy(state.params, digits()))
    clock.report()


def accuracy(params: Params, examples: Examples) -> float:
    """Return the share of examples whose class the model names."""
    inputs, targets = examples
    return float((np.asarray(logits(params, inputs)).argmax(axis=1) == targets).mean())


if __name__ == "__main__":
    main()
