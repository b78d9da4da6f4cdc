"""A client's history in the secure sums of a run, which prevents that it repeats a session or sum.

Guarantees: one session per round and category, so no context occurs twice, and no message of one
    session is valid in another.
    One masked vector per model and category, for the newest `MODELS_MAX` models: the difference of
    two sums over almost the same clients could be one client's vector.
Edge cases: a failed round is not begun again, nor a round with the model of an earlier round.
    Each run has its own history.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from ....errors import SecureAggregationError
from ..protocol import Binding

__all__ = ["MODELS_MAX", "Past"]

PAST = "meadow-secure-past"
DIGEST_BYTES = 16
MODELS_MAX = 256


class Past:
    """The rounds begun and the models masked, in a client's Context."""

    def __init__(self, state: RecordDict) -> None:
        if PAST not in state.config_records:
            state[PAST] = ConfigRecord({"masked": b""})
        self._record: Any = state.config_records[PAST]

    def require_new(self, category: str, binding: Binding) -> None:
        """Check that a session is new.

        Raises:
            SecureAggregationError: it would repeat a round, or a masked vector of the same model.
        """
        last = self._record.get(category, -1)
        if binding.round <= last:
            raise SecureAggregationError(
                f"round {binding.round} is refused: the newest that this client began is {last}, "
                "and a round that failed is not repeated"
            )
        masked: bytes = self._record["masked"]
        starts = range(0, len(masked), DIGEST_BYTES)
        if _digest(category, binding) in {masked[at : at + DIGEST_BYTES] for at in starts}:
            raise SecureAggregationError(
                "a vector of this model has already been in a secure sum: with a second one, the "
                "difference of two sums could be this client's vector"
            )

    def begin(self, category: str, binding: Binding) -> None:
        """Note that a session begins.

        Raises:
            SecureAggregationError: as `require_new`.
        """
        self.require_new(category, binding)
        self._record[category] = binding.round

    def mask(self, category: str, binding: Binding) -> None:
        """Note that a masked vector is about to leave."""
        masked: bytes = self._record["masked"] + _digest(category, binding)
        self._record["masked"] = masked[-MODELS_MAX * DIGEST_BYTES :]


def _digest(category: str, binding: Binding) -> bytes:
    return sha256(category.encode() + b"\0" + binding.model).digest()[:DIGEST_BYTES]
