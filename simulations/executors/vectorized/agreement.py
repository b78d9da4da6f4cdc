"""Checks that clients who were trained at once have the params that they would have alone.

A fast path is taken where it is known to be right; this is the second look, at two clients, once a
run. The stated tolerance is that of rounding in another order. Beyond it, a client is trained alone
again from params that differ in their last bits, and the difference is rounding's if one of two holds:

- The client at once is within the tolerance of one of these. Where two values of a max pooling are alike in
  all but their last bits, or a value before a ReLU is zero but for them, rounding decides whose gradient
  counts: there are several right results, far from each other.
- It is no further than last bits move one of the clients alone, several times over: some models magnify
  rounding itself (Adam divides a gradient that should be zero by its own size; a recurrent net over
  many steps).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from ....errors import AgreementError
from ....flower.messages import arrays_to_params, params_to_arrays
from ....strategies.rounds.broadcast import Broadcast
from ...population.clients import SimulatedClients
from ..contract import Executor

__all__ = ["ATOL", "RTOL", "check_agreement"]

RTOL, ATOL = 2e-4, 2e-5
"""How far a value may be from that of a client alone: relative, and absolute."""
MAGNIFIED_BY = (8, 8, 8, 8)
"""By how many units of its last bit a param is moved in each trial that measures what rounding grows to."""
DECIDED_BY = (1, 2, 4, 8) * 4
"""And in each later trial, which looks for the result that was found: the first ones may all have given the
other one of two."""
MAGNIFIED_MAX = 16.0
"""A distance may be so many times the one that the last bits make."""

Params = Mapping[str, NDArray[Any]]


def check_agreement(
    order: Broadcast,
    found: Mapping[int, Message],
    alone: Executor,
    population: SimulatedClients,
) -> None:
    """Compare the replies of a few clients to `order` with those that they give alone.

    What the clients keep is left as it was.

    Raises:
        AgreementError: they differ by more than rounding; it names the client and the tensor.
    """
    expected = _params_of(_run(order.to(list(found)), alone, population))
    found_params = {client: _of(found[client]) for client in expected}
    distances = {client: _distance(found_params[client], expected[client]) for client in expected}
    apart = {client: each for client, each in distances.items() if each[0] > 1}
    magnified = 0.0
    for number, bits in enumerate((*MAGNIFIED_BY, *DECIDED_BY)):
        if not apart:
            return
        first = number < len(MAGNIFIED_BY)
        moved = _moved(order.to(list(expected if first else apart)), bits, number)
        made = _params_of(_run(moved, alone, population))
        if first:
            grown = (_distance(params, expected[client])[0] for client, params in made.items())
            magnified = max(magnified, *grown, 0.0)
        for client, (distance, _) in list(apart.items()):
            is_one = client in made and _distance(found_params[client], made[client])[0] <= 1
            if is_one or distance <= MAGNIFIED_MAX * magnified:
                del apart[client]
    if not apart:
        return
    client, (distance, name) = max(apart.items(), key=lambda each: each[1][0])
    wide = np.abs(found_params[client][name].astype(np.float64) - expected[client][name])
    raise AgreementError(
        f"executor vectorized does not train this model as executor sequential does: after a round "
        f"{name!r} of client {client} is up to {wide.max():.2g} apart, {distance:.3g} times what rounding "
        "explains; use --executor sequential or processes, or set simulation.verify = false if you "
        "know why"
    )


def _run(order: Broadcast, alone: Executor, population: SimulatedClients) -> list[Message]:
    before = {client: population.packed_state(client) for client in order.clients}
    try:
        return list(alone.execute(order))
    finally:
        for client, kept in before.items():
            if population.packed_state(client) != kept:
                population.keep_packed_state(client, kept or population.no_client_state())


def _params_of(replies: list[Message]) -> dict[int, Params]:
    """Return the params by client; a client that fails when run alone has none."""
    return {reply.metadata.src_node_id: _of(reply) for reply in replies if not reply.has_error()}


def _of(reply: Message) -> Params:
    return arrays_to_params(reply.content.array_records["arrays"])


def _distance(found: Params, expected: Params) -> tuple[float, str]:
    """Return the largest distance of a client's params in tolerances, and the tensor that it is in."""
    furthest = 0.0, ""
    for name, values in expected.items():
        here, there = found[name].astype(np.float64), values.astype(np.float64)
        alike = (here == there) | (np.isnan(here) & np.isnan(there))
        with np.errstate(invalid="ignore"):
            tolerances = np.abs(here - there) / (ATOL + RTOL * np.abs(there))
        tolerances = np.where(alike, 0.0, np.nan_to_num(tolerances, nan=np.inf, posinf=np.inf))
        furthest = max(furthest, (float(tolerances.max(initial=0.0)), name))
    return furthest


def _moved(order: Broadcast, bits: int, number: int) -> Broadcast:
    """Return the instruction with params that are about so many of their last bits' sizes away."""
    generator = np.random.default_rng(number)
    content = RecordDict()
    for key, record in order.content.items():
        if isinstance(record, ArrayRecord):
            record = _moved_record(record, bits, generator)
        content[key] = record
    return Broadcast(
        content,
        order.message_type,
        order.clients,
        group_id=order.group_id,
        id_prefix=order.id_prefix,
    )


def _moved_record(record: ArrayRecord, bits: int, generator: np.random.Generator) -> ArrayRecord:
    moved = {}
    for name, values in arrays_to_params(record).items():
        if values.dtype.kind == "f":
            last_bit = 2.0 ** -(10 if values.dtype == np.float16 else 23)
            factors = 1 + bits * last_bit * generator.standard_normal(values.shape)
            values = np.asarray(np.multiply(values, factors), values.dtype)
        moved[name] = values
    return params_to_arrays(moved)
