"""Runs a plain Flower app's server side and stores its results in the run folder."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from ..apps.folder import App
from ..errors import AppError, RunError, RunStoppedError
from ..flower.messages import NUMPY_STYPE, FlatTensor, TensorArray, tensor_of
from ..flower_apps.legacy import OlderApi, older_api
from ..flower_apps.patience import never_more_than
from ..flower_apps.result import ObservedGrid, capture_result
from ..strategies.rounds.failures import listed
from ..strategies.rounds.grids import name_of
from ..strategies.rounds.recorder import Row
from ..transport.tensors import holds
from .app_output import FILES, working_in
from .run_folder import RunFolder

__all__ = ["run_flower_app"]

REASONS_SHOWN_MAX = 3
"""Bound of the different reasons of clients in the cause of a failed run."""
CLIENTS_SHOWN_MAX = 3
DRAWS_SEED = 0
RunConfig = Mapping[str, bool | int | float | str]


def run_flower_app(
    app: App, grid: Grid, folder: RunFolder, *, run_id: int, run_config: RunConfig
) -> None:
    """Run an app's ServerApp to its end.

    Raises:
        AppError: the app cannot be loaded.
        RunError: no client ever answered, or no secure sum was completed.
        Exception: any error that the app raises.
    """
    assert app.flower is not None
    folder.begin_anew()
    server_app = app.load_object(app.flower.server_app)
    if not isinstance(server_app, ServerApp):
        kind = type(server_app).__name__
        raise AppError(f"{app.flower.server_app!r} is a {kind}, not a ServerApp")
    context = Context(
        run_id=run_id,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config),
    )
    with working_in(folder.folder / FILES) as elsewhere:
        observed = ObservedGrid(
            grid,
            on_round=lambda row: _end_round(row, grid, folder),
            on_answer=folder.append_answer,
            on_waiting=lambda count: folder.event("waiting", {"connected": count}),
            on_failure=lambda detail: folder.event("client_failed", detail),
            around=elsewhere,
        )
        _run(server_app, observed, context, folder)


def _run(
    server_app: ServerApp, observed: ObservedGrid, context: Context, folder: RunFolder
) -> None:
    with (
        capture_result() as captured,
        older_api(observed.watch) as older,
        never_more_than(observed.clients_max),
        _same_draws(),
    ):
        try:
            with observed:
                server_app(observed, context)
        finally:
            arrays = captured.result.arrays if captured.result else older.arrays
            _keep(arrays or observed.last_arrays, folder)
    _check_answers(observed, older)


@contextmanager
def _same_draws() -> Iterator[None]:
    """Seed Python's `random`, from which Flower's strategies draw cohorts.

    So a repeated run, or a restarted worker, draws the same cohorts. An app may set its own seed.
    """
    before = random.getstate()
    random.seed(DRAWS_SEED)
    try:
        yield
    finally:
        random.setstate(before)


def _end_round(row: Row, grid: Grid, folder: RunFolder) -> None:
    folder.append_row(row)
    is_stopping = getattr(grid, "is_stopping", None)
    if callable(is_stopping) and is_stopping():
        raise RunStoppedError("the run was asked to stop")


def _check_answers(observed: ObservedGrid, older: OlderApi) -> None:
    """Check that a client has answered; an app that had clients may also have sent no message.

    Raises:
        RunError: no client has answered, or no secure sum was completed.
    """
    watch = observed.watch
    if older.halted and not older.sums:
        raise RunError(f"no secure sum was completed: {older.halted[-1]}")
    if not watch.asked and not observed.patience.clients_max:
        raise RunError(
            "no client was connected whenever the app looked for one; it sent no message"
        )
    if not watch.asked or watch.answers:
        return
    reasons = [
        f"{reason} ({listed(sorted(who)[:CLIENTS_SHOWN_MAX], name_of(observed))}, {who.total()} times)"
        for reason, who in sorted(watch.errors.items(), key=lambda each: -each[1].total())
    ]
    cause = "; ".join(reasons[:REASONS_SHOWN_MAX]) or "no reply arrived before the app went on"
    raise RunError(f"no client has answered: {cause}")


def _keep(arrays: ArrayRecord | None, folder: RunFolder) -> None:
    """Write an app's last arrays: tensors and raw bytes as the model, the others as JSON."""
    tensors: dict[str, FlatTensor] = {}
    others: dict[str, Any] = {}
    for name, array in (arrays or {}).items():
        if array.stype != NUMPY_STYPE:
            tensors[name] = TensorArray(np.frombuffer(array.data, np.uint8)).tensor
        elif isinstance(array, TensorArray) or array.data:
            tensor = tensor_of(name, array)
            if holds(tensor.dtype):
                tensors[name] = tensor
            else:
                others[name] = tensor.numpy().tolist()
    folder.save_result(tensors, others)
