"""The options of every command that speaks with a server as its administrator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AdminOption", "DirOption"]

DirOption = Annotated[
    Path | None, typer.Option("--dir", help="the server's folder, on the server's machine")
]
AdminOption = Annotated[
    Path | None,
    typer.Option("--admin", help="an admin file (admin.json of the server's folder), elsewhere"),
]
