"""Many agents in one process, with a trainer that only adds a constant: load for a real server.

`python agents.py FOLDER COUNT FIRST PACE_S` runs until its standard input ends. The agents are
enrolled by `enroll_many` before.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from meadow.client.agent.agent import Agent
from meadow.client.tools.enroll import enroll
from meadow.flower.messages import FlatTensor, params_to_arrays, set_message_id, tensors_of
from meadow.machine.process_limits import allow_many_files, keep_freed_memory
from meadow.server.daemon.server_dir import ServerFolder
from meadow.transport.blobs import blob_path
from meadow.transport.codec import BlobWriter, decode, encode
from meadow.transport.file_pool import FilePool
from meadow.transport.fleet_pb2 import Instruction, TrainingDone

__all__ = ["enroll_many"]


def enroll_many(server_dir: Path, folder: Path, app: Path, count: int, *, first: int = 0) -> None:
    """Invite and enrol `count` clients of a running server, numbered from `first` on."""
    home = ServerFolder(server_dir)
    fingerprint = home.authority.fingerprint
    for index in range(first, first + count):
        name = f"agent-{index:03d}"
        token, _ = home.invite(name, hours=1, now_s=time.time())
        enroll(
            folder / name,
            server=home.listening()["enroll"],
            token=token,
            ca_fingerprint=fingerprint,
            apps=[app],
        )


class Plus:
    """A `FlatTensor` of another one's values plus a number, computed when they are read."""

    def __init__(self, tensor: FlatTensor, number: np.float32) -> None:
        self.dtype, self.shape = tensor.dtype, tensor.shape
        self._tensor, self._number = tensor, number

    def __getitem__(self, values: slice) -> NDArray[np.generic]:
        return np.asarray(self._tensor[values] + self._number, dtype=self.dtype)

    def numpy(self) -> NDArray[np.generic]:
        """Return all values."""
        return np.asarray(self._tensor.numpy() + self._number, dtype=self.dtype)


class AddsConstant:
    """A trainer whose update is the params plus a number of its own, after a while."""

    def __init__(self, constant: float, pace_s: float) -> None:
        self._constant = np.float32(constant)
        self._pace_s = pace_s

    async def execute(
        self,
        instruction: Instruction,
        blob_dir: Path,
        reply_dir: Path,
        state_dir: Path,
        state: bytes,
        step: Callable[[], None],
    ) -> TrainingDone:
        """Answer an instruction; one at a time in this process, to bound its memory."""
        await asyncio.sleep(self._pace_s)
        async with ONE:
            return await asyncio.to_thread(self._answer, instruction, blob_dir, reply_dir)

    def _answer(self, instruction: Instruction, blob_dir: Path, reply_dir: Path) -> TrainingDone:
        message = decode(instruction.envelope, lambda blob: blob_path(blob_dir, blob.id))
        tensors = tensors_of(message.content.array_records["arrays"])
        arrays = {name: Plus(tensor, self._constant) for name, tensor in tensors.items()}
        metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
        content = RecordDict({"arrays": params_to_arrays(arrays), "metrics": metrics})
        reply = Message(content, reply_to=message)
        set_message_id(reply, uuid.uuid4().hex)
        reply_dir.mkdir(parents=True, exist_ok=True)
        spare = FilePool(blob_dir.parent / "spare")
        envelope = encode(reply, BlobWriter(reply_dir, fsync=False, file_pool=spare))
        return TrainingDone(instruction_id=instruction.id, envelope=envelope)

    async def prepare(self, app: str) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """Nothing to give back."""


ONE = asyncio.Lock()


async def _run(folder: Path, count: int, first: int, pace_s: float) -> None:
    agents = [
        Agent(folder / f"agent-{index:03d}", trainer=AddsConstant(0.001 * (index + 1), pace_s))
        for index in range(first, first + count)
    ]
    tasks = [asyncio.create_task(agent.run()) for agent in agents]
    await asyncio.to_thread(sys.stdin.read)
    for agent in agents:
        agent.stop()
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    keep_freed_memory()
    allow_many_files()
    asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
