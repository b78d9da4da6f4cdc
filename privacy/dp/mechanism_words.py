"""The description of each mechanism in a run's privacy claim."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MECHANISMS", "MechanismWords"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismWords:
    """A mechanism: its short name, what it releases, its noise, and who adds the noise."""

    name: str
    released: str
    noise: str
    adder: str


SUMS = "noisy sums of client updates"
UPDATES = "noisy updates of each client"
SHARES = (
    "the clients within secure sums, so that the server sees nothing else: the noise of the fewest "
    "honest survivors is enough"
)
ITSELF = "the client itself, so that nobody sees anything else of it"

MECHANISMS = {
    "server": MechanismWords(
        name="Gaussian",
        released=SUMS,
        noise="Gaussian noise",
        adder="the server, which is trusted",
    ),
    "distributed": MechanismWords(
        name="distributed Skellam",
        released=SUMS,
        noise="Skellam noise",
        adder=SHARES,
    ),
    "distributed_gaussian": MechanismWords(
        name="distributed discrete Gaussian",
        released=SUMS,
        noise="discrete Gaussian noise",
        adder=SHARES,
    ),
    "local_gaussian": MechanismWords(
        name="local Gaussian", released=UPDATES, noise="Gaussian noise", adder=ITSELF
    ),
    "local_laplace": MechanismWords(
        name="local Laplace", released=UPDATES, noise="Laplace noise", adder=ITSELF
    ),
}
