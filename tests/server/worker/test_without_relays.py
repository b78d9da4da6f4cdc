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


def test_a_run_of_means_can_have_them() -> None:
    """Nothing is refused without a reason."""
    assert without_relays(App.load(DIGITS, environ={})) is None
