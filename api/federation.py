"""`connect`: a real server from Python: its sites and runs, new runs, and their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..apps.folder import App
from ..errors import ConfigError, RunError
from ..server.remote import runs as remote
from ..server.remote.connection import admin_stub
from ..transport import fleet_pb2 as pb
from .display import Progress, shown
from .run import Run, table
from .settings import overrides_of

__all__ = ["Federation", "RemoteRun", "connect"]

OnEvent = Callable[[str, Mapping[str, Any]], None]
CALL_S = 10.0
CHANGE_S = 60.0


class Federation:
    """A server with its sites and runs, seen by its administrator.

    Every call connects anew, with the administrator's certificate.

    Raises, in every call:
        UnreachableError: no server answers.
        IdentityError: the server refuses the certificate.
        MeadowError: the server refuses the request; the message is the server's.
    """

    def __init__(self, *, admin: Path | None = None, folder: Path | None = None) -> None:
        self._admin, self._folder = admin, folder

    @property
    def sites(self) -> Any:
        """A row a site: "name", "state", "seen", "certificate_until", "version", "tags"; a pandas
        DataFrame where pandas is installed, else a list of dicts."""
        with self._stub() as stub:
            sites = stub.Sites(pb.Empty(), timeout=CALL_S).sites
        return table(
            [
                {
                    "name": site.name,
                    "state": site.state,
                    "seen": _moment(site.seen_at_s),
                    "certificate_until": _moment(site.certificate_until_s),
                    "version": site.version,
                    "tags": list(site.tags),
                }
                for site in sites
            ]
        )

    @property
    def runs(self) -> Any:
        """A row a run: "id", "app", "status", "round", "rounds", "submitted", "cause"; as `sites`."""
        with self._stub() as stub:
            runs = stub.Runs(pb.Empty(), timeout=CALL_S).runs
        return table([_row(run) for run in runs])

    def run(self, number: int) -> RemoteRun:
        """Return a run of this server by its number."""
        return RemoteRun(self, number)

    def submit(self, app: Path | str, settings: Mapping[str, Any] | None = None) -> RemoteRun:
        """Submit an app folder to the server, which starts a run; returns the run without waiting.

        `settings` are dotted keys of meadow.toml: {"run.rounds": 20}.

        Raises:
            AppError, ConfigError: the app or a setting cannot be used.
        """
        loaded = App.load(app, overrides=overrides_of(dict(settings or {})))
        with self._stub() as stub:
            return RemoteRun(self, remote.submit(stub, loaded).id)

    def __repr__(self) -> str:
        return f"<Federation of {self._admin or self._folder}>"

    def _stub(self) -> Any:
        return admin_stub(self._folder, self._admin)


class RemoteRun:
    """A run on a server.

    Attributes:
        number: the run's number on its server.
    """

    def __init__(self, federation: Federation, number: int) -> None:
        self._federation, self.number = federation, number

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of this run in `Federation.runs`."""
        with self._federation._stub() as stub:
            return _row(stub.ShowRun(pb.RunId(id=self.number), timeout=CALL_S).run)

    @property
    def status(self) -> str:
        """ "queued", "running", "finished", "stopped" or "failed", among others."""
        return str(self.row["status"])

    @property
    def events(self) -> Any:
        """A row an event: "at", "kind" and its details; a DataFrame or a list of dicts."""
        with self._federation._stub() as stub:
            found = stub.ShowRun(pb.RunId(id=self.number), timeout=CALL_S)
            names = remote.site_names(stub)
        return table(
            [
                {
                    "at": _moment(event.at_s),
                    "kind": event.kind,
                    **remote.named(json.loads(event.json), names),
                }
                for event in found.events
            ]
        )

    def watch(self, *, progress: Progress = None, on_event: OnEvent | None = None) -> RemoteRun:
        """Follow the run to its end and return it; `progress` and `on_event` as of `simulate`.

        An interrupt ends the watching, not the run.

        Raises:
            RunError: the run failed.
        """
        with (
            self._federation._stub() as stub,
            shown(f"run {self.number}", progress, on_event) as show,
        ):
            for kind, detail in remote.events_of(stub, self.number):
                show(kind, detail)
        row = self.row
        if row["status"] == "failed":
            raise RunError(f"run {self.number} failed: {row['cause']}")
        return self

    def stop(self) -> None:
        """Stop the run; its last committed model stays."""
        with self._federation._stub() as stub:
            stub.Stop(pb.RunId(id=self.number), timeout=CHANGE_S)

    def resume(self) -> RemoteRun:
        """Resume a failed or stopped run after its last committed round."""
        with self._federation._stub() as stub:
            stub.Resume(pb.RunId(id=self.number), timeout=CHANGE_S)
        return self

    def pull(self, out: Path | str | None = None) -> Run:
        """Fetch the run's folder, into run-NUMBER if `out` is absent, and return it as a `Run`.

        Raises:
            ConfigError: the folder is not empty.
        """
        target = Path(out) if out is not None else Path(f"run-{self.number}")
        if target.exists() and any(target.iterdir()):
            raise ConfigError(f"{target} is not empty; give another folder")
        with self._federation._stub() as stub:
            remote.pull(stub, self.number, target)
        return Run(target)

    def __repr__(self) -> str:
        row = self.row
        return f"<RemoteRun {self.number} of {row['app']}: {row['status']}, round {row['round']}>"


def connect(admin: Path | str) -> Federation:
    """Return the server of an admin file (admin.json), or of the server's own folder.

    Raises:
        ConfigError: there is no such file or folder.
    """
    path = Path(admin)
    if not path.exists():
        raise ConfigError(
            f"{path}: there is no such file; the server's folder has an admin.json for its "
            "administrator"
        )
    return Federation(folder=path) if path.is_dir() else Federation(admin=path)


def _row(run: pb.Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "app": run.app,
        "status": run.status,
        "round": run.round,
        "rounds": run.rounds,
        "submitted": _moment(run.submitted_at_s),
        "cause": run.cause,
    }


def _moment(at_s: float) -> datetime | None:
    return datetime.fromtimestamp(at_s, UTC) if at_s else None
