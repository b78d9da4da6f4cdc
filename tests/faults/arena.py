"""A run whose rounds a test plays by hand: two honest clients, and whoever else is let in.

Each client's update is one-hot: client number i adds 1 to slot i of the params. All weights are 1,
so a round's change times the number of updates says exactly who counted, and how often.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from meadow.apps.folder import pack
from meadow.transport import fleet_pb2 as pb
from meadow.transport.tensors import TensorFile

from .live_server import CALL_S, LiveServer
from .raw_client import RawClient, Stream

SLOTS = 10_000
"""Too many to travel inside a message: they are a blob."""
SHOWN = 8
TASK = f'''
"""A model that is one vector; its loss is never computed."""
import meadow, torch

class Slots(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slots = torch.nn.Parameter(torch.zeros({SLOTS}))
        self.counts = torch.nn.Parameter(torch.zeros(2, 3))

task = meadow.Task(model=Slots, loss=lambda outputs, targets: outputs, client_data=lambda site: None)
'''
TOML = """
[run]
rounds = 1000
min_clients = 2
[evaluation]
every = 0
"""
Act = Callable[[RawClient, pb.Instruction], object]
FINAL = ("finished", "stopped", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a round."""

    number: int
    clients: int
    change: np.ndarray
    """Of the slots."""
    events: list[tuple[str, dict[str, Any]]]

    @property
    def counted(self) -> list[float]:
        """How often the first slots' clients counted."""
        return [round(float(value), 4) for value in self.change[:SHOWN] * self.clients]

    def told(self, kind: str) -> dict[str, Any]:
        """Return the one event of a kind."""
        (detail,) = (detail for each, detail in self.events if each == kind)
        return detail


def write_app(folder: Path, slots: int = SLOTS) -> None:
    """Write the app of slots."""
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(TASK.replace(str(SLOTS), str(slots)))
    (folder / "meadow.toml").write_text(TOML)


def submit(server: LiveServer, folder: Path, *settings: str, slots: int = SLOTS) -> pb.Run:
    """Submit the app of slots."""
    write_app(folder, slots)
    archive = pack(folder)
    opened = pb.SubmitOpen(size_bytes=len(archive), name=folder.name, settings=settings)
    messages = [pb.SubmitMessage(open=opened), pb.SubmitMessage(zip=archive)]
    return server.admin.Submit(iter(messages), timeout=CALL_S)


class Arena:
    """One run on one server; `play` plays the next round."""

    def __init__(self, server: LiveServer, folder: Path, *settings: str) -> None:
        self.server, self.folder = server, folder
        self.honest = [RawClient(server, f"{folder.name}-honest-{i}", folder) for i in range(2)]
        for client in self.honest:
            client.connect()
        self.residents: list[RawClient] = []
        self.run = submit(server, folder / "slots", *settings)
        self.number = 0
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._heard = threading.Condition()
        self._next: dict[str, pb.Instruction] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        import json

        import grpc

        try:
            for event in self.server.admin.Watch(pb.RunId(id=self.run.id)):
                with self._heard:
                    self._events.append((event.kind, json.loads(event.json)))
                    self._heard.notify_all()
        except grpc.RpcError:
            pass  # the server has been closed

    def close(self) -> None:
        """Let the honest clients go."""
        for client in self.honest:
            client.close()

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The params of the last round, zeros before the first."""
        path = self.model
        if not path.exists():
            return {"slots": np.zeros(SLOTS, np.float32), "counts": np.zeros((2, 3), np.float32)}
        file = TensorFile.open(path, size_max=1 << 20)
        return {name: tensor.numpy().copy() for name, tensor in file.tensors.items()}

    @property
    def model(self) -> Path:
        """The file of the last committed params."""
        return self.server.folder / "runs" / str(self.run.id) / "model.safetensors"

    def digest(self) -> str:
        """Return the hash of the last committed params."""
        return sha256(self.model.read_bytes()).hexdigest()

    def one_hot(self, slot: int, value: float = 1.0) -> dict[str, np.ndarray]:
        """Return the present params with `value` added to one slot."""
        params = self.params
        params["slots"][slot] += value
        return params

    def wait_for(self, kind: str, since: int, **values: Any) -> dict[str, Any]:
        """Wait for an event of a kind with these values; a run that fails meanwhile is an error."""

        def found() -> dict[str, Any] | None:
            for each, detail in self._events[since:]:
                assert each != "status" or detail["status"] not in FINAL, detail
                if each == kind and values.items() <= detail.items():
                    return detail
            return None

        with self._heard:
            self._heard.wait_for(found, CALL_S)
            detail = found()
        assert detail is not None, f"no {kind} {values} among {self._events[since:]}"
        return detail

    # ------------------------------------------------------------------ rounds

    def admit(self, client: RawClient) -> None:
        """Make a guest a resident, who is there in every round from now on."""
        client.connect()
        self.play((client, self._settle))
        self.residents.append(client)

    def play(self, *acts: tuple[RawClient, Act], agents: int = 0) -> Played:
        """Play a round: each guest acts, then the honest clients answer.

        `agents` others take part and answer by themselves; a resident without an act refuses.
        Whatever a guest's act does, the round is brought to its end; then its exception is raised.
        """
        acting = {client.name for client, _ in acts}
        idle = [client for client in self.residents if client.name not in acting]
        acts = (*((client, self._settle) for client in idle), *acts)
        while True:
            instructions = [self._instruction(client) for client in self.honest]
            if instructions[0].cohort_clients == len(self.honest) + len(acts) + agents:
                break
            for client in self.residents:  # drawn before the guests came, or went
                self._settle(client, self._guest_instruction(client))
            self._finish(instructions)
        self._hold(instructions)
        failure: BaseException | None = None
        for client, act in acts:
            instruction = self._guest_instruction(client)
            try:
                act(client, instruction)
            except BaseException as error:  # raised below
                failure = failure or error
                self._settle(client, instruction)
        played = self._finish(instructions, besides=[client.node_id for client in idle])
        if failure is not None:
            raise failure
        return played

    def _hold(self, instructions: list[pb.Instruction]) -> None:
        """Renew the honest clients' leases, and wait until the server knows."""
        for client, instruction in zip(self.honest, instructions, strict=True):
            assert client.stream is not None
            progress = pb.Progress(instruction_id=instruction.id)
            client.stream.send(pb.AgentMessage(progress=progress))
            client.reply("nothing-that-was-asked")

    def _instruction(self, client: RawClient) -> pb.Instruction:
        assert client.stream is not None
        return client.stream.next("instruction")

    def _guest_instruction(self, client: RawClient) -> pb.Instruction:
        while True:
            instruction = self._instruction(client)
            if instruction.envelope.metadata.group_id == str(self.number + 1):
                return instruction

    def _settle(self, client: RawClient, instruction: pb.Instruction) -> None:
        """Answer for a guest that does not, so that the round can end."""
        refusal = pb.Reply(instruction_id=instruction.id, refused="not in this round")
        stream = client.stream if client.stream and client.stream.call.is_active() else None
        (stream or client.connect()).send(pb.AgentMessage(reply=refusal))

    def _finish(self, instructions: list[pb.Instruction], besides: Sequence[int] = ()) -> Played:
        self._hold(instructions)
        since, before = len(self._events), self.params
        for slot, (client, instruction) in enumerate(zip(self.honest, instructions, strict=True)):
            params = {name: values.copy() for name, values in before.items()}
            params["slots"][slot] += 1
            client.update(instruction.id, **params)
        self.number += 1
        row = self.wait_for("round_committed", since, round=self.number)
        change = self.params["slots"] - before["slots"]
        mine = [
            (kind, detail)
            for kind, detail in self._events
            if detail.get("round") == self.number and detail.get("client") not in besides
        ]
        return Played(number=self.number, clients=row["clients"], change=change, events=mine)


__all__ = ["SLOTS", "Act", "Arena", "Played", "Stream", "submit"]
