"""What a round is said to cost is what one costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meadow.apps.folder import App
from meadow.errors import ConfigError
from meadow.run.disk_needs import BESIDE_BYTES
from meadow.server.tools.round_plan import AccessLink, round_costs
from meadow.simulations.run import simulate

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
FLOWER_APP = Path(__file__).parents[3] / "examples" / "plain_flower"
CLIENTS = 4
PLAIN = ("simulation.clients=4", "run.min_clients=4", "evaluation.every=0", "run.rounds=1")
INT8 = ("compression.upload=int8", "compression.download=int8")
SECURE = ("privacy.secure_aggregation.enabled=true",)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        INT8,
        ("compression.upload=top_k", "compression.fraction=0.1"),
        SECURE,
        (*SECURE, "privacy.secure_aggregation.bits=24"),
        ("run.cohort=2", "run.min_clients=2"),
        ("evaluation.every=1",),
    ],
)
def test_a_round_takes_the_bytes_that_were_said(settings: tuple[str, ...], tmp_path: Path) -> None:
    """Both ways, within 3 % of a round that has run."""
    overrides = [*PLAIN, *settings]
    said = round_costs(App.load(DIGITS, overrides=overrides), clients=CLIENTS)
    simulate(DIGITS, overrides=overrides, out=tmp_path / "run", executor="sequential")
    (row,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert row["clients"] == said.cohort
    down_bytes = said.server_down_bytes + said.cohort * said.evaluated_bytes
    assert down_bytes == pytest.approx(row["bytes_sent"], rel=0.03)
    assert said.server_up_bytes == pytest.approx(row["bytes_received"], rel=0.03)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("strategy.name=xgb_bagging",), "xgb_bagging send grows with their data"),
        (("compression.upload=int8", "compression.zstd=true"), "zstd"),
    ],
)
def test_what_is_not_known_is_not_said(settings: tuple[str, ...], words: str) -> None:
    """A size that depends on the data or on the values is refused, with what to do instead."""
    with pytest.raises(ConfigError, match=words):
        round_costs(App.load(DIGITS, overrides=[*PLAIN, *settings]), clients=CLIENTS)


def test_a_flower_app_sends_what_it_likes(tmp_path: Path) -> None:
    """Its code decides."""
    with pytest.raises(ConfigError, match=r"Flower app sends is up to its own code.*bytes_sent"):
        round_costs(App.load(FLOWER_APP), clients=CLIENTS)


def test_the_disk_is_said() -> None:
    """Three checkpoints and a cohort's replies; of asynchronous rounds it is not known."""
    said = round_costs(App.load(DIGITS, overrides=[*PLAIN]), clients=CLIENTS)
    assert said.disk is not None
    assert said.disk.server_bytes - BESIDE_BYTES == 3 * said.down_bytes + CLIENTS * said.up_bytes
    fedbuff = round_costs(
        App.load(DIGITS, overrides=[*PLAIN, "rounds.kind=fedbuff"]), clients=CLIENTS
    )
    assert fedbuff.disk is None


def test_auto_compresses_on_slow_lines() -> None:
    """As int8 there, and as nothing elsewhere."""

    def up_bytes(setting: str, *, slow: bool) -> int:
        app = App.load(DIGITS, overrides=[*PLAIN, f"compression.upload={setting}"])
        return round_costs(app, clients=CLIENTS, slow=slow).up_bytes

    assert up_bytes("auto", slow=True) == up_bytes("int8", slow=False)
    assert up_bytes("auto", slow=False) == up_bytes("none", slow=True)
    assert AccessLink(bytes_per_s=6.2e6, round_trip_s=0.1).is_slow
    assert not AccessLink(bytes_per_s=12.5e6, round_trip_s=0.1).is_slow


def test_long_lines_pause() -> None:
    """20 Mbit/s and 100 ms are filled both ways; what is in transit beyond a window waits, and more with many clients."""
    slow = AccessLink(bytes_per_s=2.5e6, round_trip_s=0.1)
    down_s = slow.download_s(20_000_000)
    assert down_s == pytest.approx(0.3 + 8 / 0.95)
    assert slow.upload_s(20_000_000, clients=3) == down_s
    long = AccessLink(bytes_per_s=12.5e6, round_trip_s=0.3)
    few_s, many_s = (long.upload_s(20_000_000, clients=clients) for clients in (3, 1000))
    assert long.download_s(20_000_000) < few_s < many_s
