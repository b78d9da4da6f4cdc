"""An executor some of whose clients lie: it replaces what they answer to train instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from flwr.app import Message, MessageType
from numpy.typing import NDArray

from ...config.sections.model import Config
from ...flower.messages import arrays_to_params, params_to_arrays
from ...randomness.seeds import derive
from ...strategies.algorithms.algorithm import Params
from ...strategies.algorithms.server_optimizers import is_floating
from ..adversaries.attacks import ATTACKS, STRENGTHS
from .contract import Executor

__all__ = ["AdversarialExecutor", "with_adversaries"]

Reals = NDArray[np.float64]


def with_adversaries(executor: Executor, config: Config | None) -> Executor:
    """Return the executor with the adversaries that [simulation.adversaries] names, if it does."""
    chosen = None if config is None else config.simulation.adversaries
    if config is None or chosen is None or chosen.kind not in ATTACKS:
        return executor
    strength = STRENGTHS.get(chosen.kind, 1.0) if chosen.strength is None else chosen.strength
    return AdversarialExecutor(
        executor,
        kind=chosen.kind,
        honest=config.simulation.clients - chosen.count,
        strength=strength,
        seed=config.run.seed,
    )


class AdversarialExecutor:
    """Runs clients by another executor; those with a node id above `honest` are adversaries.

    An adversary's reply is its own but for the floating-point params. The attack knows the
    round's honest updates, all of them, so adversaries answer last. Its replies to anything but
    a train instruction are honest, and so are those to one that nobody honest answers.

    Guarantees: those of every executor; replies come in the order of the honest clients' ids.
    """

    def __init__(
        self, executor: Executor, *, kind: str, honest: int, strength: float, seed: int
    ) -> None:
        self.name = executor.name
        self.combines = executor.combines
        self._executor = executor
        self._kind = kind
        self._honest = honest
        self._strength = strength
        self._seed = seed

    def close(self) -> None:
        """Close the other executor."""
        self._executor.close()

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Run the clients; the adversaries' replies come last."""
        if not messages or messages[0].metadata.message_type != MessageType.TRAIN:
            yield from self._executor.execute(messages)
            return
        sent = arrays_to_params(next(iter(messages[0].content.array_records.values())))
        honest: dict[int, Reals] = {}
        held: list[Message] = []
        for reply in self._executor.execute(messages):
            client = reply.metadata.src_node_id
            if client > self._honest and not reply.has_error():
                held.append(reply)
                continue
            if not reply.has_error():
                honest[client] = _delta(sent, reply)
            yield reply
        if held and honest:
            rows = np.stack([honest[client] for client in sorted(honest)])
            for reply in held:
                self._replace(reply, sent, rows)
        yield from held

    def _replace(self, reply: Message, sent: Params, rows: Reals) -> None:
        metadata = reply.metadata
        stream = derive(self._seed, metadata.group_id, metadata.src_node_id, "adversary")
        generator = np.random.default_rng(stream)
        delta = ATTACKS[self._kind](rows, self._strength, generator)
        (name,) = reply.content.array_records
        own = arrays_to_params(reply.content.array_records[name])
        params, start = dict(own), 0
        for key, old in sent.items():
            if is_floating(old.dtype):
                part = delta[start : start + old.size].reshape(old.shape)
                params[key] = (old + part).astype(old.dtype)
                start += old.size
        reply.content[name] = params_to_arrays(params)


def _delta(sent: Params, reply: Message) -> Reals:
    """Return what a reply changes of the floating-point params, as one row."""
    params = arrays_to_params(next(iter(reply.content.array_records.values())))
    return np.concatenate(
        [
            (params[name].astype(np.float64) - old).reshape(-1)
            for name, old in sent.items()
            if is_floating(old.dtype)
        ]
    )
