"""`meadow site`: the enrolled clients, as the administrator sees them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import MeadowError
from ..reports.sentences import moment
from ..server.remote.connection import admin_stub
from ..transport import fleet_pb2 as pb
from .admin import AdminOption, DirOption
from .output import Format, FormatOption, say, show_rows

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="List, show and revoke the server's clients.")

COLUMNS = {
    "name": "CLIENT",
    "node_id": "NODE",
    "state": "STATE",
    "seen": "LAST SEEN",
    "certificate_until": "CERTIFICATE UNTIL",
    "version": "VERSION",
    "tags": "TAGS",
}
Name = Annotated[str, typer.Argument(help="the client's name")]


@app.command("list")
def list_(
    dir: DirOption = None, admin: AdminOption = None, format: FormatOption = Format.TEXT
) -> None:
    """List all clients."""
    with admin_stub(dir, admin) as stub:
        sites = stub.Sites(pb.Empty(), timeout=10).sites
    empty = "no client yet; `meadow server invite CLIENT` invites one"
    show_rows(format, [_row(site) for site in sites], columns=COLUMNS, empty=empty)


@app.command()
def show(
    client: Name,
    dir: DirOption = None,
    admin: AdminOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Show one client."""
    with admin_stub(dir, admin) as stub:
        sites = {site.name: site for site in stub.Sites(pb.Empty(), timeout=10).sites}
    if client not in sites:
        raise MeadowError(f"there is no client {client!r}; `meadow site list` shows them")
    row = _row(sites[client])
    say(format, "\n".join(f"{COLUMNS[key].lower():18} {row[key]}" for key in COLUMNS), **row)


@app.command()
def tag(
    client: Name,
    tags: Annotated[
        list[str] | None, typer.Argument(help="all its tags; none removes them")
    ] = None,
    dir: DirOption = None,
    admin: AdminOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Replace a client's tags; a run selects clients by tags with selection.tags."""
    with admin_stub(dir, admin) as stub:
        site = stub.Tag(pb.SiteTags(name=client, tags=tags or []), timeout=10)
    say(format, f"{site.name} has the tags: {' '.join(site.tags) or 'none'}", **_row(site))


@app.command()
def revoke(
    client: Name,
    dir: DirOption = None,
    admin: AdminOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Revoke a client at once, also in the round that is under way."""
    with admin_stub(dir, admin) as stub:
        site = stub.Revoke(pb.SiteName(name=client), timeout=10)
    say(format, f"{site.name} is revoked and disconnected", **_row(site))


def _row(site: pb.Site) -> dict[str, Any]:
    return {
        "name": site.name,
        "node_id": site.node_id,
        "state": site.state,
        "seen": moment(site.seen_at_s),
        "certificate_until": moment(site.certificate_until_s),
        "version": site.version,
        "tags": " ".join(site.tags),
    }
