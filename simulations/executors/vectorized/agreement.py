"""Checks that clients who were trained at once have the params that they would have alone.

A fast path is taken where it is known to be right; this is the second look, at two clients, once a
run. The stated tolerance is that of rounding in another order. Some models magnify rounding
itself (Adam divides a gradient that should be zero by its own size; a recurrent net over many
steps): beyond the tolerance, the clients are trained alone once more from params that differ in their
last bits, and what that changes is allowed several times over. A few values of such a model are hit by
chance, so that is repeated with other last bits before a run fails.
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
LAST_BITS = 2.0**-20
"""How much params are changed, relative to each, to see what rounding grows to."""
SHAKES = 4
MAGNIFIED_MAX = 16.0
"""A distance may be so many times the one that the last bits make."""

Params = Mapping[str, NDArray[Any]]
Replies = Mapping[int, Params]


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
    clients = list(found)
    expected = _params_of(_run(order.to(clients), alone, population))
    distance, client, name = _furthest({c: _of(found[c]) for c in expected}, expected)
    if distance <= 1:
        return
    magnified = 0.0
    for number in range(SHAKES):
        shaken = _params_of(_run(_shaken(order.to(clients), number), alone, population))
        here, _, _ = _furthest(shaken, {c: expected[c] for c in shaken})
        magnified = max(magnified, here)
        if distance <= MAGNIFIED_MAX * magnified:
            return
    apart = np.abs(_of(found[client])[name] - expected[client][name].astype(np.float64)).max()
    raise AgreementError(
        f"executor vectorized does not train this model as executor sequential does: after a round "
        f"{name!r} of client {client} is up to {apart:.2g} apart, {distance:.3g} times what rounding "
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


def _furthest(found: Replies, expected: Replies) -> tuple[float, int, str]:
    """Return the largest distance in tolerances, and where it is."""
    furthest = 0.0, 0, ""
    for client, params in expected.items():
        for name, values in params.items():
            theirs = values.astype(np.float64)
            apart = np.abs(found[client][name].astype(np.float64) - theirs)
            allowed = ATOL + RTOL * np.abs(theirs)
            with np.errstate(invalid="ignore"):
                distance = float(np.nan_to_num(apart / allowed, nan=0.0).max(initial=0.0))
            furthest = max(furthest, (distance, client, name))
    return furthest


def _shaken(order: Broadcast, number: int) -> Broadcast:
    """Return the instruction with params that differ in their last bits, by another pattern for each
    number."""
    content = RecordDict()
    for key, record in order.content.items():
        content[key] = _moved(record, number) if isinstance(record, ArrayRecord) else record
    return Broadcast(
        content,
        order.message_type,
        order.clients,
        group_id=order.group_id,
        id_prefix=order.id_prefix,
    )


def _moved(record: ArrayRecord, number: int) -> ArrayRecord:
    moved = {}
    for name, values in arrays_to_params(record).items():
        if values.dtype.kind == "f":
            signs = np.where(np.arange(values.size) // (number + 1) % 2, LAST_BITS, -LAST_BITS)
            shaken = values * (1 + signs.reshape(values.shape))
            values = np.asarray(shaken, values.dtype)  # a product of one value alone is no array
        moved[name] = values
    return params_to_arrays(moved)
