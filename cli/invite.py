"""`meadow server invite`: invitations for clients, one or many."""

from __future__ import annotations

import csv as csv_module
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ..errors import ConfigError, IdentityError
from ..reports.sentences import moment
from ..server.daemon.server_dir import ServerFolder, check_hours
from ..server.remote.connection import admin_stub
from ..transport import fleet_pb2 as pb
from ..transport.durable import write_file
from ..transport.identity import check_client_name, fingerprint_of
from ..transport.invitation import Invitation
from .admin import AdminOption, DirOption
from .output import Format, FormatOption, say

__all__ = ["invite"]

COLUMNS = ("name", "hours", "tags")
ROWS_MAX = 10_000
CSV_BYTES_MAX = 8 << 20
CALL_S = 10.0


class Guest(NamedTuple):
    """A client to invite."""

    name: str
    hours: float
    tags: tuple[str, ...] = ()


def invite(
    client: Annotated[
        str | None, typer.Argument(help="the client's name, e.g. hospital-a", show_default=False)
    ] = None,
    dir: DirOption = None,
    admin: AdminOption = None,
    hours: Annotated[float, typer.Option(help="how long it is valid", min=0.01)] = 24.0,
    tag: Annotated[list[str] | None, typer.Option(help="a tag of the client; repeatable")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="the file; default: NAME.invitation. With --csv the folder of the files"),
    ] = None,
    line: Annotated[bool, typer.Option("--line", help="print it, to be pasted; no file")] = False,
    csv: Annotated[
        Path | None,
        typer.Option(help="invite many: a file with the columns name, hours and tags"),
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Invite a client: one file, or line, with everything that `meadow client join` needs.

    It is a secret for one use, which makes the client's older invitations and tokens void.
    """
    if (client is None) == (csv is None):
        raise ConfigError("give either a client's name or --csv FILE")
    if csv is not None and line:
        raise ConfigError("--line prints one invitation; --csv writes a file for each")
    if csv is None:
        guests = [_guest(client or "", hours, tag or [])]
        targets = [out or Path(f"{client}.invitation")]
    else:
        guests = _guests(csv, hours, tag or [])
        targets = [(out or Path()) / f"{guest.name}.invitation" for guest in guests]
    if not line:
        if there := [str(each) for each in targets if each.exists()]:
            raise ConfigError(f"{there[0]} exists; give another place with --out, or remove it")
        targets[0].parent.mkdir(parents=True, exist_ok=True)
    with _inviting(dir, admin) as made:
        for guest, target in zip(guests, targets, strict=True):
            invitation = made(guest)
            shown = invitation.to_line()
            if line:
                say(format, shown, client=guest.name, invitation=shown)
                continue
            write_file(target, f"{shown}\n".encode(), mode=0o600)
            text = f"{target}   (one use, until {moment(invitation.expires_at_s)})"
            if csv is None:
                text += f"\non the client    meadow client join {target.name} --dir DIR"
            say(
                format, text, client=guest.name, file=str(target),
                expires_at_s=invitation.expires_at_s,
            )  # fmt: skip


@contextmanager
def _inviting(folder: Path | None, admin: Path | None) -> Iterator[Callable[[Guest], Invitation]]:
    """Yield what makes an invitation: in a server's folder, or over the network."""
    if folder is not None and admin is None:
        home = ServerFolder(folder)
        fingerprint = fingerprint_of(home.authority.certificate_pem)

        def in_folder(guest: Guest) -> Invitation:
            now_s = time.time()
            token, _ = home.invite(guest.name, hours=guest.hours, tags=guest.tags, now_s=now_s)
            return Invitation(
                client=guest.name, server=home.enroll_advertised(), ca_fingerprint=fingerprint,
                token=token, expires_at_s=now_s + guest.hours * 3600.0,
            )  # fmt: skip

        yield in_folder
        return
    with admin_stub(folder, admin) as stub:

        def over_network(guest: Guest) -> Invitation:
            request = pb.InviteRequest(name=guest.name, hours=guest.hours)
            answer = stub.Invite(request, timeout=CALL_S)
            if guest.tags:
                stub.Tag(pb.SiteTags(name=guest.name, tags=guest.tags), timeout=CALL_S)
            return Invitation(
                client=guest.name, server=answer.enroll_address, token=answer.token,
                ca_fingerprint=answer.ca_fingerprint, expires_at_s=answer.expires_at_s,
            )  # fmt: skip

        yield over_network


def _guests(file: Path, hours: float, tags: list[str]) -> list[Guest]:
    """Return the clients of a CSV file, all of which are checked."""
    try:
        if file.stat().st_size > CSV_BYTES_MAX:
            raise ConfigError(f"{file} is larger than {CSV_BYTES_MAX} bytes")
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    reader = csv_module.DictReader(text.splitlines())
    try:
        return [*_rows(file, reader, hours, tags).values()]
    except csv_module.Error as error:
        raise ConfigError(f"{file}, line {reader.line_num}: {error}") from None


def _rows(
    file: Path, reader: csv_module.DictReader[str], hours: float, tags: list[str]
) -> dict[str, Guest]:
    """Return the clients of a table, by name."""
    given = [name or "" for name in reader.fieldnames or ()]
    unknown = [name for name in given if name not in COLUMNS]
    if twice := [name for name in COLUMNS if given.count(name) > 1]:
        raise ConfigError(f"{file}: the column {twice[0]} is there twice")
    if "name" not in given or unknown:
        what = f"unknown column {unknown[0]!r}" if unknown else "no column name"
        raise ConfigError(f"{file}: {what}; the columns are {', '.join(COLUMNS)}")
    found: dict[str, Guest] = {}
    for row in reader:
        at = f"{file}, line {reader.line_num}"
        if None in row:
            raise ConfigError(f"{at}: more values than columns")
        name = (row["name"] or "").strip()
        if name in found:
            raise ConfigError(f"{at}: {name} is there twice")
        try:
            own_hours = float(row.get("hours") or hours)
            found[name] = _guest(name, own_hours, [*tags, *(row.get("tags") or "").split()])
        except (ValueError, ConfigError, IdentityError) as error:
            raise ConfigError(f"{at}: {error}") from None
        if len(found) > ROWS_MAX:
            raise ConfigError(f"{file} has more than {ROWS_MAX} clients")
    if not found:
        raise ConfigError(f"{file} names no client")
    return found


def _guest(name: str, hours: float, tags: list[str]) -> Guest:
    from ..strategies.rounds.selection import TAG_FORM, is_tag  # imports flwr

    check_client_name(name)
    check_hours(hours)
    if wrong := [each for each in tags if not is_tag(each)]:
        raise ConfigError(f"{wrong[0][:50]!r} is not a tag; {TAG_FORM}")
    return Guest(name, hours, tuple(dict.fromkeys(tags)))
