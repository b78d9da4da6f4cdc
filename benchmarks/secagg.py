"""What secure sums cost: CPU seconds, bytes and memory, of a client and the server.

All clients run in this process, one after the other; a client's seconds are the mean over those
that stay. Who drops out does so after sharing its secrets, when the server has most to do: all of
its pair masks are to be taken off. A session is planned for a third of corrupt clients and its
own dropouts, a tenth at least; above 100 clients that is the ring. What no plan tolerates is
skipped, and said. The server's time is split into `PHASES`: keys, shares, vectors, confirmations,
and unmasking with the sum itself. k is the number of each client's neighbours.

From the same run: Flower's SecAgg+ with the same neighbours, threshold and dropouts (its own
functions, a few calls of each, times how often it calls them: `harness/flower_secagg.py`), and
the keystream of AES-256 in counter mode, written into a buffer and not added to anything.

    python benchmarks/secagg.py [--clients 16 64 128] [--values 100000 1000000] [--quick]
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from harness.flower_secagg import FlowerCost, flower_cost, flower_mask_s
from harness.report import report
from harness.secure_sessions import PHASES, Cpu, Memory, run_session

from meadow.errors import ConfigError
from meadow.privacy.secagg.protocol import Plan, plan_secure_sum
from meadow.privacy.secagg.protocol.masks import BLOCK, Mask, add_masks
from meadow.privacy.secagg.protocol.topology import Topology

CORRUPT = 0.33
GONE = (0.0, 0.1, 0.3)
GONE_PLANNED_MIN = 0.1
GONE_IN_FIGURES = 0.1
MASKS = 32


def main() -> None:
    """Time the masks alone, then whole sessions, then measure the server's memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--values", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--quick", action="store_true", help="small: whether it works at all")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.clients, arguments.values = [5, 8, 12], [1_000, 20_000]
    cohorts, values = sorted(arguments.clients), max(arguments.values)
    figures = mask_figures(values)
    costs = [
        cost
        for clients in cohorts
        for size in sorted(arguments.values)
        for gone in GONE
        if (cost := session_cost(clients, size, gone))
    ]
    figures |= session_figures(costs, cohorts[len(cohorts) // 2], values)
    figures |= memory_figures(cohorts[0], cohorts[-1], values)
    report("secagg", [row_of(cost) for cost in costs], figures)


def mask_figures(values: int) -> dict[str, float]:
    """Return how fast masks are added, against the bare keystream and Flower's masks.

    The keystream is that of a whole vector at once, or block by block into one small buffer,
    whichever is faster.
    """
    total, masks = np.zeros(values, np.uint32), [Mask(bytes([n]) * 32, 1) for n in range(MASKS)]
    zeros, buffer = memoryview(bytes(4 * values)), bytearray(4 * values + 15)
    context = Cipher(algorithms.AES256(bytes(32)), modes.CTR(bytes(16))).encryptor()

    def by_blocks() -> None:
        for start in range(0, 4 * values, 4 * BLOCK):
            context.update_into(zeros[start : start + 4 * BLOCK], buffer)

    actions: dict[str, Callable[[], object]] = {
        "masks": lambda: add_masks(total, masks),
        "whole": lambda: context.update_into(zeros, buffer),
        "blocks": by_blocks,
    }
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(21):  # in turns: a busy machine slows all of them alike
        for what, action in actions.items():
            began_s = time.process_time()
            action()
            times[what].append(time.process_time() - began_s)
    mask_s = median(times["masks"]) / MASKS
    aes_s = min(median(times["whole"]), median(times["blocks"]))
    return {
        "mask_share_of_aes_ctr": round(aes_s / mask_s, 3),
        "mask_ms": round(1e3 * mask_s, 4),
        "mask_gb_per_s": round(4 * values / mask_s / 1e9, 2),
        "aes_ctr_gb_per_s": round(4 * values / aes_s / 1e9, 2),
        "mask_speedup_vs_flower": round(flower_mask_s(values) / mask_s, 1),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one session cost, and what one of Flower's with the same numbers does."""

    topology: Topology
    values: int
    gone_fraction: float
    gone: int
    client_s: float
    phases_s: tuple[float, ...]
    """The server's, in the order of `PHASES`."""
    sent_bytes: float
    flower: FlowerCost

    @property
    def server_s(self) -> float:
        """The server's CPU seconds, all phases."""
        return sum(self.phases_s)


def session_cost(clients: int, values: int, gone: float) -> Cost | None:
    """Run one session and return what it cost; None if no plan tolerates it."""
    plan = plan_or_none(clients, values, gone)
    if plan is None:
        return None
    cpu, topology, lost = Cpu(), plan.topology, int(gone * clients)
    sent_bytes = run_session(plan, lost, cpu)
    cost = Cost(
        topology=topology,
        values=values,
        gone_fraction=gone,
        gone=lost,
        client_s=cpu.seconds["client"] / (clients - lost),
        phases_s=tuple(cpu.seconds[phase] for phase in PHASES),
        sent_bytes=sent_bytes,
        flower=flower_cost(
            clients=clients,
            neighbours=topology.neighbours,
            threshold=topology.threshold,
            gone=lost,
            values=values,
        ),
    )
    tell_phases(cost)
    return cost


def row_of(cost: Cost) -> dict[str, object]:
    """Return a line of the table."""
    return {
        "clients": cost.topology.clients,
        "values": cost.values,
        "gone": cost.gone,
        "k": cost.topology.neighbours,
        "client s": round(cost.client_s, 4),
        "server s": round(cost.server_s, 4),
        "bytes a value": cost.sent_bytes / cost.values,
        "Flower client s": round(cost.flower.client_s, 3),
        "Flower server s": round(cost.flower.server_s, 2),
    }


def tell_phases(cost: Cost) -> None:
    """Print the server's milliseconds by phase: too many for the table."""
    phases = zip(PHASES, cost.phases_s, strict=True)
    said = ", ".join(f"{phase} {1e3 * phase_s:.3g}" for phase, phase_s in phases)
    size = f"{cost.topology.clients} clients, {cost.values} values, {cost.gone} gone"
    print(f"{size}: server ms: {said}", flush=True)


def session_figures(costs: list[Cost], clients: int, values: int) -> dict[str, float]:
    """Return the figures of one cohort's session with a tenth of dropouts, if there was one."""
    for cost in costs:
        asked = cost.topology.clients, cost.values, cost.gone_fraction
        if asked == (clients, values, GONE_IN_FIGURES):
            return {
                "clients": clients,
                "values": values,
                "client_s": round(cost.client_s, 4),
                "server_s": round(cost.server_s, 4),
                **{
                    f"server_{phase}_s": round(phase_s, 4)
                    for phase, phase_s in zip(PHASES, cost.phases_s, strict=True)
                },
                "bytes_a_parameter": round(cost.sent_bytes / values, 4),
                "flower_bytes_a_parameter": round(cost.flower.vector_bytes / values, 4),
                "flower_client_s": round(cost.flower.client_s, 3),
                "flower_server_s": round(cost.flower.server_s, 3),
                "client_speedup_vs_flower": round(cost.flower.client_s / cost.client_s, 1),
                "server_speedup_vs_flower": round(cost.flower.server_s / cost.server_s, 1),
            }
    return {}


def memory_figures(least: int, most: int, values: int) -> dict[str, float]:
    """Return how the server's peak memory grows from the smallest cohort to the largest.

    What Python and NumPy allocate in the server's calls; a client's message is not counted.
    """
    peaks_mb = []
    for clients in (least, most):
        plan = plan_or_none(clients, values, GONE_IN_FIGURES)
        if plan is None:
            return {}
        memory = Memory()
        tracemalloc.start()
        run_session(plan, int(GONE_IN_FIGURES * clients), memory)
        tracemalloc.stop()
        peaks_mb.append(memory.peak_bytes / 1e6)
    return {
        "server_peak_mb": round(peaks_mb[1], 2),
        "server_growth_mb": round(peaks_mb[1] - peaks_mb[0], 3),
        "server_growth_accumulators": round((peaks_mb[1] - peaks_mb[0]) / (4e-6 * values), 3),
        f"server_growth_{least}_to_{most}": round(peaks_mb[1] / peaks_mb[0], 3),
    }


def plan_or_none(clients: int, values: int, gone: float) -> Plan | None:
    """Return a plan that tolerates the dropouts; None, and say so, if there is none."""
    try:
        planned = max(gone, GONE_PLANNED_MIN)
        return plan_secure_sum(clients=clients, length=values, corrupt=CORRUPT, dropout=planned)
    except ConfigError as error:
        print(f"skipped: {clients} clients, {gone:.0%} dropouts: {error}")
        return None


if __name__ == "__main__":
    main()
