"""`meadow server page`: the dashboard."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..server.remote.connection import admin_identity
from .admin import AdminOption, DirOption
from .output import Format, FormatOption, say

__all__ = ["page"]

PORT = 9480


def page(
    dir: DirOption = None,
    admin: AdminOption = None,
    port: Annotated[
        int, typer.Option(help="the port of this machine; 0: any", min=0, max=65535)
    ] = PORT,
    apps: Annotated[
        Path | None, typer.Option(help="a folder whose apps can be submitted from the page")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Serve the dashboard to a browser on this machine: runs, sites, events, and what to do about them.

    It may do what the certificate may: a viewer's looks, an operator's runs, an administrator's all.
    """
    from ..pages.serve import serve_pages  # imports the web server
    from ..server.pages.remote_server import RemoteServer
    from ..server.pages.web import server_app
    from ..server.remote.connection import connected

    if apps is not None and not apps.is_dir():
        raise ConfigError(f"--apps {apps} is not a folder")

    def invite(link: str) -> None:
        say(format, f"open this link once:  {link}", event="link", link=link)

    identity = admin_identity(dir, admin)
    with connected(identity) as stub, closing(RemoteServer(stub, identity)) as server:
        serve_pages(
            lambda browsers: server_app(server, browsers, apps=apps), port=port, invite=invite
        )
