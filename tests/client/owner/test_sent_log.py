"""The owner's log of what has left, against what the server's side has received."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from meadow.client.agent import assignments, delivery
from meadow.client.owner import sent_log
from meadow.client.owner.sent_log import Outgoing, SentFor, SentLog, sent_rows
from meadow.errors import StoreError
from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import blob_path, blobs_of
from meadow.transport.database import Database
from meadow.transport.entries import pack_entries

from ..conftest import Client

ABOUT = SentFor(run_id=7, round="3", app="counting", sha256="0" * 64)


def received(client: Client) -> list[tuple[str, int, str]]:
    """Return each answer once, as the server received it: instruction, bytes with files, digest."""
    found = []
    for reply in client.fleet.replies:
        whole, size = reply, reply.ByteSize()
        if reply.HasField("file"):
            file = blob_path(client.fleet.received, reply.file.id)
            size += file.stat().st_size
            envelope = pb.Envelope.FromString(file.read_bytes())
            whole = pb.Reply(instruction_id=reply.instruction_id, envelope=envelope)
        size += sum(
            blob_path(client.fleet.received, each.id).stat().st_size
            for each in blobs_of(whole.envelope)
        )
        digest = sha256(whole.SerializeToString(deterministic=True)).hexdigest()
        found.append((reply.instruction_id, size, digest))
    return list(dict.fromkeys(found))


def logged(client: Client) -> list[tuple[str, int, str]]:
    """Return the owner's log likewise."""
    rows = sent_rows(client.directory, last=1000)
    return [(row.instruction_id, row.bytes, row.digest) for row in rows]


def test_it_equals_what_the_server_received(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Message by message: small and large ones, refusals and failures, after broken lines, unconfirmed
    replies and a restart."""

    async def scenario() -> None:
        async with client.connected():
            client.fleet.acks_lost = 1
            client.fleet.send(client.instruction("lost"))
            await client.fleet.reply("lost", count=2)
            client.fleet.upload_breaks_after_bytes = 1 << 20
            client.fleet.send(client.instruction("large", values=1 << 20))
            await client.fleet.reply("large")
            monkeypatch.setattr(delivery, "REPLY_BYTES_MAX", 200)
            client.fleet.send(client.instruction("in a file"))
            assert (await client.fleet.reply("in a file")).HasField("file")
            unknown = client.instruction("unknown app")
            unknown.app.sha256 = "0" * 64
            client.fleet.send(unknown)
            assert (await client.fleet.reply("unknown app")).refused
            client.fleet.send(client.instruction("failed", run_config={"raise": True}))
            await client.fleet.reply("failed")
            torn = client.instruction("not begun")
            torn.envelope.metadata.group_id = "x" * 5000
            client.fleet.send(torn)
            await client.fleet.reply("not begun")
            client.fleet.send(client.instruction("evaluated", message_type="evaluate"))
            await client.fleet.reply("evaluated")
            client.fleet.send(client.instruction("asked", message_type="query"))
            await client.fleet.reply("asked")
            introduce = client.instruction("keys", message_type="query.secure_identity")
            del introduce.envelope.records[:]
            client.fleet.send(introduce)
            await client.fleet.reply("keys")
        client.fleet.open["keys"] = introduce
        async with client.connected():
            await client.fleet.reply("keys", count=2)

    asyncio.run(scenario())
    assert logged(client) == received(client) and len(logged(client)) == 9
    rows = {row.instruction_id: row for row in sent_rows(client.directory, last=1000)}
    assert rows["large"].bytes > 4 << 20 and rows["large"].kind == "train"
    assert (rows["lost"].app, rows["lost"].round, rows["lost"].reason) == ("counting", "3", "")
    assert len(rows["lost"].sha256.removeprefix("sha256:")) == 64
    assert rows["unknown app"].kind == "refused" and rows["unknown app"].reason
    assert {rows[name].kind for name in ("failed", "not begun")} == {"failed"}
    assert "no data today" in rows["failed"].reason
    kinds = [rows[name].kind for name in ("evaluated", "asked", "keys")]
    assert kinds == ["evaluate", "failed", "query.secure_identity"], "the app answers no query"
    run_id = int(rows["lost"].run_id)
    assert len(sent_rows(client.directory, last=2, run_id=run_id)) == 2
    assert sent_rows(client.directory, last=2, run_id=run_id + 1) == []


def test_nothing_leaves_unwritten(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the log cannot be written, replies wait, and the owner is told."""
    write, failures = SentLog.write, [StoreError("the disk is full")] * 2

    def written(self: SentLog, *arguments: Any, **more: Any) -> None:
        assert not client.fleet.replies and not client.fleet.uploads
        if failures:
            raise failures.pop()
        write(self, *arguments, **more)

    monkeypatch.setattr(SentLog, "write", written)
    monkeypatch.setattr(delivery, "LOG_RETRY_S", 0.01)

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a"))
            await client.fleet.reply("a")

    asyncio.run(scenario())
    assert sum("nothing leaves until" in text for text in client.texts("warning")) == 2
    assert logged(client) == received(client)


def test_refusals_displace_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are bounded, each by itself; the oldest go first."""
    monkeypatch.setattr(sent_log, "REFUSALS_KEPT_MAX", 3)
    monkeypatch.setattr(sent_log, "RESULTS_KEPT_MAX", 2)
    log = SentLog(tmp_path, clock=lambda: 5.0)
    for number in range(5):
        reply = pb.Reply(instruction_id=f"result {number}")
        reply.envelope.metadata.message_type = "train"
        log.write(Outgoing(reply, ABOUT), size_bytes=number)
        for each in range(3):
            refusal = pb.Reply(instruction_id=f"{number} {each}", refused="x" * 9999)
            log.write(Outgoing(refusal, ABOUT), size_bytes=1)
            log.write(Outgoing(refusal, ABOUT), size_bytes=1)
    log.close()
    rows = sent_rows(tmp_path, last=100)
    results = [row.instruction_id for row in rows if row.kind == "train"]
    assert results == ["result 3", "result 4"]
    assert [row.instruction_id for row in rows if row.kind == "refused"] == ["4 0", "4 1", "4 2"]
    assert {len(row.reason) for row in rows} == {0, sent_log.TEXT_CHARS_MAX}
    assert sent_rows(tmp_path / "none", last=3) == []


def test_an_answer_that_is_sent_by_a_later_process(client: Client) -> None:
    """Is logged with its app, round, norm and epsilon: they are kept with it."""

    async def scenario() -> None:
        async with client.connected():
            asked = client.instruction("a", values=3)
            asked.differential_privacy = True
            said = {"dp-clip-norm": 1.0, "dp-clipping": "fixed", "dp-noise-multiplier": 50.0}
            record = asked.envelope.records.add(name="config")
            record.configs.entries.extend(pack_entries(said))
            client.fleet.send(asked)
            await client.fleet.reply("a")
        [before] = sent_rows(client.directory, last=9)
        assert before.norm == pytest.approx(math.sqrt(3)) and 0 < (before.epsilon or 0) < 1
        assert before.record_epsilon is not None and before.app == "counting"
        (client.directory / "sent.sqlite").unlink()
        with closing(sqlite3.connect(client.directory / "agent.sqlite")) as db:
            assert db.execute("SELECT epsilon FROM replies").fetchall() == [(before.epsilon,)]
        client.fleet.open["a"] = asked
        async with client.connected():
            await client.fleet.reply("a", count=2)
        [after] = sent_rows(client.directory, last=9)
        assert replace(after, at_s=before.at_s) == before

    asyncio.run(scenario())


def test_too_many_instructions(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal of one more than may wait is in the log, once, and not sent while that cannot be."""
    monkeypatch.setattr(assignments, "INSTRUCTIONS_MAX", 0)
    write, failures = SentLog.write, [StoreError("the disk is full")]

    def written(self: SentLog, answer: Outgoing, *, size_bytes: int) -> None:
        if failures:
            raise failures.pop()
        write(self, answer, size_bytes=size_bytes)

    monkeypatch.setattr(SentLog, "write", written)

    async def scenario() -> None:
        async with client.connected():
            for _ in range(3):
                client.fleet.send(client.instruction("one more", values=3))
            await client.fleet.reply("one more", count=2)
            assert len(client.fleet.replies) == 2

    asyncio.run(scenario())
    assert logged(client) == received(client)
    [row] = sent_rows(client.directory, last=9)
    assert (row.kind, row.app, row.run_id) == ("refused", "counting", "7")
    assert any("nothing leaves until" in text for text in client.texts("warning"))


def test_a_log_of_the_first_layout(tmp_path: Path) -> None:
    """Is brought up to date: its rows have no norm and no epsilon."""
    first = replace(sent_log._LAYOUT, versions=sent_log._LAYOUT.versions[:1])
    with closing(Database(tmp_path / "sent.sqlite", first)) as old, old.transaction() as rows:
        rows.execute(
            "INSERT INTO sent VALUES (1, 5.0, 'a', '7', '3', 'counting', 'x', 'train', 9, '', 'd')"
        )
    [row] = sent_rows(tmp_path, last=9)
    assert (row.app, row.bytes, row.norm, row.epsilon) == ("counting", 9, None, None)
