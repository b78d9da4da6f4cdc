"""A power cut at any moment: whatever a commit relies on was durable before it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from meadow.apps.folder import App, content_hash, pack, unpack
from meadow.client.agent.state import AgentState
from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.identity_folder import IdentityFolder
from meadow.errors import MeadowError
from meadow.flower.messages import params_to_arrays
from meadow.run.checkpoints import Checkpoints
from meadow.run.run_folder import RunFolder
from meadow.server.daemon.admin import AdminService
from meadow.server.daemon.agent_registry import AgentRegistry
from meadow.server.daemon.dispatch import Dispatcher
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.daemon.spool import Spool
from meadow.server.daemon.supervisor import Supervisor
from meadow.server.daemon.threads import JournalThread
from meadow.server.journal.journal import Journal
from meadow.server.worker.worker import _require_same
from meadow.strategies.algorithms.algorithm import State as AlgorithmState
from meadow.strategies.rounds.recorder import Checkpoint, RoundTable
from meadow.transport import fleet_pb2 as pb
from meadow.transport.authority import Authority
from meadow.transport.blobs import Receiver, blob_path, chunks, new_blob_id
from meadow.transport.content import pack_content, unpack_content
from meadow.transport.tensors import checksum, write_tensors
from meadow.transport.writer import BlobWriter

from .power_cut import PowerCut

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
LARGE = {"w": np.arange(20_000, dtype=np.float32)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder that is on the disk."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def power(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PowerCut]:
    """The disk forgets from now on what is not synced."""
    made = PowerCut(root, monkeypatch)
    yield made
    made.close()


def test_a_disk_forgets_what_was_not_synced(root: Path, power: PowerCut, tmp_path: Path) -> None:
    """The test's own disk: a file without its name, a name without its bytes, then both."""
    with (root / "a").open("wb") as file:
        file.write(b"one")
        file.flush()
        os.fsync(file.fileno())
    assert not (power.image(tmp_path / "cut") / "a").exists()
    (root / "b").write_bytes(b"two")
    sync(root)
    left = power.image(tmp_path / "cut")
    assert ((left / "a").read_bytes(), (left / "b").read_bytes()) == (b"one", b"")


def test_a_submitted_app_is_there(root: Path, power: PowerCut, tmp_path: Path) -> None:
    """When the journal says that the run is queued, every file of its app is."""
    journal = Journal(root / "journal.sqlite")
    (root / "runs").mkdir()
    found = []
    begin = journal.runs.begin

    def noted(run_id: int, app: str, sha256: str) -> None:
        left = power.image(tmp_path / "cut")
        found.append(content_hash(left / "runs" / str(run_id) / "app") == sha256)
        begin(run_id, app, sha256)

    journal.runs.begin = noted  # type: ignore[method-assign]

    async def submit() -> int:
        thread = JournalThread(journal)
        links = AgentRegistry([], lease_s=60.0, clock=lambda: 0.0)
        spool = Spool(root / "spool", blob_bytes_max=1 << 30)
        dispatcher = Dispatcher(journal, thread, spool, links, lease_s=60.0, clock=lambda: 0.0)
        supervisor = Supervisor(root, journal, thread, dispatcher, links, spool, clock=lambda: 0.0)
        others: Any = None  # nobody floods, nobody is invited
        admin = AdminService(
            journal,
            thread,
            links,
            supervisor,
            dispatcher,
            others,
            others,
            others,
            clock=lambda: 0.0,
        )
        run = await admin._take(pb.SubmitOpen(name="digits"), pack(DIGITS))
        thread.close()
        return run

    sync(root)
    assert asyncio.run(submit()) == 1
    assert found == [True]
    journal.close()


def sync(root: Path) -> None:
    """Make the names in a folder durable, as the server's layout does."""
    fd = os.open(root, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def test_the_files_of_messages_are_there(root: Path, power: PowerCut, tmp_path: Path) -> None:
    """What an instruction names, before it is recorded; and what a reply names, before that is."""
    spool = Spool(root / "spool", blob_bytes_max=1 << 30)
    arrays = BlobWriter(spool.outgoing(7)).put(params_to_arrays(LARGE))
    left = power.image(tmp_path / "cut")
    sent = Spool(left / "spool", blob_bytes_max=1 << 30)
    assert checksum(blob_path(sent.outgoing(7), arrays.blob.id)).crc32 == arrays.blob.crc32

    source = tmp_path / "source.safetensors"
    info = write_tensors(source, LARGE, fsync=False)
    blob = pb.Blob(id=new_blob_id(), size_bytes=info.size_bytes, crc32=info.crc32)
    with Receiver(spool.make_room(7, "7-a-0", blob), blob, size_max=1 << 30) as receiver:
        for piece in chunks(source):
            receiver.write(piece)
        receiver.finish()
    left = power.image(tmp_path / "cut")
    received = Spool(left / "spool", blob_bytes_max=1 << 30)
    record = pb.Record(name="arrays", arrays=pb.Arrays(blob=blob))
    received.check(7, "7-a-0", pb.Envelope(records=[record]))
    assert checksum(blob_path(received.replies(7, "7-a-0"), blob.id)).crc32 == blob.crc32


def test_rounds_are_there(root: Path, power: PowerCut, tmp_path: Path) -> None:
    """At every moment the run goes on after the last round that was told, or the one under way."""
    told = 0
    seen = set()

    def cut() -> None:
        folder = power.image(tmp_path / "cut") / "run" / "checkpoints"
        if not folder.exists() and not told:
            return
        damaged: list[str] = []
        kept = Checkpoints(folder).newest(lambda kind, detail: damaged.append(kind))
        found = 0 if kept is None else kept.state.round
        assert not damaged and found in (told, told + 1), (found, told)
        seen.add(found)

    run = RunFolder(root / "run", config_toml="", on_event=lambda kind, detail: None)
    power.on_sync = cut
    for number in (1, 2, 3, 4):
        params = {"w": np.full(10, number, np.float32)}
        slots = {"momentum": {"w": np.zeros(10)}}
        state = AlgorithmState(params=params, round=number, slots=slots)
        checkpoint = Checkpoint(state=state, best=None, stale_rounds=0, history=[])
        run.commit(checkpoint, {"round": number}, RoundTable())
        told = number
    assert seen >= {1, 2, 3, 4}
    cut()


def test_what_a_client_answers_is_there(root: Path, power: PowerCut, tmp_path: Path) -> None:
    """Its reply's files and its app's state, before `record` makes them count."""
    state = AgentState(AgentDatabase(root / "agent.sqlite"), root)
    arrays = BlobWriter(state.reply_dir(7, "7-a-0"), file_pool=state.file_pool).put(
        params_to_arrays(LARGE)
    )
    content = RecordDict({"mine": params_to_arrays(LARGE), "about": ConfigRecord({"n": 1})})
    packed = pack_content(content, BlobWriter(state.state_dir(7)))
    left = power.image(tmp_path / "cut")
    there = AgentState(AgentDatabase(left / "agent.sqlite"), left)
    file = blob_path(there.reply_dir(7, "7-a-0"), arrays.blob.id)
    assert checksum(file).crc32 == arrays.blob.crc32
    again = unpack_content(packed, there.state_dir(7))
    assert (again.array_records["mine"].to_numpy_ndarrays()[0] == LARGE["w"]).all()


def test_identities_are_there(root: Path, power: PowerCut, tmp_path: Path) -> None:
    """A server's after `init`, and a client's after enrolment, at every moment all or nothing."""
    home = ServerFolder.create(root / "server", host="localhost", now=datetime.now(UTC))
    left = ServerFolder(power.image(tmp_path / "cut") / "server")
    assert left.authority == home.authority
    assert left.admin() == home.admin() and left.admin_serial() == home.admin_serial()

    def cut() -> None:
        folder = IdentityFolder(power.image(tmp_path / "cut") / "client")
        if folder.exists:
            assert folder.load().name == "site-1"

    power.on_sync = cut
    authority = Authority.create(now=datetime.now(UTC))
    identity = IdentityFolder(root / "client")
    for _ in range(2):
        exists = identity.exists
        request = identity.begin_renewal("site-1") if exists else identity.request()
        pem = authority.issue_client(request, name="site-1", now=datetime.now(UTC), days=9)
        if exists:
            identity.finish_renewal(pem)
        else:
            certificate = pb.Certificate(
                certificate_pem=pem, ca_pem=authority.certificate_pem, client="site-1",
                node_id=1, fleet_address="localhost:1",
            )  # fmt: skip
            identity.store(certificate)
    left_client = IdentityFolder(power.image(tmp_path / "cut") / "client").load()
    assert left_client == identity.load()


def test_an_app_that_is_not_what_was_submitted_is_not_run(tmp_path: Path) -> None:
    """Whatever has changed it since: the run fails and says so."""
    unpack(pack(DIGITS), tmp_path / "app")
    sha256 = content_hash(tmp_path / "app")
    _require_same(App.load(tmp_path / "app", environ={}), sha256)
    (tmp_path / "app" / "task.py").write_bytes(b"")
    with pytest.raises(MeadowError, match="is not what was submitted"):
        _require_same(App.load(tmp_path / "app", environ={}), sha256)
