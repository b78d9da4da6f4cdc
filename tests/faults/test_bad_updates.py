"""Cases 13 to 16: updates that must not count, in real rounds with two honest clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .arena import SLOTS, Arena, Played
from .live_server import LiveServer
from .raw_client import RawClient

ALONE = [1.0, 1.0, 0, 0, 0, 0, 0, 0]
"""The honest clients counted once each, and nobody else."""
Params = dict[str, np.ndarray]


def refused_in(played: Played, mallory: RawClient, *, field: str, reason: str) -> None:
    """Make sure that only the honest counted, and that the refusal names everything."""
    assert played.counted == ALONE
    told = played.told("update_refused")
    assert (told["round"], told["client"]) == (played.number, mallory.node_id)
    assert field in told["field"], told
    assert reason in told["reason"] and "\n" not in told["reason"], told


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(arena: Arena, mallory: RawClient, value: float) -> None:
    """One NaN or infinity in an update, and that client is refused; the round goes on."""
    played = arena.play((mallory, lambda c, i: c.update(i.id, **arena.one_hot(2, value))))
    refused_in(played, mallory, field="'slots'", reason="not finite")


def test_not_finite_metrics(arena: Arena, mallory: RawClient) -> None:
    """A loss that is NaN or beyond all numbers says nothing, and poisons no mean."""
    said = {"num-examples": 1, "loss": float("nan"), "accuracy": 1.7e308}
    played = arena.play((mallory, lambda c, i: c.update(i.id, said, **arena.one_hot(2))))
    assert played.counted == [1, 1, 1, 0, 0, 0, 0, 0]
    assert played.told("round_committed")["train"] == {"accuracy": None, "loss": None}


def other(change: Callable[[Params], object]) -> Callable[[Params], Params]:
    """Return what spoils the params."""

    def spoil(params: Params) -> Params:
        change(params)
        return params

    return spoil


MISSHAPEN = {
    "shape": (
        other(lambda p: p.update(slots=p["slots"][:4])),
        "'slots'",
        f"must be float32 ({SLOTS},)",
    ),
    "rank": (
        other(lambda p: p.update(slots=p["slots"][None])),
        "'slots'",
        f"must be float32 ({SLOTS},)",
    ),
    "turned": (other(lambda p: p.update(counts=p["counts"].T.copy())), "'counts'", "(3, 2)"),
    "empty": (other(lambda p: p.update(slots=p["slots"][:0])), "'slots'", "is float32 (0,)"),
    "double": (other(lambda p: p.update(slots=p["slots"].astype(float))), "'slots'", "is float64"),
    "whole": (other(lambda p: p.update(slots=p["slots"].astype(int))), "'slots'", "is int64"),
    "missing": (other(lambda p: p.pop("counts")), "'counts'", "is missing"),
    "extra": (other(lambda p: p.update(more=p["slots"])), "'more'", "is not one of the model's"),
    "renamed": (other(lambda p: p.update(slotz=p.pop("slots"))), "'slots'", "is missing"),
    "none": (other(lambda p: p.clear()), "'counts'", "is missing"),
}


@pytest.mark.parametrize("case", MISSHAPEN)
def test_misshapen(arena: Arena, mallory: RawClient, case: str) -> None:
    """Tensors of another shape, dtype or name, too many or too few: refused, the field named."""
    spoil, field, reason = MISSHAPEN[case]
    played = arena.play((mallory, lambda c, i: c.update(i.id, **spoil(arena.one_hot(2)))))
    refused_in(played, mallory, field=field, reason=reason)


EXAMPLES: dict[str, Any] = {
    "zero": 0,
    "negative": -5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "huge": 10**18,
    "huge float": 1e18,
    "list": [1, 1],
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_examples(arena: Arena, mallory: RawClient, case: str) -> None:
    """A number of examples that is none is refused; it never counts as 1 in silence."""
    said = {"num-examples": EXAMPLES[case]}
    played = arena.play((mallory, lambda c, i: c.update(i.id, said, **arena.one_hot(2))))
    refused_in(played, mallory, field="num-examples", reason="must be a number > 0")


def test_examples_missing(arena: Arena, mallory: RawClient) -> None:
    """An update that does not say how many examples it is from is refused."""
    played = arena.play((mallory, lambda c, i: c.update(i.id, {}, **arena.one_hot(2))))
    refused_in(played, mallory, field="num-examples", reason="is missing")


def test_stands_for_others(arena: Arena, mallory: RawClient) -> None:
    """A client that claims to stand for the others, too, counts for itself alone."""
    ids = [mallory.node_id, *(client.node_id for client in arena.honest)]
    said = {"num-examples": 1, "combined-clients": ids}
    played = arena.play((mallory, lambda c, i: c.update(i.id, said, **arena.one_hot(2))))
    assert played.clients == 3
    assert played.counted == [1, 1, 1, 0, 0, 0, 0, 0]


def test_norm_rejected(arena: Arena, mallory: RawClient) -> None:
    """An update a million times too long is refused, where the run says so."""
    played = arena.play((mallory, lambda c, i: c.update(i.id, **arena.one_hot(2, 1e6))))
    refused_in(played, mallory, field="update", reason="norm must be <= 100")


@pytest.fixture(scope="module")
def clipping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """A run that clips updates to a norm of 2."""
    folder = tmp_path_factory.mktemp("clipping")
    settings = ("run.update_norm_max=2", "run.update_norm_policy=clip")
    with (
        closing(LiveServer(folder / "server")) as live,
        closing(Arena(live, folder / "b", *settings)) as made,
    ):
        yield made


def test_norm_clipped(clipping: Arena, tmp_path: Path) -> None:
    """An update a million times too long moves the model no further than the limit."""
    mallory = RawClient(clipping.server, "mallory", tmp_path)
    mallory.connect()
    played = clipping.play((mallory, lambda c, i: c.update(i.id, **clipping.one_hot(2, 1e6))))
    told = played.told("update_clipped")
    assert (told["round"], told["client"]) == (played.number, mallory.node_id)
    assert told["norm"] == pytest.approx(1e6) and told["norm_max"] == 2
    assert played.counted == [1, 1, 2, 0, 0, 0, 0, 0]
    mallory.close()
