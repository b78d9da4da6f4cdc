"""`meadow server role`: who may view, operate or administer a server."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..reports.sentences import moment
from ..server.daemon.roles import ADMIN_NAME, ROLE_WORDS
from ..server.daemon.server_dir import ROLE_DAYS, ServerFolder
from .admin import ServerDir
from .output import Format, FormatOption, say, show_rows

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Give, list and revoke roles.")

COLUMNS = {"name": "NAME", "role": "ROLE", "until": "CERTIFICATE UNTIL", "serial": "SERIAL"}
Name = Annotated[str, typer.Argument(help="the holder's name, e.g. ann")]


class RoleWord(StrEnum):
    """A role as it is given on the command line."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"


@app.command()
def add(
    name: Name,
    role: Annotated[RoleWord, typer.Option("--role", help="what the holder may do")],
    dir: ServerDir,
    out: Annotated[
        Path | None, typer.Option("--out", help="the file to write; NAME.json by default")
    ] = None,
    days: Annotated[
        float, typer.Option(help="how long the certificate is valid", min=0.01)
    ] = ROLE_DAYS,
    format: FormatOption = Format.TEXT,
) -> None:
    """Write a file with a key and a certificate for somebody with a role (--admin FILE)."""
    path = out or Path(f"{name}.json")
    ServerFolder(dir).add_role(name, role.value, path, days=days, now=datetime.now(UTC))
    say(
        format,
        f"{path} makes its holder {name}, {role.value}; it has a secret key: hand it over safely\n"
        f"use it with     meadow run list --admin {path}\n"
        f"revoke it with  meadow server role revoke {name} --dir {dir}",
        name=name,
        role=role.value,
        file=str(path),
    )


@app.command("list")
def list_(dir: ServerDir, format: FormatOption = Format.TEXT) -> None:
    """List everybody who has a role, but for the administrator of the server's folder."""
    words: dict[str, str] = {role: word for word, role in ROLE_WORDS.items()}
    now_s = datetime.now(UTC).timestamp()
    rows = [
        {
            "name": entry.name,
            "role": words.get(entry.role, entry.role),
            "until": moment(entry.until_s) + (" (expired)" if entry.until_s < now_s else ""),
            "until_s": entry.until_s,
            "serial": entry.serial,
        }
        for entry in ServerFolder(dir).roles.entries()
    ]
    empty = f"only {ADMIN_NAME!r} administers this server; `meadow server role add` gives a role"
    show_rows(format, rows, columns=COLUMNS, empty=empty)


@app.command()
def revoke(name: Name, dir: ServerDir, format: FormatOption = Format.TEXT) -> None:
    """Refuse somebody's certificate from now on, also in calls that are under way."""
    ServerFolder(dir).revoke_role(name)
    say(format, f"the certificate of {name} is refused from now on", name=name)
