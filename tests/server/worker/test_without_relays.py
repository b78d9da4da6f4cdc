"""Runs that cannot have clients behind relays, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from meadow.apps.folder import App
from meadow.errors import ConfigError
from meadow.server.worker.grid import FleetGrid
from meadow.server.worker.worker import without_relays

DIGITS = Path(__file__).parents[2] / "shared" / "digits"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("privacy.secure_aggregation.enabled=true", "privacy.secure_aggregation"),
        ("run.update_norm_max=3.0", "run.update_norm_max"),
        ("compression.upload=int8", "compression"),
        ("compression.download=auto", "compression"),
    ],
)
def test_a_run_that_needs_more_than_a_sum(setting: str, says: str, tmp_path: Path) -> None:
    """The grid refuses clients behind relays as soon as it is asked who is there."""
    overrides = [setting, "run.min_clients=3"]
    why = without_relays(App.load(DIGITS, overrides=overrides, environ={}))
    assert why is not None and says in why

    class Behind:
        has_relays, nodes = True, [1]

        def relay_of(self, client: int) -> int:
            return 7

    behind = Behind()
    grid = FleetGrid(
        behind,  # type: ignore[arg-type]
        run_id=1, spool=tmp_path, quorum=0, cohorts={}, secret=b"", relays=behind,
        without_relays=why,
    )  # fmt: skip
    for ask in (grid.get_node_ids, lambda: grid.combines_updates):
        with pytest.raises(ConfigError, match=rf"behind a relay.*{says}.*selection\.tags"):
            ask()


@pytest.mark.parametrize(
    "private",
    [
        ["clipping=adaptive", "population=100"],
        ["sampling=fixed", "noise=local_gaussian"],
        ["unit=record", "sampling_rate=0.2"],
    ],
)
def test_a_private_run_can_have_them(private: list[str]) -> None:
    """A relay clips where the server would; noise is the clients' or the server's."""
    section = "privacy.differential_privacy"
    terms = [f"{section}.{each}" for each in ("enabled=true", "noise_multiplier=1.0", *private)]
    assert without_relays(App.load(DIGITS, overrides=terms, environ={})) is None


def test_noise_within_secure_sums_needs_them(tmp_path: Path) -> None:
    """Such noise is added within a sum of all clients, which relays would be left out of."""
    section = "privacy.differential_privacy"
    terms = ["enabled=true", "noise_multiplier=1.0", "sampling=fixed", "noise=distributed"]
    overrides = [f"{section}.{each}" for each in terms]
    overrides += ["privacy.secure_aggregation.enabled=true", "run.min_clients=3"]
    why = without_relays(App.load(DIGITS, overrides=overrides, environ={}))
    assert why is not None and "privacy.secure_aggregation" in why


def test_a_run_of_means_can_have_them() -> None:
    """Nothing is refused without a reason."""
    assert without_relays(App.load(DIGITS, environ={})) is None
