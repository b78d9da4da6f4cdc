"""The options of every command that administers a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AdminOption", "DirOption", "ServerDir"]

DirOption = Annotated[
    Path | None, typer.Option("--dir", help="the server's folder, on the server's machine")
]
AdminOption = Annotated[
    Path | None,
    typer.Option(
        "--admin", help="an admin file (admin.json, or of `meadow server role add`), elsewhere"
    ),
]
ServerDir = Annotated[Path, typer.Option("--dir", help="the server's folder")]
