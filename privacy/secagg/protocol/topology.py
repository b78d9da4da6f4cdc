"""Who is masked against whom, and how many must agree: chosen from the cohort's size.

Up to `COMPLETE_MAX` clients everybody is everybody's neighbour (Bonawitz et al., "Practical
secure aggregation for privacy-preserving machine learning", 2017). Above, if that leaves each at
most half as many neighbours, the clients stand in a random order in a ring, and each is the
neighbour of the k / 2 before and behind it (a Harary graph, as in Bell et al., "Secure
single-server aggregation with (poly)logarithmic overhead", 2020; k and the threshold as Google's
federated-compute chooses them). Where it does not, the graph stays complete up to
`COMPLETE_LIMIT` clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor

from ....errors import ConfigError
from .shamir import POINTS_MAX
from .tails import disconnects, largest_rarely_below, smallest_rarely_above

__all__ = ["CLIENTS_MIN", "COMPLETE_MAX", "Topology", "choose_topology", "ring_degree"]

COMPLETE_MAX = 100
COMPLETE_LIMIT = 500
"""The work of everybody with everybody grows with the square of the cohort."""
NEIGHBOURS_MAX = 1000
CLIENTS_MIN = 3
PRIVACY_BITS = 40
"""Secrecy fails with a probability of 2^-40 at most, over all orders of the ring that are tried."""

SUCCESS_BITS = 20
"""Too many dropouts among one client's neighbours end a session with one of 2^-20 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The numbers that a session of one cohort obeys.

    Attributes:
        clients: the cohort's size, n.
        corrupt: so many clients may collude with each other and a lying server.
        dropout: so many clients may drop out.
        ring: whether neighbours are those in the ring, not everybody.
        neighbours: of each client; k in the ring.
        threshold: so many shares give a secret back, fewer say nothing.
        quorum: so many clients must sign the same survivors before anybody unmasks:
            more than (clients + corrupt) / 2, so that no two sets of survivors have it.
        survivors_min: a sum is of at least so many clients.
        window_min: so many of any k / 2 clients in a row of the ring must be there: more than
            could all be corrupt, so that no choice of dropouts cuts the ring. 0 if complete.
    """

    clients: int
    corrupt: int
    dropout: int
    ring: bool
    neighbours: int
    threshold: int
    quorum: int
    survivors_min: int
    window_min: int

    def __post_init__(self) -> None:
        holders = self.neighbours if self.ring else self.clients
        fair = (
            CLIENTS_MIN <= self.clients <= POINTS_MAX
            and 0 <= self.corrupt < self.clients
            and 2 <= self.threshold <= holders
            and 2 * self.quorum > self.clients + self.corrupt
            and self.clients - self.dropout >= self.survivors_min >= self.quorum
            and (self.ring or 2 * self.threshold > self.clients + self.corrupt)
            and (not self.ring or 2 * self.threshold > self.neighbours)
        )
        if not fair:
            raise ConfigError(f"these numbers do not protect anybody: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RingDegree:
    """What the ring needs: see `Topology`."""

    neighbours: int
    threshold: int
    window_min: int


def choose_topology(
    *,
    clients: int,
    corrupt: float,
    dropout: float,
    complete_max: int | None = None,
    grinding_bits: int = 0,
) -> Topology:
    """Return the topology of a cohort, for assumed fractions of corrupt and lost clients.

    Without `complete_max`, the size from which the ring is used is computed. An adversary who
    can try 2^grinding_bits orders of the ring and take the best succeeds no more often than one
    who can try none does with 0.

    Raises:
        ConfigError: no topology withstands so many.
    """
    if type(clients) is not int or not CLIENTS_MIN <= clients <= POINTS_MAX:
        raise ConfigError(f"clients must be a whole number in [3, {POINTS_MAX}], got {clients!r}")
    corrupt_clients = _count("corrupt", corrupt, clients)
    dropout_clients = _count("dropout", dropout, clients)
    quorum = (clients + corrupt_clients) // 2 + 1
    if clients - dropout_clients < quorum:
        raise ConfigError(
            f"{dropout_clients} of {clients} clients may not drop out when {corrupt_clients} may "
            f"collude with the server: {quorum} must stay; lower dropout ({dropout}) or corrupt "
            f"({corrupt})"
        )
    if clients <= (COMPLETE_MAX if complete_max is None else complete_max):
        return _complete(clients, corrupt_clients, quorum)
    most = min(NEIGHBOURS_MAX, (clients - 1) // 2) if complete_max is None else clients
    degree = ring_degree(
        clients, corrupt_clients, dropout_clients, grinding_bits=grinding_bits, at_most=most
    )
    if degree is not None:
        return _ring(clients, corrupt_clients, dropout_clients, quorum, degree)
    if complete_max is None and clients <= COMPLETE_LIMIT:
        return _complete(clients, corrupt_clients, quorum)
    raise ConfigError(
        f"no ring of {clients} clients with at most {most} neighbours withstands "
        f"{corrupt_clients} corrupt and {dropout_clients} lost ones; lower corrupt or dropout"
    )


@lru_cache(maxsize=64)
def ring_degree(
    clients: int,
    corrupt: int,
    dropout: int,
    *,
    semi_malicious: bool = True,
    grinding_bits: int = 0,
    at_most: int | None = None,
) -> RingDegree | None:
    """Return the smallest degree that keeps secrets and survives dropouts, and its threshold.

    With `semi_malicious`, as always in a session, no choice of what a server tells the
    neighbours of an honest client makes them give away both of its secrets.

    Edge cases: None if the largest degree, `at_most`, does not.
    """
    largest = min(clients - 2, clients if at_most is None else at_most) // 2 * 2
    bits = PRIVACY_BITS + grinding_bits
    found = _degree(clients, corrupt, dropout, largest, semi_malicious, bits)
    if found is None:  # a smaller one is not safer, and trying all of them takes long
        return None
    for degree in range(2, largest, 2):
        smaller = _degree(clients, corrupt, dropout, degree, semi_malicious, bits)
        if smaller is not None:
            return smaller
    return found


def _degree(
    clients: int, corrupt: int, dropout: int, degree: int, semi_malicious: bool, bits: int
) -> RingDegree | None:
    """Return what a ring of this degree needs, or None if it is not safe or falls apart."""
    if degree < 2 or disconnects(clients, corrupt + dropout, degree) * (1 << (bits + 1)) >= 1:
        return None
    secrecy = Fraction(1, clients << (bits + 1))
    success = Fraction(1, clients << SUCCESS_BITS)
    stay = clients - dropout
    least = smallest_rarely_above(clients, corrupt, degree, bound=secrecy)
    most = largest_rarely_below(clients, stay, degree, bound=success)
    if semi_malicious:
        least = (least + degree) // 2
    if least >= most:
        return None
    window_min = _window_min(clients, corrupt, degree, bits)
    usual = largest_rarely_below(clients, stay, degree // 2, bound=success)
    if semi_malicious and window_min > usual:
        return None
    return RingDegree(neighbours=degree, threshold=max(least + 1, 2), window_min=window_min)


def _complete(clients: int, corrupt: int, quorum: int) -> Topology:
    """Return the topology in which the quorum is the threshold too."""
    return Topology(
        clients=clients,
        corrupt=corrupt,
        dropout=clients - quorum,
        ring=False,
        neighbours=clients - 1,
        threshold=quorum,
        quorum=quorum,
        survivors_min=quorum,
        window_min=0,
    )


def _ring(clients: int, corrupt: int, dropout: int, quorum: int, degree: RingDegree) -> Topology:
    return Topology(
        clients=clients,
        corrupt=corrupt,
        dropout=dropout,
        ring=True,
        neighbours=degree.neighbours,
        threshold=degree.threshold,
        quorum=quorum,
        survivors_min=clients - dropout,
        window_min=degree.window_min,
    )


def _window_min(clients: int, corrupt: int, degree: int, privacy_bits: int) -> int:
    """Return more than half of what two windows of degree / 2 clients may have in corrupt ones.

    The n^2 / 2 pairs of windows share half of the permitted failures.
    """
    bound = Fraction(2, clients * clients << (privacy_bits + 1))
    return smallest_rarely_above(clients, corrupt, degree, bound=bound) // 2 + 1


def _count(name: str, fraction: float, clients: int) -> int:
    if type(fraction) not in (int, float) or not 0 <= fraction < 1:
        raise ConfigError(f"{name} must be a fraction in [0, 1), got {fraction!r}")
    return floor(Fraction(str(fraction)) * clients)  # 0.29 of 100 is 29, in spite of binary
