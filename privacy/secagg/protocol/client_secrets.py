"""The secrets of one client during a session; they are deleted at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ....randomness.entropy import Entropy
from .client_keys import Advertisement, ClientKeys
from .keys import derive_key, seal, unseal
from .masks import Mask
from .shamir import SHARE_BYTES, split
from .steps import Purpose, mask_key, sealing_key

__all__ = ["ClientSecrets"]


class ClientSecrets:
    """One client's keys, and the shares it holds for others."""

    def __init__(
        self,
        keys: ClientKeys,
        *,
        me: int,
        names: Sequence[str],
        context: bytes,
        entropy: Entropy,
    ) -> None:
        self._keys, self._me, self._names = keys, me, names
        self._context, self._entropy = context, entropy
        self._agreed: dict[int, bytes] = {}
        """The secret agreed on with each neighbour, from the sealing keys."""
        self._shares: dict[int, bytes] = {}
        """Owner -> a share of its seed, and one of its masking key."""

    def agree(self, neighbours: Mapping[int, Advertisement]) -> None:
        """Agree with each neighbour on the secret that seals the shares between the two.

        Raises:
            SecureAggregationError: a public key is a point of low order.
        """
        for client, keys in neighbours.items():
            self._agreed[client] = self._keys.sealing.agree(keys.sealing, name=self._names[client])

    def sealed_shares(self, holders: Sequence[int], *, threshold: int) -> Iterator[bytes]:
        """Yield the sealed shares of both secrets for each other holder; store this client's own."""
        points = [holder + 1 for holder in holders]
        seeds, keys = (
            split(secret, points=points, threshold=threshold, entropy=self._entropy)
            for secret in (self._keys.seed, self._keys.masking.secret)
        )
        for holder, of_seed, of_key in zip(holders, seeds, keys, strict=True):
            if holder == self._me:
                self._shares[holder] = of_seed + of_key
            else:
                key = sealing_key(self._agreed[holder], self._context, self._me, holder)
                yield seal(key, of_seed + of_key)

    def take_shares(self, sender: int, sealed: bytes) -> None:
        """Store the shares of another client's secrets.

        Raises:
            SecureAggregationError: the shares were changed, or sealed for another client.
        """
        key = sealing_key(self._agreed[sender], self._context, sender, self._me)
        self._shares[sender] = unseal(key, sealed, name=self._names[sender])

    def masks(self, neighbours: Mapping[int, Advertisement]) -> list[Mask]:
        """Return this client's self-mask, and its pair mask with each neighbour.

        Source: Bonawitz et al. (2017), figure 4, round 2: the client of the higher index adds it.
        """
        masks = [Mask(derive_key(self._keys.seed, self._context, Purpose.SELF_MASK, self._me), 1)]
        for other, keys in neighbours.items():
            agreed = self._keys.masking.agree(keys.masking, name=self._names[other])
            key = mask_key(agreed, self._context, self._me, other)
            masks.append(Mask(key, 1 if self._me > other else -1))
        return masks

    def give_away(self, owner: int, *, survived: bool) -> bytes:
        """Return the share of a survivor's seed, or of the masking key of a dropped-out client.

        The share of the other secret is deleted.
        """
        pair = self._shares.pop(owner)
        return pair[:SHARE_BYTES] if survived else pair[SHARE_BYTES:]
