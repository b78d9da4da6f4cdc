"""A server as its pages see it: the calls that one certificate may make, over one connection."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from ...apps.folder import App
from ...errors import MeadowError
from ...transport import fleet_pb2 as pb
from ...transport.fleet_pb2_grpc import AdminStub
from ...transport.identity import identity_of
from ..daemon.roles import ROLE_WORDS
from ..daemon.routes import ROUTES
from ..daemon.server_dir import AdminIdentity
from ..journal.run_table import OVER
from ..remote.connection import translated
from ..remote.runs import named, site_names, submit
from .followed_run import FollowedRun

__all__ = ["RemoteServer"]

CALL_S: Final = 10.0
STOP_S: Final = 60.0
RUNS_FOLLOWED_MAX: Final = 8
FIRST_ROUNDS_S: Final = 5.0
"""How long a page waits for the past rounds of its run."""


class RemoteServer:
    """Makes calls; each raises `MeadowError` with the server's own words where it refuses."""

    def __init__(self, stub: AdminStub, identity: AdminIdentity) -> None:
        self._stub = stub
        self._identity = identity_of(identity.certificate_pem)
        self.address = identity.address
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        self._followed: OrderedDict[int, FollowedRun] = OrderedDict()

    @property
    def name(self) -> str:
        """Whose certificate it is."""
        return self._identity.name

    @property
    def role(self) -> str:
        """The role as commands name it, such as "viewer"."""
        return next(word for word, role in ROLE_WORDS.items() if role == self._identity.role)

    def may(self, call: str) -> bool:
        """Return whether a call such as "Admin.Stop" is for this role; the server decides again."""
        return self._identity.role in ROUTES[call].roles

    def status(self) -> pb.ServerStatus:
        """Return the server's version, its numbers of sites, and the runs that are under way."""
        with translated(self.address):
            status: pb.ServerStatus = self._stub.Status(pb.Empty(), timeout=CALL_S)
        return status

    def sites(self) -> list[pb.Site]:
        """Return all sites."""
        with translated(self.address):
            return list(self._stub.Sites(pb.Empty(), timeout=CALL_S).sites)

    def runs(self) -> list[pb.Run]:
        """Return all runs, the newest first."""
        with translated(self.address):
            return list(reversed(self._stub.Runs(pb.Empty(), timeout=CALL_S).runs))

    def events(self) -> list[pb.RunEvent]:
        """Return the server's last events, the newest first."""
        with translated(self.address):
            return list(reversed(self._stub.Events(pb.Empty(), timeout=CALL_S).events))

    def run(self, run_id: int) -> tuple[pb.Run, FollowedRun]:
        """Return a run, and what has happened in it until now.

        Raises:
            MeadowError: there is none of this number.
        """
        run = next((each for each in self.runs() if each.id == run_id), None)
        if run is None:
            raise MeadowError(f"there is no run {run_id}")
        with self._lock:
            followed = self._followed.pop(run_id, None)
            if followed is None or (followed.ended and _goes_on(run, followed)):
                followed = self._follow(run_id)
            self._followed[run_id] = followed
            dropped = []
            while len(self._followed) > RUNS_FOLLOWED_MAX:
                dropped.append(self._followed.popitem(last=False)[1])
        for each in dropped:
            each.close()
        followed.wait_for(None if run.status in OVER else run.round, FIRST_ROUNDS_S)
        return run, followed

    def stop(self, run_id: int) -> None:
        """Stop a run."""
        with translated(self.address):
            self._stub.Stop(pb.RunId(id=run_id), timeout=STOP_S)

    def resume(self, run_id: int) -> None:
        """Resume a run that has failed or was stopped."""
        with translated(self.address):
            self._stub.Resume(pb.RunId(id=run_id), timeout=STOP_S)

    def submit(self, folder: Path, settings: list[str]) -> int:
        """Begin a run of an app folder; returns its number."""
        app = App.load(folder, overrides=settings)
        with translated(self.address):
            return int(submit(self._stub, app).id)

    def revoke(self, site: str) -> None:
        """Revoke a site."""
        with translated(self.address):
            self._stub.Revoke(pb.SiteName(name=site), timeout=STOP_S)

    def tag(self, site: str, tags: list[str]) -> None:
        """Replace a site's tags."""
        with translated(self.address):
            self._stub.Tag(pb.SiteTags(name=site, tags=tags), timeout=STOP_S)

    def invite(self, site: str, hours: float) -> pb.Invitation:
        """Make a one-time enrolment token."""
        with translated(self.address):
            request = pb.InviteRequest(name=site, hours=hours)
            invitation: pb.Invitation = self._stub.Invite(request, timeout=CALL_S)
        return invitation

    def close(self) -> None:
        """End the calls that follow runs."""
        with self._lock:
            followed = list(self._followed.values())
            self._followed.clear()
        for each in followed:
            each.close()

    def _follow(self, run_id: int) -> FollowedRun:
        return FollowedRun(lambda: self._stub.Watch(pb.RunId(id=run_id)), self._named)

    def _named(self, detail: dict[str, Any]) -> dict[str, Any]:
        if detail.get("client", 0) not in self._names:
            self._names = site_names(self._stub)
        return named(detail, self._names)


def _goes_on(run: pb.Run, followed: FollowedRun) -> bool:
    """Return whether a run has gone on since it was followed to its end."""
    rounds = followed.rounds()
    return run.status not in OVER or run.round > (rounds[-1]["round"] if rounds else 0)
