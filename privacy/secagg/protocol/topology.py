"""The neighbours, thresholds and quorum of a session, chosen from the cohort's size.

Up to `COMPLETE_MAX` clients the graph is complete (Bonawitz et al., "Practical secure aggregation
for privacy-preserving machine learning", 2017). For more, the clients form a ring in a random
order, and each is the neighbour of the k / 2 clients on either side (a Harary graph, as in Bell
et al., "Secure single-server aggregation with (poly)logarithmic overhead", 2020; k and the
threshold as in Google's federated-compute), if that halves the number of neighbours. Otherwise
the graph stays complete up to `COMPLETE_LIMIT` clients.
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
"""The work of a complete graph grows with the square of the cohort."""
NEIGHBOURS_MAX = 1000
CLIENTS_MIN = 3
PRIVACY_BITS = 40
"""Secrecy fails with a probability of at most 2^-40, over all orders of the ring that are tried."""

SUCCESS_BITS = 20
"""Too many dropouts among a client's neighbours end a session with probability <= 2^-20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The numbers of a session's graph and thresholds.

    Attributes:
        clients: the cohort's size, n.
        corrupt: the number of clients that may collude with each other and a lying server.
        dropout: the number of clients that may drop out.
        ring: whether the graph is a ring; else it is complete.
        neighbours: the number of each client's neighbours; k in the ring.
        threshold: the number of shares that recover a secret; fewer reveal nothing.
        quorum: the number of clients that must sign the same survivors before anybody unmasks:
            more than (clients + corrupt) / 2, so that no two sets of survivors reach it.
        survivors_min: the fewest clients of a sum.
        window_min: the fewest present clients among any k / 2 consecutive ones of the ring: more
            than could all be corrupt, so that no choice of dropouts cuts the ring. 0 if complete.
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
            raise ConfigError(f"these numbers protect no client: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RingDegree:
    """The numbers of a ring: see `Topology`."""

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

    Without `complete_max`, the size from which the ring is used is computed. An adversary who can
    try 2^grinding_bits orders of the ring and choose the best is no more likely to succeed than
    one who can try only one order with grinding_bits = 0.

    Raises:
        ConfigError: no topology tolerates so many corrupt and lost clients.
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
    """Return the smallest degree that protects secrets and tolerates dropouts, and its threshold.

    With `semi_malicious`, as always in a session, a server cannot obtain both secrets of an honest
    client by sending different messages to its neighbours.

    Edge cases: None if the largest degree, `at_most`, is not enough.
    """
    largest = min(clients - 2, clients if at_most is None else at_most) // 2 * 2
    bits = PRIVACY_BITS + grinding_bits
    found = _degree(clients, corrupt, dropout, largest, semi_malicious, bits)
    if found is None:  # smaller degrees are not safer, and testing all of them takes long
        return None
    for degree in range(2, largest, 2):
        smaller = _degree(clients, corrupt, dropout, degree, semi_malicious, bits)
        if smaller is not None:
            return smaller
    return found


def _degree(
    clients: int, corrupt: int, dropout: int, degree: int, semi_malicious: bool, bits: int
) -> RingDegree | None:
    """Return the numbers of a ring of this degree, or None if it is not safe or can be cut."""
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
    """Return the complete graph's topology, whose threshold is the quorum."""
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
    """Return one more than half of the corrupt clients that two windows may contain together.

    A window has degree / 2 clients. The n^2 / 2 pairs of windows share half of the permitted
    failure probability.
    """
    bound = Fraction(2, clients * clients << (privacy_bits + 1))
    return smallest_rarely_above(clients, corrupt, degree, bound=bound) // 2 + 1


def _count(name: str, fraction: float, clients: int) -> int:
    if type(fraction) not in (int, float) or not 0 <= fraction < 1:
        raise ConfigError(f"{name} must be a fraction in [0, 1), got {fraction!r}")
    return floor(Fraction(str(fraction)) * clients)  # by decimal arithmetic: 0.29 of 100 is 29
