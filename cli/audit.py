"""`meadow server audit`: who did what, and whether the log of it is whole."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ConfigError
from ..server.daemon.server_dir import ServerFolder
from ..server.journal.audit_log import Head, parse_head
from .admin import ServerDir
from .output import Format, FormatOption, say, show_rows

__all__ = ["audit"]

COLUMNS = {
    "n": "LINE",
    "at": "AT",
    "who": "WHO",
    "role": "ROLE",
    "call": "CALL",
    "about": "WHAT",
    "outcome": "OUTCOME",
}


def audit(
    dir: ServerDir,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="check every line and the chain of hashes; exit code 1 if not"
        ),
    ] = False,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", help="a head that --verify printed before, LINE:HASH; implies --verify"
        ),
    ] = None,
    last: Annotated[int, typer.Option(help="how many lines to list", min=1)] = 100,
    format: FormatOption = Format.TEXT,
) -> None:
    """List the last actions on this server, or verify the whole log of them."""
    server_folder = ServerFolder(dir)
    if verify or head is not None:
        _verify(server_folder, head, format)
        return
    rows = server_folder.audit_log().lines(last)
    for row in rows:
        row["about"] = ", ".join(f"{key}: {value}" for key, value in row["what"].items())
    show_rows(format, rows, columns=COLUMNS, empty="no action yet")


def _verify(server_folder: ServerFolder, text: str | None, format: Format) -> None:
    witness: Head | None = None
    if text is not None:
        try:
            witness = parse_head(text)
        except ValueError as error:
            raise ConfigError(f"--head {text!r:.100}: {error}") from None
    found = server_folder.audit_log().verify(witness)
    text = "no line yet"
    if found.head is not None:
        whole = (
            f"lines {found.first} to {found.head.n} are whole, and each continues the one before"
        )
        text = f"{whole}\nhead  {found.head}   (keep it elsewhere: --head checks it)"
    if found.problem:
        text = f"damaged: {found.problem}"
    say(
        format,
        f"{text}\n{found.note}" if found.note else text,
        ok=not found.problem,
        first=found.first,
        head=None if found.head is None else str(found.head),
        problem=found.problem,
        note=found.note,
    )
    if found.problem:
        raise typer.Exit(1)
