"""What an administrator asks of a server's runs: send an app, follow its events, fetch its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ...apps.folder import App, pack
from ...errors import ProtocolError
from ...transport import fleet_pb2 as pb
from ...transport.app_signature import signature_beside
from ...transport.fleet_pb2_grpc import AdminStub

__all__ = ["events_of", "named", "pull", "site_names", "submit"]

ZIP_CHUNK_BYTES = 256 << 10
SUBMIT_S = 120.0
CALL_S = 10.0


def submit(stub: AdminStub, app: App) -> pb.Run:
    """Send an app to the server, which begins a run of it.

    Raises:
        AppError: the folder holds what an app may not hold.
        MeadowError: the server refuses the app, in its own words.
    """
    run: pb.Run = stub.Submit(_pieces(pack(app.folder), app), timeout=SUBMIT_S)
    return run


def _pieces(archive: bytes, app: App) -> Iterator[pb.SubmitMessage]:
    opened = pb.SubmitOpen(
        size_bytes=len(archive),
        name=app.name,
        settings=app.settings,
        signature=signature_beside(app.folder, name=app.name, sha256=app.sha256),
    )
    yield pb.SubmitMessage(open=opened)
    for start in range(0, len(archive), ZIP_CHUNK_BYTES):
        yield pb.SubmitMessage(zip=archive[start : start + ZIP_CHUNK_BYTES])


def events_of(stub: AdminStub, run_id: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kind and the detail of every event of a run, from its beginning to its end."""
    names = site_names(stub)
    for event in stub.Watch(pb.RunId(id=run_id)):
        detail = json.loads(event.json)
        if detail.get("client", 0) not in names:
            names = site_names(stub) if "client" in detail else names
        yield event.kind, named(detail, names)


def site_names(stub: AdminStub) -> dict[int, str]:
    """Return the names of all enrolled sites by node number."""
    sites = stub.Sites(pb.Empty(), timeout=CALL_S).sites
    return {site.node_id: site.name for site in sites}


def named(detail: dict[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """Return an event with the names of the sites that it has by node number."""
    named = dict(detail)
    if detail.get("client") in names:
        named["site"] = names[detail["client"]]
    if "missing" in detail:
        named["missing_sites"] = [names.get(node, str(node)) for node in detail["missing"]]
    return named


def pull(stub: AdminStub, run_id: int, target: Path) -> list[str]:
    """Fetch a run's folder into `target`; returns the names of its files.

    Raises:
        ProtocolError: the server names a file outside of the folder.
    """
    return _receive(stub.Pull(pb.PullRequest(run_id=run_id)), target)


def _receive(messages: Iterator[pb.PullMessage], target: Path) -> list[str]:
    names: list[str] = []
    file = None
    try:
        for message in messages:
            if message.HasField("file"):
                path = PurePosixPath(message.file)
                plain = path.parts and message.file.isprintable() and "\\" not in message.file
                if not plain or path.is_absolute() or ".." in path.parts:
                    raise ProtocolError(f"the server names {message.file[:200]!r}")
                if file is not None:
                    file.close()
                local = target.joinpath(*path.parts)
                local.parent.mkdir(parents=True, exist_ok=True)
                file = local.open("wb")
                names.append(message.file)
            elif file is not None:
                file.write(message.data)
    finally:
        if file is not None:
            file.close()
    return names
