"""A run in MLflow, through its client: a local database or a tracking server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .identity import read_id, write_id
from .packages import needed
from .tracker import Scalars

__all__ = ["MLflowRun"]

STATUSES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
METRICS_MAX = 1000
"""MLflow's limit of a batch (its REST API, runs/log-batch)."""
PARAMS_MAX = 100
PARAM_CHARS_MAX = 6000
ROUND = "round"
"""The metric that says which round was stored last."""
SQLITE = "sqlite:///"


class MLflowRun:
    """A run of an experiment in the store at a tracking URI."""

    name = "MLflow"

    def __init__(self, folder: Path, *, uri: str, experiment: str) -> None:
        self._folder, self._uri, self._experiment = folder, uri, experiment
        self._client: Any = None
        self._run = ""

    def begin(self, settings: Mapping[str, str]) -> int:
        """Begin the run, or go on with it."""
        self._client = needed("mlflow", self.name).MlflowClient(tracking_uri=self._uri)
        key = f"mlflow {self._uri}"
        known = read_id(self._folder, key)
        if known is None:
            made = self._client.create_run(self._experiment_id(), run_name=self._folder.name)
            self._run = made.info.run_id
            write_id(self._folder, key, self._run)
        else:
            self._run = known
            self._client.update_run(known, status="RUNNING")
        found = self._client.get_run(self._run).data
        self._store_settings(
            {name: text for name, text in settings.items() if name not in found.params}
        )
        return int(found.metrics.get(ROUND, 0))

    def add(self, rounds: Sequence[Scalars]) -> None:
        """Store rounds; one round's values are stored together, its number last."""
        metric = needed("mlflow.entities", self.name).Metric
        now_ms = int(time.time() * 1e3)
        batch: list[Any] = []
        for number, values in rounds:
            made = [metric(name, value, now_ms, number) for name, value in values.items()]
            made.append(metric(ROUND, number, now_ms, number))
            if len(batch) + len(made) > METRICS_MAX:
                self._store(batch)
                batch = []
            batch += made
        self._store(batch)

    def end(self, status: str, files: Sequence[Path]) -> None:
        """Store files and end the run."""
        for file in files:
            self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run, status=STATUSES[status])

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return str(found.experiment_id)
        artifacts = None
        if self._uri.startswith(SQLITE):  # beside the database, not in whatever folder is current
            database = Path(self._uri.removeprefix(SQLITE)).absolute()
            artifacts = (database.parent / "mlartifacts").as_uri()
        return str(self._client.create_experiment(self._experiment, artifact_location=artifacts))

    def _store_settings(self, settings: Mapping[str, str]) -> None:
        param = needed("mlflow.entities", self.name).Param
        made = [param(name, text[:PARAM_CHARS_MAX]) for name, text in settings.items()]
        for start in range(0, len(made), PARAMS_MAX):
            self._client.log_batch(self._run, params=made[start : start + PARAMS_MAX])

    def _store(self, batch: Sequence[Any]) -> None:
        for start in range(0, len(batch), METRICS_MAX):
            self._client.log_batch(self._run, metrics=batch[start : start + METRICS_MAX])
