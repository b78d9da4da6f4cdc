"""A client's nonce: drawn when it says who it is, and good for one announcement.

The ring of a large cohort follows from the nonces of all its clients. Who insists on its own
knows that nobody had seen the ring before it spoke.
"""

from __future__ import annotations

from hashlib import sha256

from flwr.app import ConfigRecord, RecordDict

from ..errors import SecureAggregationError
from ..privacy.entropy import Entropy
from ..privacy.secure_announcement import NONCE_BYTES

__all__ = ["draw_nonce", "spend_nonce"]

NONCE = "meadow-secure-nonce"


def draw_nonce(state: RecordDict, entropy: Entropy) -> bytes:
    """Return a new nonce and keep it, in the place of one that was not used."""
    nonce = sha256(b"meadow secure nonce 1\0" + entropy(NONCE_BYTES)).digest()
    state[NONCE] = ConfigRecord({"nonce": nonce})
    return nonce


def spend_nonce(state: RecordDict, announced: bytes) -> None:
    """Forget the nonce, if it is the one that is announced.

    Raises:
        SecureAggregationError: it is not, or there is none: the session was not made of what this
            client said last.
    """
    kept = state.config_records.get(NONCE)
    if kept is None or kept["nonce"] != announced:
        raise SecureAggregationError(
            "the announcement does not have the nonce that this client drew last: a session is "
            "begun once, after its clients have said who they are"
        )
    del state[NONCE]
