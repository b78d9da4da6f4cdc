"""The agent against a fake fleet, with real TLS and a real training process."""

from __future__ import annotations

import asyncio
import time

import pytest

from meadow.client.agent import Agent
from meadow.client.identity_folder import IdentityFolder
from meadow.client.status import status_of
from meadow.client.training import APP_RAISED
from meadow.errors import IdentityError, StoreError
from meadow.transport import fleet_pb2 as pb

from .conftest import Client


def test_trains_and_answers(client: Client) -> None:
    """An instruction's params are fetched, trained on, and the result is uploaded and sent."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            reply = await client.fleet.reply("a")
            assert client.count_of(reply) == 1
            values = {e.key: e.value.integer for e in reply.envelope.records[1].metrics.entries}
            assert (values["site"], values["sites"]) == (0, 5)
            client.fleet.send(client.instruction("b"))
            second = await client.fleet.reply("b")
            assert client.count_of(second) == 2
            again = {e.key: e.value.integer for e in second.envelope.records[1].metrics.entries}
            assert again["pid"] == values["pid"], "the training process stays warm"

    asyncio.run(scenario())
    assert client.texts("training") == ["round 3: training app counting"] * 2
    assert client.texts("connected") == [
        f"connected to localhost:{client.fleet.port} as site-1 (node 1)"
    ]


def test_owner_sees_what_was_done(client: Client) -> None:
    """After a round, the folder tells who the client is, what ran last, and how often."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            await client.fleet.reply("a")
            assert status_of(client.directory, now_s=0.0).process is not None

    asyncio.run(scenario())
    now = status_of(client.directory, now_s=time.time())
    assert (now.name, now.node_id, now.last_instruction) == ("site-1", 1, "a")
    assert (now.rounds_today, now.process) == (1, None)


def test_redelivered_while_in_hand(client: Client) -> None:
    """An instruction that arrives twice before it is answered is executed and answered once."""

    async def scenario() -> None:
        async with client.connected():
            instruction = client.instruction("a")
            client.fleet.send(instruction)
            client.fleet.send(instruction)
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 2

    asyncio.run(scenario())
    assert [reply.instruction_id for reply in client.fleet.replies] == ["a", "b"]


def test_lost_acknowledgement(client: Client) -> None:
    """A reply whose acknowledgement is lost is sent again after the reconnect, not made again."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.acks_lost = 1
            client.fleet.send(client.instruction("a"))
            assert client.count_of(await client.fleet.reply("a", count=2)) == 1
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 2

    asyncio.run(scenario())
    first, second = (r for r in client.fleet.replies if r.instruction_id == "a")
    assert first == second
    assert len(client.texts("training")) == 2


def test_redelivered_after_a_restart_of_the_agent(client: Client) -> None:
    """A new agent process answers an old instruction from its record."""

    async def scenario() -> None:
        instruction = client.instruction("a")
        async with client.connected():
            client.fleet.send(instruction)
            first = await client.fleet.reply("a")
        client.fleet.open["a"] = instruction
        async with client.connected():
            assert await client.fleet.reply("a", count=2) == first
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 2, "the state was kept"

    asyncio.run(scenario())
    assert len(client.texts("training")) == 2


def test_broken_upload_goes_on_where_it_stopped(client: Client) -> None:
    """After a line broke in the middle of an upload, the rest is sent, and nothing twice."""
    chunk = 1 << 20

    async def scenario() -> None:
        async with client.connected():
            client.fleet.upload_breaks_after_bytes = 2 * chunk
            client.fleet.send(client.instruction("a", values=chunk))
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    offsets = [offset for _, offset in client.fleet.uploads]
    assert offsets == [0, 0, 2 * chunk]


def test_server_restarts_in_the_middle_of_an_upload(client: Client) -> None:
    """The agent finds the restarted server, asks how much it has, and sends the rest."""
    chunk = 1 << 20

    async def scenario() -> None:
        async with client.connected():
            client.fleet.upload_breaks_after_bytes = chunk
            client.fleet.send(client.instruction("a", values=chunk))
            await client.fleet.until(lambda: client.fleet.upload_breaks_after_bytes is None)
            await client.fleet.stop()
            await client.fleet.start()
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    assert client.fleet.uploads[-1][1] >= chunk
    assert len(client.fleet.hellos) == 2
    assert len(client.texts("training")) == 1


def test_broken_download_goes_on_where_it_stopped(client: Client) -> None:
    """After a line broke in the middle of a download, only the rest is asked for."""
    chunk = 1 << 20

    async def scenario() -> None:
        async with client.connected():
            client.fleet.download_breaks_after_bytes = 2 * chunk
            client.fleet.send(client.instruction("a", values=chunk))
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    assert [offset for _, offset in client.fleet.downloads] == [0, 2 * chunk]


def test_same_blob_is_fetched_once(client: Client) -> None:
    """A blob that two instructions name, as training and evaluation do, is downloaded once."""

    async def scenario() -> None:
        async with client.connected():
            train = client.instruction("a")
            evaluate = pb.Instruction.FromString(train.SerializeToString())
            evaluate.id = "b"
            evaluate.envelope.metadata.message_type = "evaluate"
            client.fleet.send(train)
            client.fleet.send(evaluate)
            await client.fleet.reply("b")

    asyncio.run(scenario())
    assert len(client.fleet.downloads) == 1


def test_reconnects(client: Client) -> None:
    """A stream that ends is opened again, and what the server still wants is done then."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.disconnect()
            await client.fleet.until(lambda: len(client.fleet.hellos) == 2)
            client.fleet.send(client.instruction("a"))
            await client.fleet.reply("a")

    asyncio.run(scenario())
    assert len(client.texts("disconnected")) == 1


def test_revoked_client_stops(client: Client) -> None:
    """A client that the server has revoked says so and ends, instead of trying for ever."""

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        task = asyncio.create_task(client.agent().run())
        await client.fleet.until(lambda: client.fleet.hellos)
        client.fleet.revoked = True
        client.fleet.disconnect()
        with pytest.raises(IdentityError, match="revoked"):
            await task
        with pytest.raises(IdentityError, match="revoked"):
            await client.agent().run()
        await client.fleet.stop()

    asyncio.run(scenario())


def test_app_that_raises(client: Client) -> None:
    """An exception in the app is the reply's error, and the next instruction is executed."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a", run_config={"raise": True}))
            failed = await client.fleet.reply("a")
            assert failed.envelope.error.code == APP_RAISED
            assert failed.envelope.error.reason == "ValueError: no data today"
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 1, "its state was not kept"

    asyncio.run(scenario())
    assert "counting.py" in (client.directory / "training.log").read_text()


@pytest.mark.parametrize("deaths", [1, 2])
def test_training_process_is_killed(client: Client, deaths: int) -> None:
    """An instruction whose process is killed is executed again, from the same state."""
    file = client.folder / "deaths"
    file.write_text(str(deaths))
    client.configure(f'[data]\ndeaths = "{file}"')

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    assert file.read_text() == "0"


def test_training_process_dies_every_time(client: Client) -> None:
    """After three deaths in a row the server is told how the process died."""
    file = client.folder / "deaths"
    file.write_text("3")
    client.configure(f'[data]\ndeaths = "{file}"')

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            error = (await client.fleet.reply("a")).envelope.error
            assert "3 times in a row" in error.reason
            assert "was killed by SIGKILL" in error.reason
            client.fleet.send(client.instruction("b"))
            assert client.count_of(await client.fleet.reply("b")) == 1

    asyncio.run(scenario())


def test_training_process_that_outgrows_its_memory(client: Client) -> None:
    """A process beyond the owner's limit is not kept for the next instruction."""
    client.configure("[device]\nmemory_mb_max = 64")

    async def scenario() -> list[int]:
        async with client.connected():
            pids = []
            for id_ in ("a", "b"):
                client.fleet.send(client.instruction(id_))
                reply = await client.fleet.reply(id_)
                entries = reply.envelope.records[1].metrics.entries
                pids.append(next(e.value.integer for e in entries if e.key == "pid"))
            return pids

    first, second = asyncio.run(scenario())
    assert first != second


def test_refusal(client: Client) -> None:
    """What the owner does not allow is refused in words, not counted, and written down."""
    client.configure("[policy]\nmin_cohort = 3")

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a", cohort_clients=2))
            refused = (await client.fleet.reply("a")).refused
            assert refused == "policy.min_cohort is 3, this round has 2 clients"
            client.configure("[policy]\nmin_cohort = 2")
            client.fleet.send(client.instruction("b", cohort_clients=2))
            assert client.count_of(await client.fleet.reply("b")) == 1

    asyncio.run(scenario())
    now = status_of(client.directory, now_s=0.0)
    assert [refusal.reason for refusal in now.refusals] == [
        "policy.min_cohort is 3, this round has 2 clients"
    ]


def test_changed_app_is_refused(client: Client) -> None:
    """An app that changed after the run was submitted does not run."""

    async def scenario() -> None:
        async with client.connected():
            instruction = client.instruction("a")
            with (client.app / "counting.py").open("a") as file:
                file.write("# changed\n")
            client.fleet.send(instruction)
            assert "install the same files" in (await client.fleet.reply("a")).refused

    asyncio.run(scenario())
    assert not client.fleet.downloads


def test_wrong_client_toml_is_refused(client: Client) -> None:
    """While the owner's file is wrong nothing runs, and only the owner is told what is in it."""

    async def scenario() -> None:
        async with client.connected():
            client.configure("[policy]\nmin_cohort = -3")
            client.fleet.send(client.instruction("a"))
            refused = (await client.fleet.reply("a")).refused
            assert "needs its owner" in refused
            assert "-3" not in refused

    asyncio.run(scenario())
    assert "min_cohort" in client.texts("warning")[-1]


def test_certificate_is_renewed(client: Client) -> None:
    """A certificate near its end is replaced, with a fresh key, and used at once."""

    async def scenario() -> tuple[str, str]:
        # It was issued as of five minutes ago, so two thirds of its life are over.
        async with client.connected(days=0.001):
            await client.fleet.until(lambda: len(client.fleet.serials) == 2)
            first, second = client.fleet.serials
            return first, second

    first, second = asyncio.run(scenario())
    identity = IdentityFolder(client.directory).load()
    assert first != second == identity.certificate.serial
    assert client.fleet.renewals == 1
    assert client.texts("renewed") == ["the certificate was renewed"]


def test_second_agent_on_a_folder(client: Client) -> None:
    """Two agents would answer twice; the second is told who the first is."""

    async def scenario() -> None:
        async with client.connected():
            with pytest.raises(StoreError, match="an agent is running on it already, process"):
                await Agent(client.directory).run()

    asyncio.run(scenario())


def test_cancelled_in_the_queue_and_in_execution(client: Client) -> None:
    """A cancelled instruction is not answered, and what comes after it is executed."""

    async def scenario() -> None:
        async with client.connected():
            for id_ in ("a", "b", "c"):
                client.fleet.send(client.instruction(id_))
            for id_ in ("a", "b"):
                client.fleet.open.pop(id_)
                client.fleet.say(pb.ServerMessage(cancel=pb.Cancel(instruction_id=id_)))
            await client.fleet.reply("c")

    asyncio.run(scenario())
    assert {reply.instruction_id for reply in client.fleet.replies} == {"c"}


def test_interrupted_renewal_is_completed(client: Client) -> None:
    """A crash between the two files of a renewal leaves an identity that can be used."""

    async def scenario() -> IdentityFolder:
        await client.fleet.start()
        identities = client.enroll()
        request = identities.begin_renewal("site-1")
        certificate = client.fleet.certify(request)
        (identities.folder / "certificate.pem").write_bytes(certificate.certificate_pem)
        await client.fleet.stop()
        return identities

    identities = asyncio.run(scenario())
    next_key = (identities.folder / "key.next.pem").read_bytes()
    assert identities.load().key_pem == next_key
    assert (identities.folder / "key.pem").read_bytes() == next_key
    assert (identities.folder / "key.pem").stat().st_mode & 0o777 == 0o600
