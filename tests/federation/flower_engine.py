"""Flower's own simulation, without Ray: its engine and its grid, with clients in threads."""

from __future__ import annotations

import copy
import json
import os
import threading
from contextlib import chdir
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from flwr.app import Context, Message, RecordDict
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import Backend
from flwr.server.superlink.fleet.vce.metrics import VceMetrics
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState, RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from meadow.apps.folder import App

RUN_ID = TASK_ID = 1


class OneByOne(Backend):
    """Runs clients in the engine's own thread."""

    num_workers = 1

    def build(self, app_fn: Any) -> None:
        self.app = app_fn()

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None:
        """Nothing is held."""

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        own = copy.deepcopy(message)  # as if it had come over a wire
        return self.app(own, context), context


def simulate_with_flower(app: App, *, clients: int, folder: Path) -> dict[str, Any]:
    """Run an app on Flower's engine in `folder`; return the result.json that it writes."""
    flower = app.flower
    assert flower is not None
    server_app = app.load_object(flower.server_app)
    client_app = app.load_object(flower.client_app)
    factory = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    run = Run.create_empty(RUN_ID)
    run.primary_task_id = TASK_ID
    run.federation_id = NOOP_FEDERATION_ID
    run.override_config = dict(flower.run_config)
    state = cast(InMemoryLinkState, factory.state())
    state.run_ids[RUN_ID] = RunRecord(run=run)
    state.task_store[TASK_ID] = Task(task_id=TASK_ID, run_id=RUN_ID)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, 1, TASK_ID
    grid = InMemoryGrid(state_factory=factory, pull_interval=0.05)
    grid.set_run(run)
    nodes = vce_api._register_nodes(clients, factory)
    stores = vce_api._register_node_info_stores(nodes, run)
    for store in stores.values():
        store.run_infos[RUN_ID].initial_run_config.update(flower.run_config)
        store.retrieve_context(RUN_ID).run_config.update(flower.run_config)
    over = threading.Event()
    engine = threading.Thread(
        target=vce_api.run_api,
        args=(lambda: client_app, lambda: OneByOne({}), nodes, factory, stores, over, VceMetrics()),
    )
    engine.start()
    context = Context(
        run_id=RUN_ID, node_id=0, node_config={}, state=RecordDict(),
        run_config=dict(flower.run_config),
    )  # fmt: skip
    try:
        with chdir(folder):
            server_app(grid=grid, context=context)
    finally:
        over.set()
        engine.join()
    return dict(json.loads((folder / "result.json").read_text()))
