"""An enrolled client's folder, its agent, and the apps that it executes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from meadow.apps.folder import content_hash
from meadow.client.agent.agent import Agent
from meadow.client.agent.events import Event
from meadow.client.agent.training import Trainer
from meadow.client.owner.identity_folder import IdentityFolder
from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import blob_path
from meadow.transport.entries import pack_entries
from meadow.transport.layout import FileLayout
from meadow.transport.packed import pack_tensors, unpack_tensors
from meadow.transport.tensors import TensorFile, write_tensors

from .fake_fleet import PATIENCE_S, FakeFleet

BLOB_VALUES = 10_000
"""So many values are too many to travel inside a message."""

COUNTING_APP = '''
"""Counts how often it was executed, in Context.state, and adds that to the params."""
import os
import signal
from pathlib import Path
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

def answer(message, context):
    count = int(context.state["counter"]["count"]) + 1 if "counter" in context.state else 1
    context.state["counter"] = ConfigRecord({"count": count})
    if "deaths" in context.node_config:
        file = Path(context.node_config["deaths"])
        left = int(file.read_text())
        if left:
            file.write_text(str(left - 1))
            os.kill(os.getpid(), 9)
    if "wait" in context.node_config:
        Path(context.node_config["wait"]).write_text(str(os.getpid()))
        signal.pause()
    if context.run_config.get("raise"):
        raise ValueError("no data today")
    arrays = message.content["arrays"]
    params = {name: array.numpy() + count for name, array in arrays.items()}
    params = ArrayRecord(numpy_ndarrays=list(params.values()))
    context.state["params"] = params
    metrics = MetricRecord({"num-examples": 10, "count": count, "pid": os.getpid(),
                            "site": context.node_config["site-index"],
                            "sites": context.node_config["site-count"]})
    return Message(RecordDict({"arrays": params, "metrics": metrics}), reply_to=message)

@app.train()
def train(message, context):
    return answer(message, context)

@app.evaluate()
def evaluate(message, context):
    return answer(message, context)
'''
PYPROJECT = """
[project]
name = "counting"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "counting:server"
clientapp = "counting:app"
"""


class Client:
    """One client of a fake fleet: its folder, its app, and what its agent said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = FakeFleet(folder)
        self.directory = folder / "client"
        self.app = folder / "counting"
        self.app.mkdir()
        (self.app / "counting.py").write_text(COUNTING_APP)
        (self.app / "pyproject.toml").write_text(PYPROJECT)
        self.directory.mkdir()
        self.configure()
        self.events: list[Event] = []
        self._said = asyncio.Event()
        self._blobs = 0

    def configure(self, text: str = "") -> None:
        """Write the owner's file: the app, and what else is given."""
        (self.directory / "client.toml").write_text(f'[apps]\ncounting = "{self.app}"\n{text}\n')

    def enroll(self, days: float = 30.0) -> IdentityFolder:
        """Give the client an identity of the running fleet."""
        identities = IdentityFolder(self.directory)
        identities.store(self.fleet.certify(identities.request(), days))
        return identities

    def agent(self, trainer: Trainer | None = None) -> Agent:
        """Return an agent on the folder; its events are collected."""
        return Agent(self.directory, trainer=trainer, report=self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._said.set()

    async def hear(self, kind: str, count: int = 1) -> None:
        """Wait until the agent has said something of a kind so often."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.texts(kind)) < count:
                self._said.clear()
                await self._said.wait()

    @asynccontextmanager
    async def running(self, trainer: Trainer | None = None) -> AsyncIterator[asyncio.Task[None]]:
        """Run an agent for the length of the block, and see that it ended well."""
        agent = self.agent(trainer)
        task = asyncio.create_task(agent.run())
        try:
            yield task
        finally:
            agent.stop()
            await task

    @asynccontextmanager
    async def connected(
        self, trainer: Trainer | None = None, *, days: float = 30.0
    ) -> AsyncIterator[asyncio.Task[None]]:
        """Run the fleet and an enrolled agent, connected, for the length of the block."""
        await self.fleet.start()
        if not (self.directory / "identity").exists():
            self.enroll(days)
        try:
            hellos = len(self.fleet.hellos)
            async with self.running(trainer) as task:
                await self.fleet.until(lambda: len(self.fleet.hellos) > hellos)
                yield task
        finally:
            await self.fleet.stop()

    def instruction(self, id_: str, values: int = BLOB_VALUES, **changes: object) -> pb.Instruction:
        """Make a train instruction whose params are zeros, and its blob if they are that many."""
        tensors = {"0": np.zeros(values, np.float32)}
        infos = [pb.ArrayInfo(name="0", dtype="float32", shape=[values], stype="numpy.ndarray")]
        if values < BLOB_VALUES:
            arrays = pb.Arrays(packed=pack_tensors(FileLayout(tensors)), infos=infos)
        else:
            self._blobs += 1
            blob_id = f"global-{self._blobs}"
            info = write_tensors(blob_path(self.fleet.blobs, blob_id), tensors, fsync=False)
            blob = pb.Blob(id=blob_id, size_bytes=info.size_bytes, crc32=info.crc32)
            arrays = pb.Arrays(blob=blob, infos=infos)
        made = pb.Instruction(
            id=id_,
            run_id=7,
            app=pb.App(name="counting", sha256=content_hash(self.app)),
            cohort_clients=2,
            sites=5,
            site_nodes=bytes([0b11111]),
            envelope=pb.Envelope(
                metadata=pb.Metadata(
                    run_id=7, message_id=id_, dst_node_id=1, group_id="3", created_at_s=1.0,
                    ttl_s=600.0, message_type="train",
                ),
                records=[pb.Record(name="arrays", arrays=arrays)],
            ),
        )  # fmt: skip
        for name, value in changes.items():
            if name == "run_config":
                made.run_config.extend(pack_entries(value))  # type: ignore[arg-type]
            elif name == "message_type":
                made.envelope.metadata.message_type = str(value)
            else:
                setattr(made, name, value)
        return made

    def count_of(self, reply: pb.Reply) -> int:
        """Return what the counting app counted, checked against the params it sent."""
        assert not reply.envelope.HasField("error"), reply.envelope.error.reason
        assert not reply.refused
        arrays, metrics = reply.envelope.records
        values = {entry.key: entry.value.integer for entry in metrics.metrics.entries}
        if arrays.arrays.packed:
            (tensor,) = unpack_tensors(arrays.arrays.packed).values()
        else:
            path = blob_path(self.fleet.received, arrays.arrays.blob.id)
            (tensor,) = TensorFile.open(path, size_max=1 << 40).tensors.values()
        assert np.all(tensor.numpy() == values["count"])
        return values["count"]

    def texts(self, kind: str) -> list[str]:
        """Return the lines that the agent said of one kind."""
        return [event.text for event in self.events if event.kind == kind]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Return a client that is not enrolled yet."""
    return Client(tmp_path)
