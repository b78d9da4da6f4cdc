"""Case 7: a line that is cut or garbled again and again carries a large model all the same."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from meadow.client.agent.agent import Agent
from meadow.client.agent.events import Event
from meadow.client.owner.identity_folder import IdentityFolder
from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import blob_path, blobs_of
from meadow.transport.fleet_pb2_grpc import EnrollmentStub
from meadow.transport.tensors import TensorFile, checksum, write_tensors

from .arena import submit
from .live_server import CALL_S, LiveServer, wait_until
from .relay import Relay

VALUES = 200_000
PATIENCE_S = 200.0
KB = 1000
LINES: dict[str, tuple[Callable[[random.Random], int], bool]] = {
    "cut within a large chunk": (lambda draw: draw.randrange(8 * KB, 500 * KB), False),
    "cut within a small chunk": (lambda draw: draw.randrange(30 * KB, 160 * KB), False),
    "garbled": (lambda draw: draw.randrange(8 * KB, 500 * KB), True),
}


class Echo:
    """Answers every instruction with the params that came, each one larger by 1."""

    async def execute(
        self, instruction: pb.Instruction, blob_dir: Path, reply_dir: Path, *_: object
    ) -> pb.TrainingDone:
        """Return the reply."""
        (blob,) = blobs_of(instruction.envelope)
        file = TensorFile.open(blob_path(blob_dir, blob.id), size_max=1 << 30)
        tensors = {name: tensor.numpy() + 1 for name, tensor in file.tensors.items()}
        reply_dir.mkdir(parents=True, exist_ok=True)
        path = blob_path(reply_dir, f"reply-{blob.id[:20]}")
        write_tensors(path, tensors, fsync=False)
        found = checksum(path)
        sent = pb.Blob(id=path.stem, size_bytes=found.size_bytes, crc32=found.crc32)
        (infos,) = (r.arrays.infos for r in instruction.envelope.records if r.HasField("arrays"))
        metrics = pb.Entries(entries=[pb.Entry(key="num-examples", value=pb.Value(integer=1))])
        records = [
            pb.Record(name="arrays", arrays=pb.Arrays(blob=sent, infos=infos)),
            pb.Record(name="metrics", metrics=metrics),
        ]
        metadata = pb.Metadata(message_type="train")
        return pb.TrainingDone(envelope=pb.Envelope(metadata=metadata, records=records))

    async def prepare(self, app: str) -> None:
        """There is nothing to load."""

    async def close(self) -> None:
        """There is nothing to stop."""


def enrolled(server: LiveServer, folder: Path, app: Path, relay: Relay) -> Path:
    """Return the folder of a client that reaches the server through a relay."""
    folder.mkdir()
    (folder / "client.toml").write_text(f'[apps]\nslots = "{app}"\n')
    identity = IdentityFolder(folder)
    request = pb.EnrollRequest(token=server.token("far-away"), csr_pem=identity.request())
    with server.enrollment() as channel:
        certificate = EnrollmentStub(channel).Enroll(request, timeout=CALL_S)
    certificate.fleet_address = relay.address
    identity.store(certificate)
    return folder


@pytest.mark.parametrize("case", LINES)
def test_a_large_model_arrives(tmp_path: Path, case: str) -> None:
    """Down and up again, on connections of which none carries all of it: the model is exact."""
    carries, garbles = LINES[case]
    said: list[Event] = []
    with (
        closing(LiveServer(tmp_path / "server")) as server,
        closing(Relay(server.fleet, carries=carries, garbles=garbles)) as relay,
    ):
        app = tmp_path / "slots"
        run = submit(server, app, "run.rounds=1", "run.min_clients=1", slots=VALUES)
        folder = enrolled(server, tmp_path / "client", app, relay)
        model = server.folder / "runs" / str(run.id) / "model.safetensors"

        async def scenario() -> None:
            agent = Agent(folder, trainer=Echo(), report=said.append)
            task = asyncio.create_task(agent.run())
            over = asyncio.create_task(asyncio.to_thread(wait_until, model.exists, PATIENCE_S))
            try:
                await asyncio.wait((task, over), return_when="FIRST_COMPLETED")
                await over
            finally:
                agent.stop()
                await task

        asyncio.run(scenario())
        file = TensorFile.open(model, size_max=1 << 30)
        assert all(np.all(tensor.numpy() == 1) for tensor in file.tensors.values())
        assert relay.connections > 2 * 4 * VALUES // (500 * KB)
        assert not [event for event in said if event.kind == "failed"]
    shutil.rmtree(folder)
