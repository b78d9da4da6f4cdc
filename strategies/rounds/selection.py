"""Whom to draw where not everybody is as good as another: by data, by loss, by utility.

Sources: Cho, Wang, Joshi, "Towards understanding biased client selection in federated learning"
(2022), power-of-choice with the losses that are known (rpow-d); Lai, Zhu, Madhyastha, Chowdhury,
"Oort: efficient federated learning via guided participant selection" (2021), algorithm 1, its
statistical utility; Ribero, Vikalo, de Veciana, "Federated learning under intermittent client
availability and time-varying communication constraints" (2022), algorithm 1, the greedy choice by
rates of participation; Chang, Balachandar et al., "Distributed deep learning networks among
institutions for medical imaging" (2018), cyclical transfer; Efraimidis, Spirakis, "Weighted random sampling with a reservoir" (2006).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...randomness.seeds import derive, spread
from ..algorithms.bounds import require_choice, require_number, require_whole
from ..algorithms.client_memory import ClientMemory, Known

__all__ = ["KINDS", "TAG_FORM", "Choose", "Selection", "is_tag", "select_cohort"]

KINDS = ("uniform", "examples", "power_of_choice", "utility", "least_often", "cyclic")
Choose = Callable[..., Any]
"""A cohort selection of an app's own: choose(clients, known, *, size, round_number, generator) returns
`size` of the clients. Shapes: `clients` (clients,), ascending int64; `known` has what they reported."""
CUTOFF = 0.95
"""Oort's c: whose utility is at least this part of the last one that fits may be drawn."""
CLIPPED = 0.95
"""Oort clips utilities to this quantile of them, against outliers."""
STALENESS = 0.1
"""Oort's weight of how long ago a client was drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """How a cohort is drawn among the clients that are there.

    Attributes:
        kind: "uniform": everybody alike. "examples": with a chance in proportion to the number of
            examples. "power_of_choice": `candidates` drawn by examples, and of those the ones with
            the largest losses. "utility": Oort's, by examples and loss, and by how long ago.
            "least_often": those of them that were drawn for the fewest rounds, so that who is there
            now and then is heard as often as others. "cyclic": one after another by their ids.
            Another one is the name of `choose`.
        tags: only clients that have all of these are drawn from; the grid sees to it.
        candidates: how many are looked at, per client that is drawn, > 1.
        exploration: the part of a cohort that is drawn among clients that never trained.
        separation: a client that was drawn may be drawn again so many rounds later, not before.
        participations_max: so often a client may be drawn in a run; None is no limit.
        choose: the selection of an app's own.
    """

    kind: str = "uniform"
    tags: tuple[str, ...] = ()
    candidates: float = 2.0
    exploration: float = 0.1
    separation: int = 1
    participations_max: int | None = None
    choose: Choose | None = None

    def __post_init__(self) -> None:
        if self.choose is None:
            require_choice("selection.kind", self.kind, KINDS)
        if wrong := [tag for tag in self.tags if not is_tag(tag)]:
            raise ConfigError(f"selection.tags has {wrong[0]!r}; {TAG_FORM}")
        require_number("selection.candidates", self.candidates, at_least=1)
        require_number("selection.exploration", self.exploration, at_least=0, at_most=1)
        require_whole("selection.min_separation", self.separation, at_least=1)
        if self.participations_max is not None:
            require_whole("selection.participations_max", self.participations_max, at_least=1)

    @property
    def remembers(self) -> bool:
        """Whether it goes by what happened in earlier rounds."""
        return self.kind != "uniform" or self.limits

    @property
    def limits(self) -> bool:
        """Whether clients that are there may not be drawn, because they were drawn before."""
        return self.separation > 1 or self.participations_max is not None

    def separated(
        self, present: Sequence[int], memory: ClientMemory, round_number: int
    ) -> Sequence[int]:
        """Return who of the clients may be drawn: all of them, unless it `limits`."""
        if not self.limits:
            return present
        ids = np.fromiter(present, np.int64)
        known = memory.of(ids)
        may = (known.times == 0) | (known.drawn <= round_number - self.separation)
        if self.participations_max is not None:
            may &= known.times < self.participations_max
        return [int(client) for client in ids[may]]


def select_cohort(
    present: Sequence[int],
    size: int,
    memory: ClientMemory,
    selection: Selection,
    *,
    seed: int,
    round_number: int,
) -> list[int]:
    """Draw `size` of the clients without replacement, ascending; all if there are fewer.

    A client of which nothing is known counts as the mean of the known ones by its examples, and
    has the largest loss of all.

    Guarantees: depends on the set of clients, the memory and the seed alone, as far as `choose` does.
    Raises:
        ConfigError: `choose` returns anything but `size` different clients that are there.
    """
    require_whole("size", size, at_least=1)
    ids = np.unique(np.fromiter(present, np.int64))
    if size >= len(ids):
        return [int(client) for client in ids]
    known = memory.of(ids)
    if selection.choose is not None:
        generator = np.random.default_rng(derive(seed, "own cohort", round_number))
        given = {"size": size, "round_number": round_number, "generator": generator}
        return _checked(selection.choose(ids, known, **given), ids, size, selection.kind)
    draws = _uniform(derive(seed, "cohort", round_number), ids)
    weights = _examples(known)
    if selection.kind == "examples":
        rows = _lightest(draws, weights, size)
    elif selection.kind == "power_of_choice":
        rows = _largest_loss(draws, known, size, round(size * selection.candidates))
    elif selection.kind == "utility":
        rows = _useful(draws, known, size, selection.exploration, round_number)
    elif selection.kind == "least_often":
        rows = np.lexsort((draws, known.times))[:size]
    elif selection.kind == "cyclic":
        rows = np.arange((round_number - 1) * size, round_number * size) % len(ids)
    else:
        rows = _lightest(draws, np.ones(len(ids)), size)
    return sorted(int(client) for client in ids[rows])


def _checked(chosen: Any, ids: NDArray[np.int64], size: int, kind: str) -> list[int]:
    """Return what an own selection has chosen, ascending."""
    clients = np.asarray(chosen)
    fault = ""
    if clients.dtype.kind not in "iu" or clients.ndim != 1:
        fault = f"{clients.dtype} {clients.shape}, not a list of clients"
    elif strangers := set(clients.tolist()) - set(ids.tolist()):
        fault = f"client {min(strangers)}, which is not there"
    elif len(set(clients.tolist())) != size or len(clients) != size:
        fault = f"{len(clients)} clients, {len(set(clients.tolist()))} different ones"
    if fault:
        raise ConfigError(
            f"selection.kind {kind!r} returned {fault}; return {size} different ones of `clients`"
        )
    return sorted(clients.tolist())


def _uniform(seed: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a number in (0, 1) for each client, which no other client changes."""
    return ((spread(seed, ids) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


def _examples(known: Known) -> NDArray[np.float64]:
    counted = known.examples[np.isfinite(known.examples)]
    mean = counted.mean() if len(counted) else 1.0
    return np.where(np.isfinite(known.examples), known.examples, mean)


def _lightest(
    draws: NDArray[np.float64], weights: NDArray[np.float64], size: int
) -> NDArray[np.intp]:
    """Draw without replacement: each next one with a chance in proportion to its weight."""
    with np.errstate(divide="ignore"):
        return np.argsort(-np.log(draws) / weights, kind="stable")[:size]


def _largest_loss(
    draws: NDArray[np.float64], known: Known, size: int, candidates: int
) -> NDArray[np.intp]:
    rows = _lightest(draws, _examples(known), max(size, candidates))
    losses = np.where(known.round[rows] > 0, np.nan_to_num(known.loss[rows], nan=0.0), np.inf)
    return rows[np.argsort(-losses, kind="stable")[:size]]


def _useful(
    draws: NDArray[np.float64], known: Known, size: int, exploration: float, number: int
) -> NDArray[np.intp]:
    """Draw by Oort's utility among those who have trained, and some who never did."""
    met, new = np.flatnonzero(known.round > 0), np.flatnonzero(known.round == 0)
    explored = min(len(new), max(round(exploration * size), size - len(met)))
    chosen_new = new[np.argsort(draws[new], kind="stable")[:explored]]
    wanted = size - explored
    if not wanted:
        return chosen_new
    useful = _examples(known)[met] * np.nan_to_num(known.loss[met], nan=0.0, posinf=0.0)
    useful = np.minimum(useful, np.quantile(useful, CLIPPED))
    useful = useful + np.sqrt(STALENESS * np.log(max(number, 2)) / known.round[met])
    useful = np.maximum(useful, np.finfo(np.float64).tiny)
    last = np.sort(useful)[-wanted]
    near = np.flatnonzero(useful >= CUTOFF * last)
    return np.concatenate(
        [chosen_new, met[near[_lightest(draws[met[near]], useful[near], wanted)]]]
    )


TAG_FORM = "a tag is 1 to 40 of a-z, 0-9, '.', '_', '-', the first a letter or a digit"
_TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


def is_tag(text: str) -> bool:
    """Return whether a text can be a tag."""
    return _TAG.fullmatch(text) is not None
