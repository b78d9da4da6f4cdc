"""What a secure sum of 1 M float32 values costs: seconds and bytes, of a client and the server.

All clients run in this process, one after the other; a client's seconds are the mean over them.
As many drop out as the plan tolerates, half of them after they shared their secrets, so that the
server has pair masks to take off. The yardstick from the same run is one mask of Flower's own
secure aggregation (`pseudo_rand_gen`, a Mersenne twister).

    python benchmarks/secure_sum.py [--clients 5 32 100 200] [--values 1000000]
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from harness.report import report

from meadow.privacy.entropy import system_entropy
from meadow.privacy.secagg import Binding, ClientSession, Roster, ServerSession, plan_secure_sum
from meadow.privacy.secagg.masks import Mask, add_masks

MASKS = 32


def main() -> None:
    """Time the masks alone, then whole sessions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 32, 100, 200])
    parser.add_argument("--values", type=int, default=1_000_000)
    arguments = parser.parse_args()
    ours_s, theirs_s = time_masks(arguments.values)
    rows = [time_session(clients, arguments.values) for clients in arguments.clients]
    report(
        "secure_sum",
        rows,
        {
            "mask_ms": round(1e3 * ours_s, 3),
            "mask_gb_per_s": round(4 * arguments.values / ours_s / 1e9, 2),
            "flower_mask_ms": round(1e3 * theirs_s, 3),
            "speedup_vs_flower": round(theirs_s / ours_s, 1),
        },
    )


def time_masks(values: int) -> tuple[float, float]:
    """Return the median seconds of adding one mask, Meadow's and Flower's."""
    total, masks = np.zeros(values, np.uint32), [Mask(bytes([n]) * 32, 1) for n in range(MASKS)]
    other = np.zeros(values, np.int64)
    times: tuple[list[float], list[float]] = ([], [])
    for seed in range(9):
        began_s = time.perf_counter()
        add_masks(total, masks)
        times[0].append((time.perf_counter() - began_s) / MASKS)
        began_s = time.perf_counter()
        other += pseudo_rand_gen(seed.to_bytes(32, "big"), 1 << 32, [(values,)])[0]
        times[1].append(time.perf_counter() - began_s)
    return median(times[0]), median(times[1])


def time_session(clients: int, values: int) -> dict[str, Any]:
    """Run one session, check its sum, and return what it cost."""
    corrupt, dropout = (0.33, 0.3) if clients <= 100 else (0.05, 0.05)
    plan = plan_secure_sum(clients=clients, length=values, corrupt=corrupt, dropout=dropout)
    keys = {f"site-{number:05}": Ed25519PrivateKey.generate() for number in range(clients)}
    roster = Roster.of({name: key.public_key().public_bytes_raw() for name, key in keys.items()})
    binding = Binding(session=b"benchmark" * 2, round=1, model=b"m" * 32, configuration=b"c" * 32)
    vector = np.random.default_rng(0).standard_normal(values, np.float32) / 8
    sessions = {
        name: ClientSession(
            plan=plan,
            me=name,
            signing_key=key,
            roster=roster,
            binding=binding,
            entropy=system_entropy,
        )
        for name, key in keys.items()
    }
    server = ServerSession(plan=plan, roster=roster, binding=binding)
    heard = dict.fromkeys(keys, b"")
    cost = {"client_s": 0.0, "server_s": 0.0, "sent": 0, "received": 0}
    for step in range(5):
        if step in (0, 2):
            heard = dict(list(heard.items())[(plan.topology.dropout + step // 2) // 2 :])
        for name, message in heard.items():
            answer, took_s = timed(say, sessions[name], step, message, vector)
            cost["client_s"] += took_s / len(heard)
            cost["server_s"] += timed(server.collect, name, answer)[1]
            cost["sent"] += len(answer) / len(heard)
            cost["received"] += len(message) / len(heard)
        if step < 4:
            heard, took_s = timed(server.close_round)
            cost["server_s"] += took_s
    result, took_s = timed(server.sum)
    np.testing.assert_allclose(result.vector / result.weight, vector, atol=2 / 2**15)
    topology = plan.topology
    return {
        "clients": clients,
        "gone": topology.clients - len(result.clients),
        "neighbours": topology.neighbours,
        "client s": round(cost["client_s"], 3),
        "server s": round(cost["server_s"] + took_s, 3),
        "of it unmasking": round(took_s, 3),
        "client sends MB": round(cost["sent"] / 1e6, 4),
        "beside the vector kB": round((cost["sent"] - plan.encoding.wire_bytes) / 1e3, 1),
        "client receives kB": round(cost["received"] / 1e3, 1),
    }


def say(session: ClientSession, step: int, message: bytes, vector: np.ndarray) -> bytes:
    """Return a client's answer."""
    if step == 0:
        return session.advertise()
    if step == 2:
        return session.mask(message, vector)
    return {1: session.share, 3: session.confirm, 4: session.unmask}[step](message)


def timed(action: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return what an action returns, and its seconds."""
    began_s = time.perf_counter()
    done = action(*arguments)
    return done, time.perf_counter() - began_s


if __name__ == "__main__":
    main()
