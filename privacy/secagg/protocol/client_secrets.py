"""What one client keeps to itself during a session, and forgets at its end."""

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
        """With each neighbour, from the sealing keys."""
        self._shares: dict[int, bytes] = {}
        """By owner: a share of its seed, and one of its masking key."""

    def agree(self, neighbours: Mapping[int, Advertisement]) -> None:
        """Agree with each neighbour on what seals the shares between the two.

        Raises:
            SecureAggregationError: a public key is a point of low order.
        """
        for client, keys in neighbours.items():
            self._agreed[client] = self._keys.sealing.agree(keys.sealing, name=self._names[client])

    def sealed_shares(self, holders: Sequence[int], *, threshold: int) -> Iterator[bytes]:
        """Yield a share of both secrets for each holder but this client, which keeps its own."""
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
        """Keep the shares of another client's secrets.

        Raises:
            SecureAggregationError: they were changed, or are not for this client.
        """
        key = sealing_key(self._agreed[sender], self._context, sender, self._me)
        self._shares[sender] = unseal(key, sealed, name=self._names[sender])

    def masks(self, neighbours: Mapping[int, Advertisement]) -> list[Mask]:
        """Return this client's own mask, and the one that it shares with each neighbour.

        Source: Bonawitz et al. (2017), figure 4, round 2: added by the later of the two.
        """
        masks = [Mask(derive_key(self._keys.seed, self._context, Purpose.SELF_MASK, self._me), 1)]
        for other, keys in neighbours.items():
            agreed = self._keys.masking.agree(keys.masking, name=self._names[other])
            key = mask_key(agreed, self._context, self._me, other)
            masks.append(Mask(key, 1 if self._me > other else -1))
        return masks

    def give_away(self, owner: int, *, survived: bool) -> bytes:
        """Return the share of a survivor's seed, or of the masking key of a client that is gone.

        Whichever it is, the other one is forgotten.
        """
        pair = self._shares.pop(owner)
        return pair[:SHARE_BYTES] if survived else pair[SHARE_BYTES:]
