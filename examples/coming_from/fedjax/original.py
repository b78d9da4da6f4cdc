"""Federated averaging of softmax regression on digits, with FedJAX: the algorithm written out."""

import digits
import jax
import jax.numpy as jnp

jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 needs the name, which jax has since removed

import fedjax

optimizer = fedjax.optimizers.sgd(0.5)


def logits(params, batch):
    """Apply the model."""
    return batch["x"] @ params["weight"].T + params["bias"]


def losses(params, batch, rng):
    """Return the cross-entropy of each example."""
    shares = jax.nn.log_softmax(logits(params, batch))
    return -jnp.take_along_axis(shares, batch["y"][:, None], axis=1)[:, 0]


gradient = fedjax.grad(losses)


def client_init(params, rng):
    """Begin with the server's model."""
    return {"params": params, "optimizer": optimizer.init(params), "rng": rng}


def client_step(state, batch):
    """Make a step on a batch."""
    rng, used = jax.random.split(state["rng"])
    grads = gradient(state["params"], batch, used)
    optimizer_state, params = optimizer.apply(grads, state["optimizer"], state["params"])
    return {"params": params, "optimizer": optimizer_state, "rng": rng}


def client_final(start, state):
    """Send how far the model went."""
    return jax.tree_util.tree_map(jnp.subtract, state["params"], start)


train_each = fedjax.for_each_client(client_init, client_step, client_final)


def federated_averaging() -> fedjax.FederatedAlgorithm:
    """Go to the clients' mean, weighted by their examples."""

    def apply(params, clients):
        sizes = {name: len(data) for name, data, _ in clients}
        batches = [
            (name, [batch for _ in range(5) for batch in data.padded_batch(batch_size=1000)], rng)
            for name, data, rng in clients
        ]
        updates = ((update, sizes[name]) for name, update in train_each(params, batches))
        return fedjax.tree_util.tree_add(params, fedjax.tree_util.tree_mean(updates)), {}

    return fedjax.FederatedAlgorithm(init=lambda params: params, apply=apply)


if __name__ == "__main__":
    algorithm = federated_averaging()
    federated = fedjax.InMemoryFederatedData(
        {
            index: dict(zip("xy", digits.client(index), strict=True))
            for index in range(digits.CLIENTS)
        }
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(federated, digits.CLIENTS, seed=0)
    inputs, targets = digits.holdout()
    state = algorithm.init({"weight": jnp.zeros((10, 64)), "bias": jnp.zeros(10)})
    accuracies = []
    for _ in range(10):
        state, _ = algorithm.apply(state, sampler.sample())
        right = logits(state, {"x": inputs}).argmax(axis=1) == targets
        accuracies.append(float(right.mean()))
    digits.report(accuracies, state["weight"], state["bias"])
