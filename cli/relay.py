"""`meadow relay`: stand between a server and clients, and add up what they send."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ..machine.process_limits import allow_many_files, keep_freed_memory
from ..reports.sentences import moment
from ..transport.invitation import Invitation
from .client import invitation_text
from .output import Format, FormatOption, say
from .server import log_to_stderr

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Stand between a server and clients: a client above, a server below.",
)

RelayDir = Annotated[Path, typer.Option("--dir", help="the relay's folder")]


@app.command()
def join(
    invitation: Annotated[
        str, typer.Argument(help='the file of the invitation; "-": the line, from stdin')
    ],
    dir: RelayDir,
    host: Annotated[
        str, typer.Option("--host", help="the name or address by which clients reach this relay")
    ] = "localhost",
    format: FormatOption = Format.TEXT,
) -> None:
    """Enrol a relay by an invitation of the server above it, and lay out its folder."""
    from ..relay.folder import join as join_

    invited = Invitation.from_text(invitation_text(invitation))
    identity = join_(
        dir,
        server=invited.server,
        token=invited.token,
        ca_fingerprint=invited.ca_fingerprint,
        host=host,
        now=datetime.now(UTC),
    )
    say(
        format,
        f"enrolled as {identity.name} (node {identity.node_id}), fleet {identity.fleet_address}\n"
        f"start it        meadow relay start --dir {dir}\n"
        f"invite clients  meadow server invite CLIENT --dir {dir}",
        relay=identity.name,
        node_id=identity.node_id,
        fleet=identity.fleet_address,
        dir=str(dir),
    )


@app.command()
def start(
    dir: RelayDir,
    fleet_port: Annotated[
        int | None, typer.Option(help="port for enrolled clients; 0: any free one")
    ] = None,
    enroll_port: Annotated[
        int | None, typer.Option(help="port for enrolment; 0: any free one")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Run the relay in the foreground; SIGTERM or Ctrl-C drains and stops it. Its log goes to stderr,
    with --format json as lines of JSON."""
    from ..client.agent.events import Event
    from ..relay.relay import Relay
    from ..server.daemon.server_dir import ServerFolder

    keep_freed_memory()
    allow_many_files()
    log_to_stderr(format)

    def report(event: Event) -> None:
        now_s = time.time()
        about = {"event": event.kind, "at_s": now_s, "level": event.level, "message": event.text}
        line = " ".join(event.line.splitlines())  # a server's words among it
        say(format, f"{moment(now_s)} above: {line}", **about, **event.detail)

    def ready(addresses: dict[str, str]) -> None:
        text = f"listening: fleet {addresses['fleet']}, enrolment {addresses['enroll']}"
        say(format, text, event="listening", **addresses)

    async def serve() -> None:
        server_folder = ServerFolder(dir, fleet_port=fleet_port, enroll_port=enroll_port)
        await Relay(server_folder, report=report).run(ready=ready)

    asyncio.run(serve())
    say(format, "stopped; what was begun goes on at the next start", event="stopped")
