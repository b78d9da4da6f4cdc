"""When a step ends, and that every reply counts once: without sockets, with a clock of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from meadow.apps.folder import App
from meadow.errors import MeadowError, StoreError
from meadow.server.daemon import threads
from meadow.server.daemon.agent_registry import AgentLink, AgentRegistry
from meadow.server.daemon.dispatch import Dispatcher
from meadow.server.daemon.spool import Spool
from meadow.server.daemon.threads import JournalThread
from meadow.server.journal.journal import Journal
from meadow.server.journal.run_table import RunRow
from meadow.transport import fleet_pb2 as pb

LEASE_S = 60.0


@dataclass
class Desk:
    """A dispatcher with three clients connected, and what its worker is told."""

    journal: Journal
    thread: JournalThread
    dispatcher: Dispatcher
    links: AgentRegistry
    run: RunRow
    now_s: float = 0.0
    told: list[pb.DaemonMessage] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    agents: dict[int, AgentLink] = field(default_factory=dict)

    def fail(self, run_id: int, error: MeadowError) -> None:
        """Hear that the run cannot go on."""
        self.failed.append(str(error))

    async def emit(self, run_id: int, kind: str, detail: Mapping[str, Any]) -> None:
        """Hear an event of the run."""
        self.events.append((kind, detail))

    def connect(self, node: int) -> None:
        """Let a client connect."""
        self.agents[node] = AgentLink(node, f"client-{node}")
        self.links.add(self.agents[node])
        self.dispatcher.connected(self.agents[node])

    async def open(self, *, quorum: int, deadline_s: float = 600.0) -> None:
        """Open round 1's training with clients 1 to 3."""
        envelopes = [
            pb.Envelope(
                metadata=pb.Metadata(
                    message_id=f"1-a-{node}", dst_node_id=node, group_id="1", message_type="train"
                )
            )
            for node in (1, 2, 3)
        ]
        step = pb.Step(key="1/train/0", envelopes=envelopes, quorum=quorum, deadline_s=deadline_s)
        await self.dispatcher.open_step(self.run.id, step)

    async def answer(self, node: int, *, loss: float = 1.0) -> None:
        """Answer as a client."""
        value = pb.Entry(key="loss", value=pb.Value(double=loss))
        record = pb.Record(name="metrics", metrics=pb.Entries(entries=[value]))
        reply = pb.Reply(instruction_id=f"1-a-{node}", envelope=pb.Envelope(records=[record]))
        await self.dispatcher.reply(node, reply)

    async def attach(self) -> None:
        """Connect a run worker."""

        async def send(message: pb.DaemonMessage) -> None:
            self.told.append(message)

        self.dispatcher.attach(self.run.id, send)

    def kinds(self) -> list[str]:
        """Return what the worker was told, in order."""
        return [str(message.WhichOneof("kind")) for message in self.told]

    def later(self, seconds: float) -> None:
        """Let time pass, and let every open step look at the clock."""
        self.now_s += seconds
        for step in self.dispatcher._steps.values():
            step.changed.set()


class Disk:
    """The journal's connection on a disk that can be full."""

    def __init__(self, journal: Journal) -> None:
        self.full = False
        self.commits = 0
        self._inner = journal._db._db
        journal._db._db = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, sql: str, *values: Any) -> Any:
        """As SQLite's, but for the end of a transaction while the disk is full."""
        if self.full and sql == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")
        self.commits += sql == "COMMIT"
        return self._inner.execute(sql, *values)


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(50):
        await asyncio.sleep(0.001)


def at_a_desk(tmp_path: Path, scenario: Callable[[Desk], Awaitable[None]]) -> None:
    """Run a scenario."""

    async def main() -> None:
        journal = Journal(tmp_path / "journal.sqlite")
        thread = JournalThread(journal)
        for node in (1, 2, 3):
            journal.sites.invite(f"client-{node}", f"hash-{node}", now_s=0.0, expires_at_s=1e12)
        run_id = journal.runs.submit("app", "sha", "[]", now_s=0.0)
        run = journal.runs.get(run_id)
        assert run is not None
        desk: Desk
        links = AgentRegistry(journal.sites.all(), lease_s=LEASE_S, clock=lambda: desk.now_s)
        spool = Spool(tmp_path / "spool", blob_bytes_max=1 << 20)
        dispatcher = Dispatcher(
            journal, thread, spool, links, lease_s=LEASE_S, clock=lambda: desk.now_s
        )
        desk = Desk(journal, thread, dispatcher, links, run)
        dispatcher.observer = desk
        for node in (1, 2, 3):
            desk.connect(node)
        await desk.attach()
        await scenario(desk)
        thread.close()
        journal.close()

    asyncio.run(main())


def test_a_step_ends_when_all_have_answered(tmp_path: Path) -> None:
    """Three answers, then the end."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=2)
        for node in (3, 1, 2):
            await desk.answer(node)
        await settle()
        assert desk.kinds() == ["reply", "reply", "reply", "end"]

    at_a_desk(tmp_path, scenario)


def test_the_deadline_ends_a_step_only_with_its_quorum(tmp_path: Path) -> None:
    """Past the deadline the step stays open for the second of two updates that it needs."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=2, deadline_s=10.0)
        await desk.answer(1)
        desk.later(11.0)
        await settle()
        assert desk.kinds() == ["reply"]
        await desk.answer(2)
        await settle()
        assert desk.kinds() == ["reply", "reply", "end"]
        assert desk.agents[3].outgoing.qsize() == 2  # the instruction, and that it is cancelled

    at_a_desk(tmp_path, scenario)


def test_lapsed_leases_end_a_step_with_its_quorum(tmp_path: Path) -> None:
    """Nobody waits for a client that shows no sign of life, if it is not needed."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=2)
        await desk.answer(1)
        await desk.answer(2)
        desk.later(LEASE_S / 2)
        desk.dispatcher.renew_lease(3, "1-a-3")
        desk.later(LEASE_S - 1)
        await settle()
        assert "end" not in desk.kinds()
        desk.later(2.0)
        await settle()
        assert desk.kinds()[-1] == "end"

    at_a_desk(tmp_path, scenario)


def test_an_answer_counts_once(tmp_path: Path) -> None:
    """The same reply again, another one, and somebody else's: none of them reaches the worker."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=3)
        await desk.answer(1, loss=0.5)
        await desk.answer(1, loss=0.5)
        await desk.answer(1, loss=9.0)
        await desk.dispatcher.reply(2, pb.Reply(instruction_id="1-a-3", refused="not mine"))
        await settle()
        assert desk.kinds() == ["reply"]
        assert desk.told[0].reply.node_id == 1

    at_a_desk(tmp_path, scenario)


def test_answers_that_arrive_together_are_written_together(tmp_path: Path) -> None:
    """Three answers at once are one transaction, also where one of them comes twice; the worker gets
    each once, and then the end."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=3)
        disk = Disk(desk.journal)
        await asyncio.gather(*(desk.answer(node) for node in (2, 3, 2, 1)))
        await settle()
        assert disk.commits == 1
        assert [m.reply.node_id for m in desk.told if m.HasField("reply")] == [2, 3, 1]
        assert desk.kinds()[-1] == "end"

    at_a_desk(tmp_path, scenario)


def test_the_answer_of_a_client_that_disconnects_is_written(tmp_path: Path) -> None:
    """Cancelled while the journal writes it: it counts, as do those that were written with it."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=3)
        busy, goes_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def stall() -> None:
            loop.call_soon_threadsafe(busy.set)
            assert goes_on.wait(60)

        stalled = asyncio.create_task(desk.thread(stall))
        await busy.wait()
        waiting = [asyncio.create_task(desk.answer(node)) for node in (1, 2, 3)]
        await settle()
        waiting[1].cancel()
        await asyncio.wait([waiting[1]])
        goes_on.set()
        await asyncio.gather(stalled, waiting[0], waiting[2])
        assert waiting[1].cancelled()
        assert [m.reply.node_id for m in desk.told if m.HasField("reply")] == [1, 2, 3]

    at_a_desk(tmp_path, scenario)


def test_answers_that_a_full_disk_refused_together_are_taken_later(tmp_path: Path) -> None:
    """Each client hears that its answer was not written, and none is lost or counted."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=3)
        disk = Disk(desk.journal)
        disk.full = True
        refused = await asyncio.gather(
            *(desk.answer(node) for node in (1, 2, 3)), return_exceptions=True
        )
        assert all(isinstance(error, StoreError) for error in refused)
        assert desk.told == []
        disk.full = False
        await asyncio.gather(*(desk.answer(node) for node in (1, 2, 3)))
        await settle()
        assert desk.kinds() == ["reply", "reply", "reply", "end"]

    at_a_desk(tmp_path, scenario)


def test_a_restarted_worker_gets_what_was_recorded(tmp_path: Path) -> None:
    """It repeats its step, gets the old replies and then the new ones, each once."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=3)
        await desk.answer(1)
        desk.dispatcher.detach(desk.run.id)
        await desk.answer(2)
        desk.told.clear()
        await desk.attach()
        await desk.open(quorum=3)
        await desk.answer(3)
        await settle()
        assert [m.reply.node_id for m in desk.told if m.HasField("reply")] == [1, 2, 3]
        assert desk.kinds()[-1] == "end"
        assert desk.journal.steps.cohorts(desk.run.id) == {"1": [1, 2, 3]}

    at_a_desk(tmp_path, scenario)


def test_a_client_that_returns_gets_its_instruction_again(tmp_path: Path) -> None:
    """What a client owes is sent at every connection."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=3)
        desk.links.remove(desk.agents[1])
        desk.connect(1)
        message = desk.agents[1].outgoing.get_nowait()
        assert message is not None
        assert message.instruction.id == "1-a-1"
        assert message.instruction.cohort_clients == 3

    at_a_desk(tmp_path, scenario)


@pytest.mark.parametrize("blob_id", ["../../etc/passwd", "missing"])
def test_a_reply_about_files_that_are_not_there_is_an_error(tmp_path: Path, blob_id: str) -> None:
    """The worker hears of an error reply, and no path is made of a client's words."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=1)
        arrays = pb.Arrays(blob=pb.Blob(id=blob_id, size_bytes=3))
        envelope = pb.Envelope(records=[pb.Record(name="arrays", arrays=arrays)])
        await desk.dispatcher.reply(1, pb.Reply(instruction_id="1-a-1", envelope=envelope))
        await settle()
        assert desk.told[0].reply.envelope.HasField("error")

    at_a_desk(tmp_path, scenario)


def test_a_refused_update_does_not_count_towards_the_quorum(tmp_path: Path) -> None:
    """One honest and one useless update are not two, whoever else has let the lease lapse."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=2)
        await desk.answer(1)
        await desk.answer(2)
        desk.dispatcher.refused(desk.run.id, "1", 2)
        desk.dispatcher.refused(desk.run.id, "1", 2)
        desk.later(LEASE_S + 1)
        await settle()
        assert "end" not in desk.kinds()
        await desk.answer(3)
        await settle()
        assert desk.kinds()[-1] == "end"

    at_a_desk(tmp_path, scenario)


def test_who_works_on_what_is_forgotten_is_told_to_stop(tmp_path: Path) -> None:
    """Nobody asks for its answer any more; who has answered hears nothing."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=0)
        await desk.answer(1)
        await desk.dispatcher.forget(desk.run.id, "1")
        for node, expected in ((1, []), (2, ["1-a-2"]), (3, ["1-a-3"])):
            queue, told = desk.agents[node].outgoing, []
            while not queue.empty():
                message = queue.get_nowait()
                assert message is not None
                told += [message.cancel.instruction_id] if message.HasField("cancel") else []
            assert told == expected
        assert desk.dispatcher.run_of(2, "1-a-2") is None

    at_a_desk(tmp_path, scenario)


def test_a_quorum_that_cannot_be_met_is_said_and_then_ends_the_step(tmp_path: Path) -> None:
    """All three are needed and one is gone: an event when it is silent, and past the deadline the
    end, from which the worker sees that there are too few. Who comes back in time still counts."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=3, deadline_s=200.0)
        await desk.answer(1)
        await desk.answer(2)
        desk.later(LEASE_S + 5)
        await settle()
        missing = {"round": "1", "step": "1/train/0", "missing": [3], "updates": 2, "quorum": 3}
        assert desk.events == [("round_waits", missing)]
        desk.dispatcher.renew_lease(3, "1-a-3")
        await settle()
        desk.later(LEASE_S + 5)
        await settle()
        assert len(desk.events) == 2 and "end" not in desk.kinds()
        desk.later(100.0)
        await settle()
        assert desk.kinds() == ["reply", "reply", "end"]

    at_a_desk(tmp_path, scenario)


def test_a_deadline_that_passes_on_a_full_disk_ends_the_step_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why it waits; with room again the step ends, and an answer that was refused is
    taken."""
    monkeypatch.setattr(threads, "RETRY_S", 0.001)

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=1, deadline_s=10.0)
        await desk.answer(1)
        disk = Disk(desk.journal)
        disk.full = True
        with pytest.raises(StoreError, match="disk is full"):
            await desk.answer(2)
        desk.later(11.0)
        while "disk is full; the server waits until the disk has room again" not in caplog.text:
            await asyncio.sleep(0.001)
        assert desk.kinds() == ["reply"] and not desk.failed
        disk.full = False
        while len(desk.told) < 2:
            await asyncio.sleep(0.001)
        assert desk.kinds() == ["reply", "end"]
        await desk.answer(2)
        assert desk.kinds() == ["reply", "end"]

    at_a_desk(tmp_path, scenario)


@pytest.mark.parametrize("column", ["envelope", "state", "reply", "node_id"])
def test_a_damaged_row_is_not_read(tmp_path: Path, column: str) -> None:
    """Whichever of its columns: the worker that repeats its step is not told of it."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=1, deadline_s=10.0)
        await desk.answer(1)
        db = desk.journal._db._db
        where = {"state": "pending", "reply": "answered"}.get(column, "pending")
        db.execute("DROP TRIGGER seal_instructions_update")
        db.execute(f"UPDATE instructions SET {column} = 1 WHERE state = '{where}'")
        with pytest.raises(StoreError, match=r"the row '1-a-\d' of instructions is not as it was"):
            await desk.open(quorum=1)

    at_a_desk(tmp_path, scenario)


def test_a_row_that_cannot_be_changed_fails_its_run(tmp_path: Path) -> None:
    """At the deadline and at an answer: nobody waits for ever, and nobody asks again and again."""

    async def scenario(desk: Desk) -> None:
        await desk.open(quorum=1, deadline_s=10.0)
        db = desk.journal._db._db
        db.execute("UPDATE seals SET crc32 = crc32 + 1 WHERE part = 'instructions'")
        await desk.answer(1)
        assert len(desk.failed) == 1 and "instructions is not as it was written" in desk.failed[0]
        step = desk.dispatcher._steps[desk.run.id, "1/train/0"]
        step.updates = 1
        desk.later(11.0)
        await settle()
        assert len(desk.failed) == 2 and "end" not in desk.kinds()

    at_a_desk(tmp_path, scenario)


def test_clients_hear_of_the_configured_cohort_where_coins_drew_it() -> None:
    """How many were drawn is as secret as who they are; elsewhere it is as many as were asked."""
    from meadow.server.daemon.steps import instruction_of
    from meadow.server.journal.run_table import RunRow
    from meadow.server.journal.step_table import InstructionRow
    from meadow.transport.run_sites import pack_sites

    row = InstructionRow(
        id="1", run_id=1, step_key="1/train/0", node_id=1, envelope=b"", state="pending", reply=None
    )
    told = {}
    for announced_cohort in (0, 50):
        ready = pb.WorkerReady(cohort=announced_cohort, differential_privacy=True)
        run = mock.Mock(spec=RunRow, id=1, app="digits", sha256="a")
        made = [
            instruction_of(run, ready, row, clients=n, sites=pack_sites(range(1, 10)))
            for n in (3, 4)
        ]
        told[announced_cohort] = [each.cohort_clients for each in made]
    assert told == {0: [3, 4], 50: [50, 50]}


def test_which_runs_keep_their_cohorts_secret() -> None:
    """Those whose cohorts are drawn by coins; the server waits for no number of them."""
    from types import SimpleNamespace

    from meadow.config.load import make_config
    from meadow.server.worker.worker import _is_sampled, announced_cohort_of

    def app(**private: object) -> App:
        chosen = {"enabled": True, "noise_multiplier": 1.0, **private}
        sections = {
            "run": {"cohort": 50},
            "simulation": {"clients": 500},
            "privacy": {"differential_privacy": chosen},
        }
        return SimpleNamespace(config=make_config(sections))  # type: ignore[return-value]

    assert _is_sampled(app()) and announced_cohort_of(app()) == 50
    for others in (
        {"sampling": "fixed"},
        {"unit": "record", "sampling_rate": 0.1},
        {"sampling": "fixed", "clip": 2.0},
    ):
        assert not _is_sampled(app(**others)) and announced_cohort_of(app(**others)) == 0
