"""Instructions that no honest server gives: each is answered as failed or refused, none ends the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from meadow.client.agent import execution
from meadow.transport import fleet_pb2 as pb
from meadow.transport.entries import pack_entries
from meadow.transport.fields import METADATA_CHARS_MAX, SITES_MAX

from ..conftest import Client

Change = Callable[[pb.Instruction], object]
FEW = 100

BUDGETS = """
[policy]
record_epsilon_max = 5.0
epsilon_max = 5.0
rounds_per_day = 1000
"""


def configured(**said: Any) -> Change:
    """Return what announces these terms of a private round."""

    def change(instruction: pb.Instruction) -> None:
        instruction.differential_privacy = True
        record = instruction.envelope.records.add(name="config")
        record.configs.entries.extend(
            pack_entries({name.replace("_", "-"): value for name, value in said.items()})
        )

    return change


def per_record(**said: Any) -> Change:
    usual = {
        "dp_record_clip": 1.0,
        "dp_record_noise_multiplier": 1.0,
        "dp_record_sampling_rate": 0.1,
    }
    return configured(**usual | said)


def per_client(**said: Any) -> Change:
    usual = {"dp_clip_norm": 1.0, "dp_clipping": "fixed", "dp_noise_multiplier": 100.0}
    return configured(**usual | said)


def metadata(**fields: Any) -> Change:
    def change(instruction: pb.Instruction) -> None:
        for name, value in fields.items():
            setattr(instruction.envelope.metadata, name, value)

    return change


def far(instruction: pb.Instruction) -> None:
    """Noise that is correlated over rounds, in a round of very many digits."""
    per_client(dp_noise_reach=2)(instruction)
    metadata(group_id="9" * 5000)(instruction)


HOSTILE: dict[str, Change] = {
    "a rate of 5e-324": per_record(dp_record_sampling_rate=5e-324),
    "a rate of 1e-30": per_record(dp_record_sampling_rate=1e-30),
    "record noise of 1e-200": per_record(dp_record_noise_multiplier=1e-200),
    "record noise of 1e-170": per_record(dp_record_noise_multiplier=1e-170),
    "noise of 1e-200": per_client(dp_noise_multiplier=1e-200),
    "noise as text": per_client(dp_noise_multiplier="1"),
    "epochs as text": per_record(epochs="2"),
    "2^62 epochs": per_record(epochs=1 << 62),
    "a group of 5,000 digits": far,
    "a group of digits that are none": metadata(group_id="²" * 40),
    "a type that Flower does not know": metadata(message_type="train." * 30),
    "no time": metadata(created_at_s=float("nan")),
    "for ever": metadata(ttl_s=float("inf")),
    "too long": metadata(message_type="t" * (METADATA_CHARS_MAX + 1)),
    "too many sites": lambda said: setattr(said, "sites", SITES_MAX + 1),
    "a long app": lambda said: setattr(said.app, "name", "a" * 100_000),
    "no app": lambda said: said.ClearField("app"),
    "no envelope": lambda said: said.ClearField("envelope"),
    "a run config that is none": lambda said: said.run_config.add(key="a"),
    "no arrays": lambda said: said.envelope.records[0].ClearField("arrays"),
    "a path as a blob": lambda said: setattr(said.envelope.records[0].arrays.blob, "id", "../x"),
    "an endless blob": lambda said: said.envelope.records[0].arrays.blob.MergeFrom(
        pb.Blob(id="huge", size_bytes=(1 << 64) - 1)
    ),
    "torn arrays": lambda said: setattr(said.envelope.records[0].arrays, "packed", b"\xff" * 64),
}


def test_none_ends_the_agent(client: Client) -> None:
    """Each is answered, and again after a restart; an honest one afterwards is executed."""
    client.configure(BUDGETS)

    async def scenario() -> None:
        for start in (1, 2):
            async with client.connected() as agent:
                for name, change in HOSTILE.items():
                    instruction = client.instruction(name, FEW)
                    change(instruction)
                    client.fleet.send(instruction)
                for name in HOSTILE:
                    reply = await client.fleet.reply(name, start)
                    assert reply.refused or reply.envelope.HasField("error"), name
                assert not agent.done()
        client.configure()
        async with client.connected():
            client.fleet.send(client.instruction("honest", FEW))
            assert client.count_of(await client.fleet.reply("honest"))

    asyncio.run(scenario())


@pytest.mark.parametrize("raised", [MemoryError, RecursionError, OverflowError, KeyError, OSError])
def test_whatever_is_raised(
    client: Client, monkeypatch: pytest.MonkeyPatch, raised: type[Exception]
) -> None:
    """Is that instruction's failure, and the agent goes on."""

    def fail(instruction: pb.Instruction, *arguments: Any, **named: Any) -> None:
        if instruction.id == "bad":
            raise raised("this is a test")

    monkeypatch.setattr(execution, "check", fail)

    async def scenario() -> None:
        async with client.connected() as agent:
            client.fleet.send(client.instruction("bad", FEW))
            reply = await client.fleet.reply("bad")
            assert "this is a test" in reply.envelope.error.reason
            assert not agent.done()

    asyncio.run(scenario())
    assert any("this is a test" in text for text in client.texts("failed"))
