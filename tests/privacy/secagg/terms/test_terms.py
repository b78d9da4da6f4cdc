"""Terms and announcements: what is said is read back, and what differs is bound differently."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from meadow.errors import ConfigError, SecureAggregationError
from meadow.flower.messages import params_to_arrays
from meadow.privacy.secagg.terms.announcement import CERTIFICATE_BYTES_MAX, Announcement, bind
from meadow.privacy.secagg.terms.terms import (
    CLIENTS_MAX,
    METRIC_CHARS_MAX,
    METRICS_COUNT_MAX,
    SecureTerms,
)

TERMS = SecureTerms(value_bound=0.25, weight_max=100, metrics=("accuracy", "loss"))
KEYS = {node: bytes([place]) * 32 for place, node in enumerate((3, 7, 2**64 - 1))}
ADVERTISED = {node: bytes([place + 9]) * 160 for place, node in enumerate(KEYS)}
TOLD = Announcement(
    session=b"s" * 32, round=4, keys=KEYS, advertised=ADVERTISED, terms=TERMS, setup=b"u" * 32
)


def content(**config: Any) -> RecordDict:
    arrays = params_to_arrays({"w": np.arange(4.0, dtype=np.float32)})
    return RecordDict({"arrays": arrays, "config": ConfigRecord({"rate": 0.1, **config})})


@pytest.mark.parametrize("terms", [TERMS, SecureTerms(), SecureTerms(metrics=())], ids=str)
def test_an_announcement_is_read_back(terms: SecureTerms) -> None:
    """Every field, 64-bit node ids and absent bounds included."""
    told = replace(TOLD, terms=terms)
    assert Announcement.read(told.record()) == told


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": b"12345678"},
        {"keys": b"k"},
        {"keys": [b"k"] * 96},
        {"round": "1"},
        {"round": -1},
        {"nodes": b"\0" * 24},
        {"nodes": bytes(8 * (CLIENTS_MAX + 1))},
        {"metrics": 1},
        {"setup": b"short"},
        {"session": b"short"},
        {"certificates": ["a"]},
        {"certificates": [bytes(CERTIFICATE_BYTES_MAX + 1)]},
        {"metrics": "x" * (METRIC_CHARS_MAX + 1)},
        {"bits": 9007199254740992},
        {"bits": "32"},
        {"clip": "1"},
        {"corrupt": math.nan},
        {"group-size": 1 << 62},
        {"clip-norm": 1.0, "noise-multiplier": 1e-200, "metrics": ""},
    ],
    ids=str,
)
def test_a_malformed_announcement(fields: dict[str, Any]) -> None:
    """Is one typed error."""
    with pytest.raises(SecureAggregationError, match="cannot be read"):
        Announcement.read(ConfigRecord({**TOLD.record(), **fields}))


def test_what_a_session_is_bound_to() -> None:
    """Another run, category, configuration, model or terms is another binding."""
    base = bind(TOLD, run_id=1, category="train", group="4", content=content())
    assert base == bind(TOLD, run_id=1, category="train", group="4", content=content())
    other_arrays = content()
    other_arrays["arrays"] = params_to_arrays({"w": np.zeros(4, np.float32)})
    renamed = content()
    renamed["arrays"] = params_to_arrays({"v": np.arange(4.0, dtype=np.float32)})
    wider = replace(TOLD, terms=replace(TERMS, value_bound=0.5))
    others = [
        bind(TOLD, run_id=2, category="train", group="4", content=content()),
        bind(TOLD, run_id=1, category="evaluate", group="4", content=content()),
        bind(TOLD, run_id=1, category="train", group="4", content=content(rate=0.2)),
        bind(TOLD, run_id=1, category="train", group="4", content=content(rate=1)),
        bind(TOLD, run_id=1, category="train", group="4", content=other_arrays),
        bind(TOLD, run_id=1, category="train", group="4", content=renamed),
        bind(wider, run_id=1, category="train", group="4", content=content()),
        bind(replace(TOLD, round=5), run_id=1, category="train", group="4", content=content()),
    ]
    seen = {(each.model, each.configuration, each.round) for each in [base, *others]}
    assert len(seen) == len(others) + 1


@pytest.mark.parametrize("clients", [3, 10, 100])
def test_weights_have_as_much_room_as_there_is(clients: int) -> None:
    """Without a bound, the cohort decides: the sum is just below overflowing."""
    encoding = SecureTerms().plan(clients=clients, length=1).encoding
    assert clients * encoding.weight_max < 1 << 16 <= clients * (encoding.weight_max + 1) + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"metrics_max": 0.0},
        {"metrics": ("a", "a")},
        {"metrics": ("a\nb",)},
        {"metrics_max": 1e30},
        {"metrics": "ab"},
        {"metrics": (1,)},
        {"metrics": tuple(map(str, range(METRICS_COUNT_MAX + 1)))},
        {"bits": 33},
        {"bits": True},
        {"value_bits": 1.5},
        {"value_bound": None},
        {"dropout": 1.5},
        {"weight_max": 0},
        {"group_size": 2},
    ],
    ids=str,
)
def test_terms_that_cannot_be(wrong: dict[str, Any]) -> None:
    """Are refused when they are made."""
    with pytest.raises(ConfigError):
        SecureTerms(**wrong)
