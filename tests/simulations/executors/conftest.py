"""Executors of each kind, made once for a whole module or session: their starts are slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from meadow.apps.folder import App

from .arena import write_app


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    """The arena's app."""
    return write_app(tmp_path_factory.mktemp("executors") / "counting")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray cluster of two CPUs on this machine, or a skipped test where there is no Ray."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=128 << 20,
    )
    yield
    ray.shutdown()


@pytest.fixture
def begun(app: App) -> Iterator[Path]:
    """A pipe by which a held client says that it has begun; it is not held a second time."""
    runs = app.folder / "runs"
    os.mkfifo(runs / "begun")
    os.mkfifo(runs / "never")
    yield runs / "begun"
    for path in runs.iterdir():
        path.unlink()
