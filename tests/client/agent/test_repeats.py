"""What a server may have twice: a reply that is kept; never a second execution of one instruction."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.ledger import Ledger, content_of
from meadow.client.tools.status import spending_of
from meadow.errors import StoreError
from meadow.transport import fleet_pb2 as pb
from meadow.transport.entries import pack_entries

from ..conftest import Client


def sent_in_turn(client: Client, instructions: list[pb.Instruction]) -> list[pb.Reply]:
    """Return the replies to instructions that are sent one after another. A reply may come twice,
    if the line was cut before its acknowledgement. The next is sent when the agent knows that the
    server has the reply: until then it keeps it, and would answer with it."""
    replies: list[pb.Reply] = []

    async def scenario() -> list[pb.Reply]:
        async with client.connected():
            for instruction in instructions:
                client.fleet.open.clear()
                before = len(client.fleet.replies)
                client.fleet.send(instruction)

                def new(id_: str = instruction.id, before: int = before) -> list[pb.Reply]:
                    later = client.fleet.replies[before:]
                    return [reply for reply in later if reply.instruction_id == id_]

                await client.fleet.until(new)
                replies.append(new()[0])
                results = [
                    not each.refused and not each.envelope.HasField("error") for each in replies
                ]
                await client.hear("sent", sum(results))
        return replies

    return asyncio.run(scenario())


def test_two_instructions_in_turn_are_executed_once_each(client: Client) -> None:
    """Their replies are acknowledged and given up; asked again, the client refuses."""
    client.configure("[policy]\nrounds_per_day = 2\n")
    first, second = (client.instruction(id_, 3) for id_ in "ab")
    replies = sent_in_turn(client, [first, second, first, second, first])
    assert [bool(each.refused) for each in replies] == [False, False, True, False, True]
    assert all("answered before" in each.refused for each in (replies[2], replies[4]))
    assert replies[3].envelope == replies[1].envelope, "the reply that is kept, once more"
    (spent,) = Ledger(AgentDatabase(client.directory / "agent.sqlite")).spent()
    assert spent.rounds == 2


def test_a_query_between_makes_no_second_execution_free(client: Client) -> None:
    """Neither does another configuration of the run under the same id, which counts anew."""
    client.configure("[policy]\nrounds_per_day = 2\n")
    first = client.instruction("a", 3)
    queries = [client.instruction(id_, 3, message_type="evaluate") for id_ in "pqr"]
    other = client.instruction("a", 3, run_config={"raise": False})
    third = client.instruction("a", 3, run_config={"raise": 0})
    sent = [first, queries[0], first, queries[1], other, queries[2], third]
    replies = sent_in_turn(client, sent)
    refused = [bool(each.refused) for each in replies]
    assert refused == [False, False, True, False, False, False, True]
    assert "rounds_per_day is 2" in replies[-1].refused


def test_every_field_of_an_instruction_is_in_what_is_counted() -> None:
    """Made from the message's own fields: one that is added later is counted, too."""
    plain = pb.Instruction(id="a", envelope=pb.Envelope(metadata=pb.Metadata(group_id="1")))
    seen = {content_of(plain)}
    for field in pb.Instruction.DESCRIPTOR.fields:
        changed = pb.Instruction.FromString(plain.SerializeToString())
        if field.name == "run_config":
            changed.run_config.extend(pack_entries({"learning-rate": 0.0}))
        elif field.is_repeated:
            getattr(changed, field.name).append(3)
        elif field.message_type is not None:
            getattr(changed, field.name).SetInParent()
            if field.name == "envelope":
                changed.envelope.metadata.group_id = "2"
        else:
            value = {str: "b", int: 3, bool: True, float: 0.5, bytes: b"b"}
            setattr(changed, field.name, value[type(getattr(plain, field.name))])
        seen.add(content_of(changed))
    assert len(seen) == 1 + len(pb.Instruction.DESCRIPTOR.fields)


@pytest.mark.parametrize("how", ["deleted", "emptied", "replaced", "rows"])
def test_a_ledger_that_is_gone_is_an_error(client: Client, how: str, tmp_path: Path) -> None:
    """The identity knows its ledger: what was spent does not become 0 when a file is lost."""
    sent_in_turn(client, [client.instruction("a", 3)])
    file = client.directory / "agent.sqlite"
    assert spending_of(client.directory).runs[0].rounds == 1
    if how == "rows":
        database = AgentDatabase(file)
        with database.transaction() as rows:
            rows.execute("DELETE FROM spent")
        database.close()
    else:
        for each in client.directory.glob("agent.sqlite*"):
            each.unlink()
        if how == "emptied":
            file.write_bytes(b"")
        elif how == "replaced":
            (tmp_path / "identity").mkdir()
            database = AgentDatabase(file)
            Ledger(database).claim(tmp_path / "identity")
            database.close()
    with pytest.raises(StoreError, match="not known; restore it from a backup"):
        asyncio.run(client.agent().run())
    with pytest.raises(StoreError, match="not known; restore it from a backup"):
        spending_of(client.directory)


def test_a_ledger_outlives_agents(client: Client) -> None:
    """One that is whole is taken up by the next agent, whatever was delivered twice."""

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        client.fleet.send(client.instruction("a", 3))
        for count in (1, 2):
            async with client.running():
                await client.fleet.reply("a", count)
                client.fleet.open["a"] = client.instruction("a", 3)
        await client.fleet.stop()

    asyncio.run(scenario())
    assert spending_of(client.directory).runs[0].rounds == 1


@pytest.mark.parametrize("source", ["local_gaussian", "server"])
def test_what_an_app_raises_stays_where_the_noise_is_added(client: Client, source: str) -> None:
    """An exception's text may quote a record: against a server that sees no update, nobody gets it."""
    instruction = client.instruction("a", 3, run_config={"raise": 1}, differential_privacy=True)
    said = {"dp-clip-norm": 1.0, "dp-clipping": "fixed", "dp-noise": source}
    entries = pack_entries({**said, "dp-noise-multiplier": 1.0})
    instruction.envelope.records.append(
        pb.Record(name="config", configs=pb.Entries(entries=entries))
    )
    (reply,) = sent_in_turn(client, [instruction])
    assert reply.envelope.HasField("error")
    assert ("no data today" in reply.envelope.error.reason) is (source == "server")
    assert "no data today" in client.texts("failed")[-1]
