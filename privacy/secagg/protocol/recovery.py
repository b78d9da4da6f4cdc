"""Recovers secrets from shares, verifies them, and computes the masks to remove from a sum.

For a client in the sum that is its self-mask. For a client that shared its secrets and then
dropped out, they are the pair masks that its neighbours share with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ....errors import SecureAggregationError
from .binding import Roster
from .client_keys import Advertisement
from .graph import Graph, Members
from .keys import AgreementKeyPair, commit, derive_key
from .masks import Mask
from .shamir import combine
from .steps import Purpose, mask_key

__all__ = ["Recovery", "recover"]

Shares = Mapping[int, bytes]
"""The shares of one secret, by the index of their holder."""


def recover(
    shares: Shares, *, threshold: int, check: Callable[[bytes], bool], owner: str
) -> tuple[bytes, int | None]:
    """Return a secret, and the index of the holder whose share is wrong, if one is.

    If there are more shares than the threshold, one wrong share is found by omitting each holder
    in turn.

    Raises:
        SecureAggregationError: there are too few shares, or too many wrong ones.
    """
    holders = sorted(shares)
    if len(holders) < threshold:
        raise SecureAggregationError(
            f"only {len(holders)} shares of a secret of client {owner!r} were received, and "
            f"{threshold} are needed: nothing was unmasked"
        )
    spare = len(holders) > threshold
    for suspect in (None, *(holders[:threshold] if spare else ())):
        chosen = [holder for holder in holders if holder != suspect][:threshold]
        try:
            secret = combine({holder + 1: shares[holder] for holder in chosen})
        except SecureAggregationError:
            continue
        if check(secret):
            return secret, suspect
    raise SecureAggregationError(
        f"the shares of a secret of client {owner!r} do not match its commitment: the client, or "
        "some holders of its shares, did not follow the protocol; nothing was unmasked",
        suspect=owner,
    )


class Recovery:
    """The masks to remove from the sum of one session.

    Attributes:
        suspects: clients whose share of some secret was wrong.
    """

    def __init__(
        self,
        *,
        graph: Graph,
        context: bytes,
        roster: Roster,
        keys: Sequence[Advertisement],
        shared: Members,
        survivors: Members,
    ) -> None:
        self._graph, self._context, self._roster = graph, context, roster
        self._keys, self._shared, self._survivors = keys, shared, survivors
        self._suspects: set[int] = set()

    @property
    def suspects(self) -> list[str]:
        """The names of clients whose share of some secret was wrong."""
        return [self._roster.names[client] for client in sorted(self._suspects)]

    def masks(self, shares: Mapping[int, Shares]) -> list[Mask]:
        """Return the masks to add to the sum, from the shares of each client's secret.

        Raises:
            SecureAggregationError: a secret cannot be recovered.
        """
        masks: list[Mask] = []
        for client in np.flatnonzero(self._shared).tolist():
            if self._survivors[client]:
                masks.append(self._self_mask(client, shares[client]))
            else:
                masks.extend(self._pair_masks(client, shares[client]))
        return masks

    def _self_mask(self, client: int, shares: Shares) -> Mask:
        expected, owner = self._keys[client].commitment, self._roster.keys[client]
        seed = self._recover(client, shares, lambda secret: commit(secret, owner) == expected)
        return Mask(derive_key(seed, self._context, Purpose.SELF_MASK, client), -1)

    def _pair_masks(self, gone: int, shares: Shares) -> Iterator[Mask]:
        """Yield the inverse of the masks that survivors share with a dropped-out client."""
        expected = self._keys[gone].masking
        secret = self._recover(
            gone, shares, lambda secret: AgreementKeyPair.of(secret).public == expected
        )
        pair = AgreementKeyPair.of(secret)
        for other in self._graph.neighbours(gone):
            if self._survivors[other]:
                agreed = pair.agree(self._keys[other].masking, name=self._roster.names[other])
                key = mask_key(agreed, self._context, gone, other)
                yield Mask(key, -1 if other > gone else 1)  # the opposite of what `other` did

    def _recover(self, client: int, shares: Shares, check: Callable[[bytes], bool]) -> bytes:
        threshold = self._graph.topology.threshold
        trusted = {at: share for at, share in shares.items() if at not in self._suspects}
        secret, suspect = recover(
            trusted if len(trusted) >= threshold else shares,
            threshold=threshold,
            check=check,
            owner=self._roster.names[client],
        )
        if suspect is not None:
            self._suspects.add(suspect)
        return secret
