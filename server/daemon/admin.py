"""The calls of those who administer the server: sites and runs.

Who may make which, and what is recorded of it, is in `administration.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import grpc

from ... import __version__
from ...apps.folder import App, unpack
from ...errors import AppError, MeadowError, StoreError
from ...strategies.rounds.selection import TAG_FORM, is_tag
from ...transport import fleet_pb2 as pb
from ...transport.app_signature import SIGNATURE_FILE, AppSignature
from ...transport.durable import make_folder, write_file
from ...transport.fleet_pb2_grpc import AdminServicer
from ...transport.identity import check_client_name, fingerprint_of
from ...transport.tokens import create_token
from ..journal.journal import Journal
from ..journal.run_table import OVER, RunRow
from ..journal.site_table import SiteRow
from .agent_registry import AgentRegistry
from .dispatch import Dispatcher
from .floods import Floods
from .offer import OFFER_FOLDER
from .peer_auth import REVOKED, Context
from .retention import pruned_at
from .server_dir import INVITATION_HOURS_MAX, ServerFolder
from .storage import Storage
from .supervisor import Supervisor
from .threads import JournalThread

__all__ = ["APP_ZIP_BYTES_MAX", "AdminService"]

APP_ZIP_BYTES_MAX = 64 << 20
EVENTS_SENT_MAX = 500
PULL_CHUNK_BYTES = 1 << 20
APP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RUN_ID_MAX = (1 << 63) - 1


class AdminService(AdminServicer):
    """Serves the calls of `meadow site`, `meadow run` and `meadow server status`."""

    def __init__(
        self,
        journal: Journal,
        thread: JournalThread,
        agents: AgentRegistry,
        supervisor: Supervisor,
        dispatcher: Dispatcher,
        floods: Floods,
        server_folder: ServerFolder,
        storage: Storage,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._thread = thread
        self._agents = agents
        self._supervisor = supervisor
        self._dispatcher = dispatcher
        self._floods = floods
        self._server_folder = server_folder
        self._storage = storage
        self._clock = clock
        self._started_at_s = clock()

    async def Status(self, request: pb.Empty, context: Context) -> pb.ServerStatus:
        """Return the server's version, its numbers of clients, and the runs that are under way."""
        runs = await self._thread(self._journal.runs.all, "queued", "running")
        return pb.ServerStatus(
            version=__version__,
            started_at_s=self._started_at_s,
            connected=self._agents.connected,
            enrolled=self._agents.enrolled,
            runs=[_run(run) for run in runs],
        )

    async def Events(self, request: pb.Empty, context: Context) -> pb.EventList:
        """List the last events of the server itself, oldest first."""
        rows = await self._thread(self._journal.events.after, 0)
        return pb.EventList(events=[_event(row) for row in rows[-EVENTS_SENT_MAX:]])

    # ------------------------------------------------------------------ sites

    async def Sites(self, request: pb.Empty, context: Context) -> pb.SiteList:
        """List all sites."""
        sites = await self._thread(self._journal.sites.all)
        return pb.SiteList(sites=[self._site(site) for site in sites])

    async def Revoke(self, request: pb.SiteName, context: Context) -> pb.Site:
        """Revoke a site: disconnect it and refuse its later calls."""
        revoked = await self._thread(self._journal.sites.revoke, request.name, now_s=self._clock())
        site = await self._thread(self._journal.sites.get, request.name)
        if not revoked or site is None:
            text = f"there is no site {request.name!r}; `meadow site list` shows them"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        self._agents.update(site)
        self._agents.cut_off(site.node_id, REVOKED)
        await self._dispatcher.give_up(site.node_id, f"{site.name} was revoked")
        detail = json.dumps({"client": site.name})
        await self._thread(self._journal.events.record, 0, "revoked", detail, now_s=self._clock())
        return self._site(site)

    async def Tag(self, request: pb.SiteTags, context: Context) -> pb.Site:
        """Replace a site's tags; runs under way use them from their next round."""
        if wrong := [tag for tag in request.tags if not is_tag(tag)]:
            text = f"{wrong[0][:50]!r} is not a tag; {TAG_FORM}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        site = await self._thread(self._journal.sites.tag, request.name, list(request.tags))
        if site is None:
            text = f"there is no site {request.name!r}; `meadow site list` shows them"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        self._agents.update(site)
        return self._site(site)

    async def Invite(self, request: pb.InviteRequest, context: Context) -> pb.Invitation:
        """Make a one-time enrolment token for a client; its older ones become void."""
        name, hours = check_client_name(request.name), request.hours
        if not 0 < hours <= INVITATION_HOURS_MAX:
            text = f"an invitation is valid for up to {INVITATION_HOURS_MAX} hours, not {hours:g}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        token, token_hash = create_token()
        now_s = self._clock()
        until_s = now_s + hours * 3600.0
        await self._thread(
            self._journal.sites.invite, name, token_hash, now_s=now_s, expires_at_s=until_s
        )
        fingerprint = fingerprint_of(self._server_folder.authority.certificate_pem)
        return pb.Invitation(
            token=token,
            expires_at_s=until_s,
            ca_fingerprint=fingerprint,
            enroll_address=self._server_folder.enroll_advertised(),
        )

    def _site(self, site: SiteRow) -> pb.Site:
        state = "away"
        if site.revoked_at_s is not None:
            state = "revoked"
        elif self._agents.get(site.node_id) is not None:
            state = "connected"
        elif site.serial is None:
            state = "invited"
        return pb.Site(
            name=site.name,
            node_id=site.node_id,
            state=state,
            seen_at_s=site.seen_at_s,
            certificate_until_s=site.certificate_until_s,
            version=site.version,
            tags=sorted(site.tags),
        )

    # ------------------------------------------------------------------ runs

    async def Submit(self, requests: AsyncIterator[pb.SubmitMessage], context: Context) -> pb.Run:
        """Receive an app and begin a run of it."""
        first = await anext(requests, None)
        if first is None or not first.HasField("open"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a submission begins with open")
        if first.open.size_bytes > APP_ZIP_BYTES_MAX:
            text = f"the app is {first.open.size_bytes} bytes; at most {APP_ZIP_BYTES_MAX}"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        await self._storage.require_room()
        archive = bytearray()
        async for message in requests:
            archive += message.zip
            self._floods.useful(context.peer(), len(message.zip))
            if len(archive) > first.open.size_bytes:
                text = "the app is larger than its declared size"
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        run_id = await self._take(first.open, bytes(archive))
        self._supervisor.begin(run_id)
        return _run(await self._row(run_id, context))

    async def _take(self, opened: pb.SubmitOpen, archive: bytes) -> int:
        settings = list(opened.settings)
        if not APP_NAME.fullmatch(opened.name):
            raise AppError(f"{opened.name[:80]!r} is not an app's name: letters, digits, . _ -")
        run_id = await self._thread(
            self._journal.runs.submit, "", "", json.dumps(settings), now_s=self._clock()
        )
        folder = self._supervisor.run_dir(run_id)

        def lay_out() -> App:
            shutil.rmtree(folder, ignore_errors=True)
            make_folder(folder)
            unpack(archive, folder / "app")
            app = App.load(folder / "app", overrides=settings, environ={})
            if opened.signature:
                AppSignature.from_bytes(opened.signature).verify(opened.name, app.sha256)
                make_folder(folder / OFFER_FOLDER)
                write_file(folder / OFFER_FOLDER / SIGNATURE_FILE, opened.signature)
            return app

        try:
            app = await asyncio.to_thread(lay_out)
        except (MeadowError, OSError) as error:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            with suppress(StoreError):  # the next start does it
                await self._thread(
                    self._journal.runs.status,
                    run_id,
                    "failed",
                    cause=str(error),
                    now_s=self._clock(),
                )
            raise
        await self._thread(self._journal.runs.begin, run_id, opened.name, app.sha256)
        return run_id

    async def Runs(self, request: pb.Empty, context: Context) -> pb.RunList:
        """List all runs."""
        return pb.RunList(runs=[_run(run) for run in await self._thread(self._journal.runs.all)])

    async def ShowRun(self, request: pb.RunId, context: Context) -> pb.RunDetail:
        """Show one run and its events."""
        run = await self._row(request.id, context)
        events = await self._thread(self._journal.events.after, request.id)
        return pb.RunDetail(
            run=_run(run), events=[_event(row) for row in events[-EVENTS_SENT_MAX:]]
        )

    async def Watch(self, request: pb.RunId, context: Context) -> AsyncIterator[pb.RunEvent]:
        """Stream a run's events, past ones first, until it is over."""
        await self._row(request.id, context)
        changed = self._supervisor.watch(request.id)
        last = 0
        try:
            while True:
                changed.clear()
                run = await self._row(request.id, context)
                for row in await self._thread(self._journal.events.after, request.id, after=last):
                    last = row["id"]
                    yield _event(row)
                if run.status in OVER:
                    return
                await changed.wait()
        finally:
            self._supervisor.unwatch(request.id, changed)

    async def Stop(self, request: pb.RunId, context: Context) -> pb.Run:
        """End a run where it is; its last committed model stays."""
        run = await self._row(request.id, context)
        if run.status in OVER:
            text = f"run {run.id} is already {run.status}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        await self._supervisor.stop(request.id)
        return _run(await self._row(request.id, context))

    async def Resume(self, request: pb.RunId, context: Context) -> pb.Run:
        """Resume a failed or stopped run after its last committed round."""
        run = await self._row(request.id, context)
        secure = pb.WorkerReady.FromString(run.ready or b"").secure_aggregation
        if (ending := self._supervisor.ending(run.id)) is not None:
            problem = ending
        elif secure and run.status in ("failed", "stopped"):
            problem = (
                f"run {run.id} has secure aggregation, whose clients answer a round only once; "
                "submit the app again"
            )
        elif not run.sha256:
            problem = f"run {run.id} never began: {run.cause or 'its app did not arrive'}"
        else:
            problem = await self._thread(self._requeue, run)
        if problem:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        await self._supervisor.go_on(run.id)
        return _run(await self._row(request.id, context))

    def _requeue(self, run: RunRow) -> str:
        """Queue an ended run again; return why not, empty if it is queued."""
        with self._journal.transaction():  # it may be pruned meanwhile, also by another process
            if at := pruned_at(self._supervisor.run_dir(run.id)):
                return f"run {run.id} was pruned at {at}: its checkpoints are gone; submit the app again"
            if not self._journal.runs.requeue(run.id):
                return f"run {run.id} is {run.status}; only a failed or stopped run can be resumed"
        return ""

    async def Pull(
        self, request: pb.PullRequest, context: Context
    ) -> AsyncIterator[pb.PullMessage]:
        """Send a run's folder without the app, the checkpoints and secret keys."""
        await self._row(request.run_id, context)
        folder = self._supervisor.run_dir(request.run_id)
        for path in await asyncio.to_thread(_results, folder):
            yield pb.PullMessage(file=path.relative_to(folder).as_posix())
            with path.open("rb") as file:
                while data := await asyncio.to_thread(file.read, PULL_CHUNK_BYTES):
                    yield pb.PullMessage(data=data)

    async def _row(self, run_id: int, context: Context) -> RunRow:
        possible = run_id <= RUN_ID_MAX
        run = await self._thread(self._journal.runs.get, run_id) if possible else None
        if run is None:
            text = f"there is no run {run_id}; `meadow run list` shows them"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return run


def _results(folder: Path) -> list[Path]:
    files = [p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()]
    skipped = {"app", "checkpoints", OFFER_FOLDER}
    files = [p for p in files if p.parent != folder or p.suffix != ".key"]  # secrets stay
    return sorted(p for p in files if p.relative_to(folder).parts[0] not in skipped)


def _run(run: RunRow) -> pb.Run:
    return pb.Run(
        id=run.id,
        app=run.app,
        sha256=run.sha256,
        status=run.status,
        cause=run.cause,
        round=run.round,
        rounds=run.rounds,
        submitted_at_s=run.submitted_at_s,
        finished_at_s=run.finished_at_s or 0.0,
    )


def _event(row: sqlite3.Row) -> pb.RunEvent:
    return pb.RunEvent(at_s=row["at_s"], kind=row["kind"], json=row["json"])
