"""Clients on worker processes and Ray actors train as one by one, and stay apart, whatever they train.

Workers run clients one after the other in one process, with one module: what a client leaves there
must not reach the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, MessageType, RecordDict

from meadow.apps.folder import App
from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.simulations.executors.contract import EventSink, Executor
from meadow.simulations.executors.processes.executor import ProcessesExecutor
from meadow.simulations.executors.ray.executor import RayExecutor
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.broadcast import Broadcast
from meadow.training.module_params import build_module, params_of_module

from .model_zoo import FLAT, SIZES, ZOO, cross_entropy
from .test_model_zoo import Updates, executor_of, task_of

MODELS = [
    name
    for name, habit in ZOO.items()
    if (habit.inputs, habit.loss) == (FLAT, cross_entropy) and not habit.make_loss
]
POKED = 2

APP = """
import importlib.util, sys
from pathlib import Path
import meadow

spec = importlib.util.spec_from_file_location("model_zoo", {zoo!r})
zoo = sys.modules["model_zoo"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(zoo)

def model():  # built again for every message here: each has a seed of its own
    return zoo.ZOO[(Path(__file__).parent / "runs" / "model").read_text()].build()

def load(site):
    return meadow.ClientData(train=zoo.data_of(site.index, "flat", {poked!r}))

task = meadow.Task(model=model, loss=zoo.cross_entropy, client_data=load)
"""


def app_of(folder: Path, poked: int | None) -> App:
    (folder / "runs").mkdir(parents=True)
    zoo = str(Path(__file__).with_name("model_zoo.py"))
    (folder / "task.py").write_text(APP.format(zoo=zoo, poked=poked))
    (folder / "meadow.toml").write_text("[run]\nrounds = 1\n")
    return App.load(folder, environ={})


def processes(app: App, clients: SimulatedClients) -> Executor:
    return ProcessesExecutor(app, clients, workers=2, combine=False, sink=EventSink())


def ray(app: App, clients: SimulatedClients) -> Executor:
    return RayExecutor(app, clients, address=None, workers=2, combine=False, sink=EventSink())


def order_of(model: str, seed: int) -> Broadcast:
    config = ConfigRecord(
        {"batch-size": 10, "seed": seed, "server-round": 2, "momentum": 0.9, "learning-rate": 0.05}
    )
    arrays = params_to_arrays(params_of_module(build_module(task_of(ZOO[model]), seed)))
    content = RecordDict({"arrays": arrays, "config": config})
    clients = tuple(range(1, len(SIZES) + 1))
    return Broadcast(content, MessageType.TRAIN, clients, group_id="2", id_prefix="m-")


def updates_of(executor: Executor, order: Broadcast) -> Updates:
    made = {}
    for reply in executor.execute(order):
        assert not reply.has_error(), reply.error.reason
        arrays = dict(arrays_to_params(reply.content.array_records["arrays"]))
        made[reply.metadata.src_node_id] = arrays, dict(reply.content.metric_records["metrics"])
    assert sorted(made) == list(range(1, len(SIZES) + 1))
    return made


def bits(updates: Updates) -> dict[int, list[bytes]]:
    return {
        node: [each.tobytes() for each in arrays.values()] for node, (arrays, _) in updates.items()
    }


def assert_apart(
    make: Callable[[App, SimulatedClients], Executor], folder: Path, every: int
) -> None:
    """Every update is that of a client that ran one by one, in a world and in one where a client's
    data are others; and only that client's update is another one there."""
    worlds = []
    for poked in (None, POKED):
        app = app_of(folder / f"poked-{poked}", poked)
        executor = make(app, SimulatedClients(len(SIZES), run_id=1, run_config={}))
        world = {}
        for seed, model in enumerate(MODELS[::every]):
            (app.folder / "runs" / "model").write_text(model)
            order = order_of(model, seed)
            world[model] = bits(updates_of(executor, order))
            alone = executor_of("sequential", task_of(ZOO[model], poked=poked), [])
            assert world[model] == bits(updates_of(alone, order)), model
        executor.close()
        worlds.append(world)
    before, after = worlds
    for model, made in before.items():
        changed = [node for node in made if made[node] != after[model][node]]
        assert changed == [POKED + 1], model


def test_processes(tmp_path: Path) -> None:
    """Every third of the models that take the same data."""
    assert_apart(processes, tmp_path, every=3)


@pytest.mark.usefixtures("ray_cluster")
def test_ray(tmp_path: Path) -> None:
    """It runs the same code in its actors: some models."""
    assert_apart(ray, tmp_path, every=12)
