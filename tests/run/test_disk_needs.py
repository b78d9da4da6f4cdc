"""How much disk a run is said to take: by formula here, on a disk in tests/federation/test_disk.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meadow.config.client_config import RECEIVED_BYTES_MAX
from meadow.config.load import load_config
from meadow.config.rules.builders import build_algorithm
from meadow.config.sections.model import Config
from meadow.run.disk_needs import BESIDE_BYTES, disk_needs
from meadow.strategies.algorithms.algorithm import State

PARAMS = {"w": np.zeros((1000, 250), np.float32), "steps": np.zeros((), np.int64)}
MODEL = 1_000_008


def config_of(tmp_path: Path, *overrides: str) -> Config:
    (tmp_path / "meadow.toml").write_text("[run]\nrounds = 2\nmin_clients = 4\n")
    return load_config(tmp_path / "meadow.toml", overrides=list(overrides), environ={})


@pytest.mark.parametrize(
    ("settings", "server", "client"),
    [
        ((), (3 + 4) * MODEL, 6 * MODEL),
        (
            ("strategy.server_optimizer=adam",),
            # a checkpoint has the params and two moments, and the mean is a file beside
            3 * (MODEL + 2 * (MODEL - 4)) + 4 * MODEL + MODEL,
            6 * MODEL,
        ),
        (("strategy.server_learning_rate=0.5",), (3 + 4 + 1) * MODEL, 6 * MODEL),
    ],
    ids=["plain", "adam", "a smaller step"],
)
def test_what_a_round_takes(
    tmp_path: Path, settings: tuple[str, ...], server: int, client: int
) -> None:
    """Three checkpoints and the cohort's replies; a client has four instructions and two replies."""
    config = config_of(tmp_path, *settings)
    state = build_algorithm(config).init(PARAMS)
    needs = disk_needs(config, state, sent=state.params, clients=4)
    assert needs.server_bytes == pytest.approx(server + BESIDE_BYTES, abs=100)
    assert needs.client_bytes == client + BESIDE_BYTES
    relayed = disk_needs(config, state, sent=state.params, clients=0, relays=2)
    assert relayed.server_bytes == needs.server_bytes, "a relay's sum is in float64"


def test_other_encodings(tmp_path: Path) -> None:
    """What is packed each way takes what it is packed to, and is no checkpoint's file; what is masked has a sum's
    bits; params with something beside are a file of their own."""
    state = State(params=PARAMS)
    packed = disk_needs(
        config_of(tmp_path, "compression.upload=int8", "compression.download=int8"),
        state,
        clients=4,
    )
    assert packed.server_bytes - BESIDE_BYTES == pytest.approx(
        3 * MODEL + (4 + 2) * MODEL / 4, rel=0.02
    )
    assert packed.client_bytes - BESIDE_BYTES == pytest.approx(6 * MODEL / 4, rel=0.02)
    secure = config_of(tmp_path, "privacy.secure_aggregation.enabled=true")
    bits = secure.privacy.secure_aggregation.bits
    masked = disk_needs(secure, state, clients=4)
    assert masked.server_bytes - BESIDE_BYTES == pytest.approx(
        3 * MODEL + 4 * MODEL * bits / 32, rel=0.001
    )
    sent = {**PARAMS, "more": np.zeros(1000)}
    beside = disk_needs(config_of(tmp_path), replace(state), sent=sent, clients=4)
    assert beside.server_bytes - BESIDE_BYTES == 3 * MODEL + (4 + 2) * (MODEL + 8000)


def test_a_client_keeps_fewer_large_files(tmp_path: Path) -> None:
    """Beside an instruction it keeps what `policy.received_bytes_max` allows unless it says otherwise."""

    class Huge:
        nbytes = RECEIVED_BYTES_MAX - 5

    params: Any = {"w": Huge()}
    needs = disk_needs(config_of(tmp_path), State(params=params), clients=2)
    assert needs.client_bytes == (2 + 2) * Huge.nbytes + BESIDE_BYTES
