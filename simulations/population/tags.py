"""Which simulated clients have the tags of `selection.tags`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...config.sections.model import Config
from ...errors import ConfigError
from ...randomness.seeds import derive, spread
from ...strategies.rounds.selection import TAG_FORM, is_tag

__all__ = ["Tagged", "tagged_of"]

Ids = NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """The clients that have all tags of `selection.tags`.

    Guarantees: whether a client has a tag depends on the seed, the tag and the client alone.
    """

    shares: Mapping[str, float]
    """The tags asked for: the share of the clients that has each."""
    seed: int

    def has(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which of these clients have all the tags."""
        met = np.ones(len(ids), bool)
        for tag, share in self.shares.items():
            draws = spread(derive(self.seed, "tag", tag), np.asarray(ids, np.uint64))
            met &= (draws >> np.uint64(11)).astype(np.float64) < share * 2.0**53
        return met


def tagged_of(config: Config | None) -> Tagged | None:
    """Return whom [selection] lets take part by [simulation]'s tags; None for everybody.

    Raises:
        ConfigError: [simulation] does not define a tag of the selection, or has a malformed one.
    """
    if config is None or not config.selection.tags:
        return None
    shares = dict(_shared(text) for text in config.simulation.tags)
    if unknown := [tag for tag in config.selection.tags if tag not in shares]:
        raise ConfigError(
            f"selection.tags asks for {unknown[0]!r}, and simulation.tags does not say how many "
            f'clients have it; add "{unknown[0]}=0.5" for every second one'
        )
    wanted = {tag: shares[tag] for tag in config.selection.tags}
    tagged = Tagged(shares=wanted, seed=config.run.seed)
    found = int(tagged.has(np.arange(1, config.simulation.clients + 1)).sum())
    if found < config.run.min_clients:
        raise ConfigError(
            f"{found} of {config.simulation.clients} simulated clients have the tags of "
            f"selection.tags, and a round needs run.min_clients = {config.run.min_clients}; raise "
            "the shares in simulation.tags, or simulation.clients"
        )
    return tagged


def _shared(text: str) -> tuple[str, float]:
    tag, _, share = text.partition("=")
    try:
        number = float(share)
    except ValueError:
        number = -1.0
    if not is_tag(tag) or not 0 <= number <= 1:
        raise ConfigError(
            f'simulation.tags must be a tag and the share that has it, as "gpu=0.3", got {text!r}; '
            f"{TAG_FORM}"
        )
    return tag, number
