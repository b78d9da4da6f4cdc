"""The plan of a secure sum: its topology and its encoding, computed before anything is sent."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from ....deprecated import warn_renamed
from ....errors import ConfigError
from .encoding import Encoding
from .noisy_encoding import NoisyEncoding
from .topology import Topology, choose_topology

__all__ = ["Minimum", "Plan", "plan_secure_sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The public parameters of a secure sum.

    Server and clients must have equal plans, and each computes its own: a client that accepted the
    server's plan would let the server choose how many attackers the sum withstands.
    """

    topology: Topology
    encoding: Encoding | NoisyEncoding

    def __post_init__(self) -> None:
        self.encoding.require_room(self.topology.clients)

    def to_bytes(self) -> bytes:
        """Return bytes that differ for different plans."""
        return repr(astuple(self.topology)).encode() + self.encoding.to_bytes()

    def describe(self) -> str:
        """Return a text on the dropouts and the collusion that the plan tolerates."""
        topology = self.topology
        against = f"{topology.neighbours} neighbours" if topology.ring else "all the others"
        return (
            f"tolerates {topology.dropout} of {topology.clients} clients dropping out and "
            f"{topology.corrupt} colluding with the server; each client is masked against "
            f"{against}, {topology.threshold} shares recover a secret, and a sum is of at least "
            f"{topology.survivors_min} clients"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """The least protection that a client accepts, for any plan of the server.

    Attributes:
        clients: the smallest cohort.
        survivors: the fewest clients whose sum may be revealed.
        corrupt: the number of colluding clients that the plan must tolerate.
    """

    clients: int = 3
    survivors: int = 2
    corrupt: int = 0

    def require(self, topology: Topology) -> None:
        """Check a plan's topology.

        Raises:
            ConfigError: the plan protects less.
        """
        for name, least, value in (
            ("the cohort", self.clients, topology.clients),
            ("the fewest clients in a sum", self.survivors, topology.survivors_min),
            ("the number of colluding clients withstood", self.corrupt, topology.corrupt),
        ):
            if value < least:
                raise ConfigError(f"{name} must be >= {least} for this client, got {value}")


def plan_secure_sum(
    *,
    clients: int,
    length: int,
    corrupt: float = 0.33,
    dropout: float = 0.3,
    bits: int = 32,
    value_bits: int = 16,
    weight_max: int = 1,
    value_bound: float = 1.0,
    complete_max: int | None = None,
    grinding_bits: int = 0,
    clip: float | None = None,
) -> Plan:
    """Return the plan of a secure sum of `clients` vectors of `length` values.

    `corrupt` and `dropout` are the fractions of clients that may collude with the server, and
    that may drop out; `clip` is the old name of `value_bound`, until 0.3. See `choose_topology` and `Encoding` for the rest.

    Raises:
        ConfigError: no plan is safe for these numbers, or a sum could overflow.
    """
    if clip is not None:
        warn_renamed("plan_secure_sum", "clip", "value_bound")
        value_bound = clip
    return Plan(
        topology=choose_topology(
            clients=clients,
            corrupt=corrupt,
            dropout=dropout,
            complete_max=complete_max,
            grinding_bits=grinding_bits,
        ),
        encoding=Encoding(
            length=length,
            bits=bits,
            value_bits=value_bits,
            weight_max=weight_max,
            value_bound=value_bound,
        ),
    )
