"""Under noise that clients add, all failures look alike to the server; the owner's log tells them apart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meadow.client.agent.training import APP_CRASHED, APP_NOT_LOADED, APP_RAISED, failure
from meadow.errors import NOTHING_TO_EVALUATE, DataError, StoreError
from meadow.privacy.secagg.client.app import SECURE_SUM_FAILED
from meadow.transport import fleet_pb2 as pb
from meadow.transport.entries import pack_entries

from ..conftest import Client

LOCAL = {"dp-clip-norm": 1.0, "dp-clipping": "fixed", "dp-noise-multiplier": 2.0}
RECORDS = {"dp-record-clip": 1.0, "dp-record-noise-multiplier": 1.0, "dp-record-sampling-rate": 0.1}
SECRET = "could not convert string to float: 'Jane Doe, HIV+'"


class Failing:
    """A trainer that fails as the instruction's id says."""

    async def execute(
        self,
        instruction: pb.Instruction,
        blob_dir: Path,
        reply_dir: Path,
        state_dir: Path,
        state: bytes,
        step: Callable[[], None],
    ) -> pb.TrainingDone:
        made = FAILURES[instruction.id](instruction)
        return pb.TrainingDone(instruction_id=instruction.id, envelope=made, state=state)

    async def prepare(self, app: str) -> None: ...

    async def close(self) -> None: ...


def answered(code: int, reason: str) -> Callable[[pb.Instruction], pb.Envelope]:
    """Return a failure that an app has put into its own words, as it likes."""

    def made(instruction: pb.Instruction) -> pb.Envelope:
        envelope = failure(instruction, code, reason)
        envelope.metadata.ttl_s = 17.0
        envelope.records.add(name="beside")
        return envelope

    return made


def raising(error: Exception) -> Callable[[pb.Instruction], pb.Envelope]:
    def made(instruction: pb.Instruction) -> pb.Envelope:
        raise error

    return made


FAILURES: dict[str, Callable[[pb.Instruction], pb.Envelope]] = {
    "raised": answered(APP_RAISED, SECRET),
    "not finite": answered(APP_RAISED, "the update has values that are not finite"),
    "no data": answered(APP_RAISED, "there are no samples; a site's data must not be empty"),
    "no app": answered(APP_NOT_LOADED, "No module named 'secret'"),
    "died": answered(APP_CRASHED, "the training process was killed by SIGKILL"),
    "nothing": answered(NOTHING_TO_EVALUATE, "site 1 has no test data"),
    "no sum": answered(SECURE_SUM_FAILED, "num-examples must be a whole number >= 1, got 0"),
    "full disk": raising(StoreError("no room for the reply's 17 bytes")),
    "of the system": raising(OSError(SECRET)),
    "data error": raising(DataError(SECRET)),
    "bug": raising(ZeroDivisionError(SECRET)),
}


def told(client: Client, **said: Any) -> dict[str, pb.Reply]:
    """Return what the server hears of each failure in a private round with this announcement."""

    async def scenario() -> dict[str, pb.Reply]:
        replies = {}
        async with client.connected(Failing()):
            for name in FAILURES:
                instruction = client.instruction(name, 4)
                instruction.differential_privacy = True
                record = instruction.envelope.records.add(name="config")
                record.configs.entries.extend(pack_entries(said))
                client.fleet.send(instruction)
            for name in FAILURES:
                replies[name] = await client.fleet.reply(name)
        return replies

    return asyncio.run(scenario())


@pytest.mark.parametrize("said", [{**LOCAL, "dp-noise": "local_gaussian"}, RECORDS])
def test_every_failure_is_the_same_to_the_server(client: Client, said: dict[str, Any]) -> None:
    """But for ids and the time, to the last bit; the owner's log has each one's reason."""
    seen = set()
    for name, reply in told(client, **said).items():
        envelope = reply.envelope
        assert envelope.metadata.message_id and envelope.metadata.reply_to_message_id == name
        envelope.metadata.ClearField("message_id")
        envelope.metadata.ClearField("reply_to_message_id")
        envelope.metadata.ClearField("created_at_s")
        reply.ClearField("instruction_id")
        seen.add(reply.SerializeToString(deterministic=True))
    assert len(seen) == 1
    (only,) = seen
    assert b"Jane" not in only and b"finite" not in only
    known = "\n".join(client.texts("failed"))
    assert SECRET in known and "not finite" in known and "no samples" in known


def test_a_server_that_adds_the_noise_hears_why(client: Client) -> None:
    """It is trusted with updates, and with what went wrong."""
    replies = told(client, **LOCAL)
    assert SECRET in replies["raised"].envelope.error.reason
    assert replies["died"].envelope.error.code == APP_CRASHED
