"""What a session of Flower's SecAgg+ costs: its own functions, timed one by one and counted.

A whole session of Flower's would take minutes, nearly all of it in repeated calls. Each function
is therefore timed alone, in CPU seconds, and multiplied by how often Flower 1.41's
`secaggplus_mod` and `SecAggPlusWorkflow` call it in a session with the same neighbours, threshold
and dropouts. Its messages, serialised states and logs are left out, in its favour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_mod
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

__all__ = ["FlowerCost", "flower_cost", "flower_mask_s"]

MODULUS = 1 << 32
QUANTIZED = 1 << 22
CLIP = 8.0
SEED = bytes(range(32))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerCost:
    """One session: CPU seconds of a client and of the server, bytes of one masked vector."""

    client_s: float
    server_s: float
    vector_bytes: int


def flower_cost(
    *, clients: int, neighbours: int, threshold: int, gone: int, values: int
) -> FlowerCost:
    """Return the cost of a session in which `gone` clients vanish after they shared secrets.

    A dead client's masks with all its neighbours are made again, the dead ones among them, as
    the workflow does.
    """
    survivors, holders = clients - gone, neighbours + 1
    vector, key = _vector_seconds(values), _key_seconds()
    split_s = _split_s(SEED, threshold, holders) + _split_s(_private_pem(), threshold, holders)
    shares = max(threshold, round(holders * survivors / clients))
    client_s = (
        2 * key["pair"]
        + split_s
        + neighbours * (2 * key["agree"] + key["seal"] + key["open"])
        + vector["quantize"]
        + (neighbours + 1) * vector["mask"]
        + vector["modulo"]
        + vector["write"]
    )
    server_s = (
        survivors * vector["read and add"]
        + survivors * (_combine_s(SEED, shares) + vector["mask"])
        + gone * neighbours * (key["agree"] + vector["mask"])
        + 2 * vector["modulo"]
        + vector["dequantize"]
    )
    if gone:
        server_s += gone * _combine_s(_private_pem(), shares)
    masked = ndarray_to_bytes(np.zeros(values, np.int64))
    return FlowerCost(client_s=client_s, server_s=server_s, vector_bytes=len(masked))


def flower_mask_s(values: int) -> float:
    """Return the CPU seconds of making one mask of so many values and adding it."""
    return _vector_seconds(values)["mask"]


@cache
def _vector_seconds(values: int) -> dict[str, float]:
    """Return the seconds of what is done with vectors of so many values."""
    floats = np.random.default_rng(0).standard_normal(values, np.float32)
    numbers = pseudo_rand_gen(SEED, MODULUS, [(values,)])
    written = ndarray_to_bytes(numbers[0])
    return {
        "quantize": _seconds(lambda: quantize([floats], CLIP, QUANTIZED)),
        "mask": _seconds(
            lambda: parameters_addition(numbers, pseudo_rand_gen(SEED, MODULUS, [(values,)]))
        ),
        "modulo": _seconds(lambda: parameters_mod(numbers, MODULUS)),
        "write": _seconds(lambda: ndarray_to_bytes(numbers[0])),
        "read and add": _seconds(lambda: parameters_addition(numbers, [bytes_to_ndarray(written)])),
        "dequantize": _seconds(lambda: dequantize(numbers, CLIP, QUANTIZED)),
    }


@cache
def _key_seconds() -> dict[str, float]:
    """Return the seconds of making a key pair, agreeing on a key, sealing and opening shares."""
    private_pem, public_pem = _private_pem(), public_key_to_bytes(generate_key_pairs()[1])

    def agree() -> bytes:
        return generate_shared_key(
            bytes_to_private_key(private_pem), bytes_to_public_key(public_pem)
        )

    key = agree()
    shares = bytes(4 + 48), bytes(4 + 16 * (len(private_pem) // 16 + 1))
    plain = share_keys_plaintext_concat(1, 2, *shares)
    sealed = encrypt(key, plain)
    return {
        "pair": _seconds(generate_key_pairs, calls=9),
        "agree": _seconds(agree, calls=9),
        "seal": _seconds(lambda: encrypt(key, plain), calls=9),
        "open": _seconds(lambda: decrypt(key, sealed), calls=9),
    }


@cache
def _split_s(secret: bytes, threshold: int, holders: int) -> float:
    return _seconds(lambda: create_shares(secret, threshold, holders), calls=1)


@cache
def _combine_s(secret: bytes, shares: int) -> float:
    """Return the seconds of one secret's reconstruction from so many shares, all of them used."""
    held = create_shares(secret, 2, shares)
    return _seconds(lambda: combine_shares(held), calls=1)


@cache
def _private_pem() -> bytes:
    return private_key_to_bytes(generate_key_pairs()[0])


def _seconds(action: Callable[[], object], *, calls: int = 3) -> float:
    """Return the median CPU seconds of some calls."""
    times = []
    for _ in range(calls):
        began_s = time.process_time()
        action()
        times.append(time.process_time() - began_s)
    return median(times)
