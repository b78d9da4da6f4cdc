"""`meadow app`: sign an app's versions, for owners who trust their author."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..apps.folder import App
from ..transport.app_signature import SIGNATURE_FILE, make_author_key, sign_app
from .output import Format, FormatOption, say

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Sign an app, for owners who trust its author.")


@app.command()
def key(
    file: Annotated[Path, typer.Argument(help="the private key to write; keep it secret")],
    format: FormatOption = Format.TEXT,
) -> None:
    """Make an author's key; the public one is for apps.auto_approve in owners' client.toml."""
    public = make_author_key(file)
    say(format, f"{file} is the private key; owners trust {public}", key=public, file=str(file))


@app.command()
def sign(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="a folder with an app")],
    key: Annotated[Path, typer.Option(help="the private key, as `meadow app key` makes it")],
    format: FormatOption = Format.TEXT,
) -> None:
    """Sign the app as it is now; `meadow run submit` sends the signature along."""
    loaded = App.load(folder, environ={})
    made = sign_app(
        loaded.folder, name=loaded.name, sha256=loaded.sha256, key_file=key, now_s=int(time.time())
    )
    say(
        format,
        f"{folder / SIGNATURE_FILE}: {loaded.name} sha256:{loaded.sha256} signed by {made.signer}",
        app=loaded.name,
        sha256=loaded.sha256,
        signer=made.signer,
    )
