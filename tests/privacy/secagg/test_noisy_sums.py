"""Secure sums with noise: planned down to the fewest survivors, and what clients refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from meadow.errors import ConfigError
from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.privacy.dp.mechanisms.integer_sum import Law
from meadow.privacy.secagg.terms.terms import ANSWERS, SecureTerms
from meadow.strategies.rounds.broadcast import Broadcast

from .arena import Arena, combined, reasons

SIZE = 6_000
CLIENTS = 8
CLIP, NOISE = 2.0, 1.5
TERMS = SecureTerms(corrupt=0.13, dropout=0.25, metrics=(), clip_norm=CLIP, noise_multiplier=NOISE)
PARAMS: dict[str, Any] = {
    "weight": np.ones((60, 100), np.float32),
    "steps": np.asarray(5, np.int64),
}


def idle_app() -> ClientApp:
    """Return a client that learns nothing, but for one param, by 1, and a counter."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        params = {k: np.array(v) for k, v in arrays_to_params(message.content["arrays"]).items()}
        params["weight"][0, 0] += 1
        params["steps"] += 1
        content = {"arrays": params_to_arrays(params), "metrics": MetricRecord({"num-examples": 9})}
        return Message(RecordDict(content), reply_to=message)

    return app


def order(nodes: list[int], **changes: Any) -> Broadcast:
    """Return an instruction that announces the noise of the terms."""
    said = {
        "server-round": 1,
        "dp-clip-norm": CLIP,
        "dp-clipping": "fixed",
        "dp-noise-multiplier": NOISE,
        "dp-noise": "distributed",
    }
    said = {name: value for name, value in {**said, **changes}.items() if value is not None}
    content = RecordDict({"arrays": params_to_arrays(PARAMS), "config": ConfigRecord(said)})
    return Broadcast(content, "train", nodes, group_id="1")


def run(terms: SecureTerms = TERMS, *, gone: int = 0, **changes: Any) -> list[Message]:
    """Return the replies of a round from which the last `gone` clients vanish."""
    arena = Arena(CLIENTS, app=idle_app())

    def lose(message: Message) -> Message | None:
        late = message.metadata.message_type in ANSWERS
        return None if late and message.metadata.src_node_id > CLIENTS - gone else message

    arena.wire.on_way_back = lose
    nodes = list(arena.wire.get_node_ids())
    return list(arena.secured(terms).send_and_receive(order(nodes, **changes)))


@pytest.mark.parametrize("law", ["skellam", "discrete_gaussian"])
@pytest.mark.parametrize("gone", [0, 2])
def test_the_sum_has_the_planned_noise(gone: int, law: Law) -> None:
    """With everybody there, and with as many gone as may be: never less than the multiplier.

    Two of six survivors' noise could be known to those who collude, so five have enough for all.
    """
    topology = TERMS.plan(clients=CLIENTS, length=SIZE).topology
    noisy, survivors = topology.survivors_min - topology.corrupt, CLIENTS - gone
    assert survivors >= topology.survivors_min and topology.corrupt == 1
    source = "distributed" if law == "skellam" else "distributed_gaussian"
    terms = replace(TERMS, noise_law=law)
    reply = combined(run(terms, gone=gone, **{"dp-noise": source}))
    mean = arrays_to_params(reply.content["arrays"])
    noise = (mean["weight"].astype(np.float64) - 1).reshape(-1)[1:] * survivors
    planned = NOISE * CLIP * (survivors / noisy) ** 0.5
    assert abs(noise.std() / planned - 1) < 5 / (2 * SIZE) ** 0.5 + 0.01
    assert noise.std() > 1.1 * NOISE * CLIP * (noisy / survivors) ** 0.5
    assert abs(noise.mean()) < 5 * planned / SIZE**0.5
    moved = (float(mean["weight"][0, 0]) - 1) * survivors
    assert abs(moved - survivors) < 6 * planned
    assert mean["steps"] == 5  # counters are not released
    assert reply.content["metrics"]["num-examples"] == survivors


def test_one_dropout_too_many_releases_nothing() -> None:
    """There is no sum whose noise is too little: every reply is an error."""
    topology = TERMS.plan(clients=CLIENTS, length=SIZE).topology
    found = reasons(run(gone=CLIENTS - topology.survivors_min + 1))
    assert sorted(found) == list(range(1, CLIENTS + 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"dp-noise-multiplier": 9.0},
        {"dp-noise-multiplier": None},
        {"dp-noise": "server"},
        {"dp-noise": "distributed_gaussian"},
        {"dp-clip-norm": 1.0},
    ],
)
def test_clients_refuse_sums_with_another_noise_than_announced(changes: dict[str, Any]) -> None:
    """What an owner's ledger counts is what the sum has."""
    found = reasons(run(**changes))
    assert len(found) == CLIENTS and "the terms of the sum have" in found[1]


def test_clients_refuse_sums_without_the_announced_noise() -> None:
    """Terms without noise, under an instruction that announces it."""
    found = reasons(run(SecureTerms(metrics=())))
    assert len(found) == CLIENTS and "the terms of the sum have (None, None, None)" in found[1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metrics": ("loss",)}, "must have no metrics"),
        ({"clip_norm": None}, "set both clip_norm and noise_multiplier"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be in"),
        ({"clip_norm": float("nan")}, "clip_norm must be"),
    ],
)
def test_terms_that_cannot_be(changes: dict[str, Any], says: str) -> None:
    """Metrics beside noisy sums, half of what noise needs, and numbers that are none."""
    parts = {"metrics": (), "clip_norm": 1.0, "noise_multiplier": 1.0, **changes}
    with pytest.raises(ConfigError, match=says):
        SecureTerms(**parts)


def test_a_modulus_that_is_too_small_is_refused_before_anybody_trains() -> None:
    """By the plan of every session, and so by the server when a run begins."""
    terms = SecureTerms(
        metrics=(), clip_norm=1.0, noise_multiplier=4.0, bits=12, corrupt=0.1, dropout=0.1
    )
    with pytest.raises(ConfigError, match="and 12 bits hold less than"):
        terms.plan(clients=20, length=SIZE)
