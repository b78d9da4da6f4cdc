"""`meadow client`: enrol a client, run its agent, and inspect it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError, IdentityError
from ..machine.process_limits import keep_freed_memory
from ..reports.sentences import amount, epsilon_text, moment
from . import client_apps
from .client_rank import rank
from .output import Format, FormatOption, say, show_rows

__all__ = ["app", "invitation_text"]

app = typer.Typer(no_args_is_help=True, help="Enrol a client, run its agent, inspect it.")

app.add_typer(client_apps.app, name="apps")
app.command()(rank)

ClientDir = Annotated[Path, typer.Option("--dir", help="the client's folder")]
TOKEN_VARIABLE = "MEADOW_TOKEN"
PAGE_PORT = 9481


@app.command()
def enroll(
    dir: ClientDir,
    server: Annotated[str, typer.Option(help="HOST:PORT of the server's enrolment listener")],
    ca_fingerprint: Annotated[str, typer.Option(help="SHA-256 of the server's authority")],
    token: Annotated[
        str | None,
        typer.Option(help=f'the one-time token; "-" reads it from stdin, else {TOKEN_VARIABLE}'),
    ] = None,
    app_folders: Annotated[
        list[Path] | None, typer.Option("--app", help="an app's folder to install; repeatable")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Redeem a one-time token for a certificate, and lay out the client's folder."""
    _redeem(dir, server, _token(token), ca_fingerprint, app_folders or [], format)


@app.command()
def join(
    invitation: Annotated[
        str, typer.Argument(help='the file of the invitation; "-": the line, from stdin')
    ],
    dir: ClientDir,
    app_folders: Annotated[
        list[Path] | None, typer.Option("--app", help="an app's folder to install; repeatable")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Enrol by an invitation, the file or line that the server's operator has sent."""
    from ..transport.invitation import Invitation

    invited = Invitation.from_text(invitation_text(invitation))
    try:
        _redeem(
            dir, invited.server, invited.token, invited.ca_fingerprint, app_folders or [], format
        )
    except IdentityError as error:
        if time.time() > invited.expires_at_s:
            until = moment(invited.expires_at_s)
            raise IdentityError(f"{error}; the invitation was valid until {until}") from None
        raise


def invitation_text(source: str) -> str:
    from ..transport.invitation import TEXT_CHARS_MAX

    if source == "-":
        if sys.stdin.isatty():
            return str(typer.prompt("invitation", hide_input=True))
        return sys.stdin.read(TEXT_CHARS_MAX + 1)
    try:
        with Path(source).open(encoding="utf-8", errors="replace") as file:
            return file.read(TEXT_CHARS_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}") from None


def _redeem(
    dir: Path, server: str, token: str, ca_fingerprint: str, apps: list[Path], format: Format
) -> None:
    from ..client.agent.clock import clock_fault
    from ..client.tools.enroll import enroll as redeem
    from ..client.tools.enroll import skew_when_enrolled

    identity = redeem(
        dir,
        server=server,
        token=token,
        ca_fingerprint=ca_fingerprint,
        apps=apps,
    )
    skew_s = skew_when_enrolled(identity, now_s=time.time())
    fault = clock_fault(skew_s)
    say(
        format,
        (f"note: {fault}\n" if fault else "")
        + f"enrolled as {identity.name} (node {identity.node_id}), fleet {identity.fleet_address}\n"
        f"what may run here   {dir / 'client.toml'}\n"
        f"is everything well  meadow client doctor --dir {dir}\n"
        f"start the agent     meadow client start --dir {dir}",
        client=identity.name,
        node_id=identity.node_id,
        fleet=identity.fleet_address,
        dir=str(dir),
        clock_skew_s=skew_s,
    )


def _token(given: str | None) -> str:
    token = given or os.environ.get(TOKEN_VARIABLE, "-")
    if token == "-":
        if sys.stdin.isatty():
            return str(typer.prompt("token", hide_input=True))
        token = sys.stdin.readline().strip()
    if not token:
        raise ConfigError(f"no token: give --token, set {TOKEN_VARIABLE}, or pipe it to --token -")
    return token


@app.command()
def start(dir: ClientDir, format: FormatOption = Format.TEXT) -> None:
    """Run the agent in the foreground; SIGTERM or Ctrl-C stops it, and nothing is lost."""
    from ..client.agent.agent import Agent
    from ..client.agent.events import Event

    def report(event: Event) -> None:
        now_s = time.time()
        about = {"event": event.kind, "at_s": now_s, "level": event.level, "message": event.text}
        line = " ".join(event.line.splitlines())  # a server's words among it
        say(format, f"{moment(now_s)} {line}", **about, **event.detail)

    async def serve() -> None:
        keep_freed_memory()
        agent = Agent(dir, report=report)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, agent.stop)
        await agent.run()

    asyncio.run(serve())
    now_s = time.time()
    say(format, f"{moment(now_s)} INFO    stopped", event="stopped", at_s=now_s)


@app.command()
def status(dir: ClientDir, format: FormatOption = Format.TEXT) -> None:
    """Show this client's identity, apps and last instruction; needs no server."""
    from ..client.tools.status import status_of

    now = status_of(dir, now_s=time.time())
    if format is Format.JSON:
        say(format, "", **asdict(now))
        return
    running = f"running, process {now.process}" if now.process is not None else "not running"
    say(format, f"{now.name} (node {now.node_id}) of {now.server}: {running}")
    if now.closed:
        say(format, f"takes no part now: {now.closed}")
    say(format, f"certificate valid until {moment(now.certificate_until_s)}")
    if now.hosts:
        say(format, f"hosts {now.hosts}")
    columns = {"name": "APP", "sha256": "SHA-256", "problem": "PROBLEM"}
    rows = [asdict(installed) for installed in now.apps]
    show_rows(format, rows, columns=columns, empty="no app is installed")
    say(format, f"last instruction {now.last_instruction or '-'}, rounds today {now.rounds_today}")
    for refusal in now.refusals:
        say(format, f"refused {moment(refusal.at_s)}: {refusal.reason}")


@app.command()
def pause(dir: ClientDir, format: FormatOption = Format.TEXT) -> None:
    """Take part in nothing until `resume`: no instruction begins, and nothing leaves; it lasts over
    restarts."""
    from ..client.owner import gate
    from ..client.owner.identity_folder import IdentityFolder

    IdentityFolder(dir).load()
    gate.pause(dir)
    text = (
        f"paused; work that has begun is finished and kept. Go on: meadow client resume --dir {dir}"
    )
    say(format, text, paused=True)


@app.command()
def resume(dir: ClientDir, format: FormatOption = Format.TEXT) -> None:
    """Take part again after `pause`."""
    from ..client.owner import gate
    from ..client.owner.identity_folder import IdentityFolder

    IdentityFolder(dir).load()
    gate.resume(dir)
    say(format, "it takes part again", paused=False)


@app.command()
def privacy(dir: ClientDir, format: FormatOption = Format.TEXT) -> None:
    """Show the privacy budget that each run has spent, and the rest; needs no server."""
    from ..client.tools.status import spending_of

    found = spending_of(dir)
    if format is Format.JSON:
        say(format, "", **asdict(found))
        return
    columns = {"app": "APP", "run_id": "RUN", "rounds": "ROUNDS", "epsilon": "EPSILON"}
    columns["record_epsilon"] = "OF A RECORD"
    rows = [
        {
            **asdict(run),
            "epsilon": epsilon_text(run.epsilon),
            "record_epsilon": epsilon_text(run.record_epsilon),
        }
        for run in found.runs
    ]
    show_rows(format, rows, columns=columns, empty="nothing was trained on this data")
    for what, spent, most in (
        ("epsilon", found.epsilon, found.epsilon_max),
        ("epsilon of a record", found.record_epsilon, found.record_epsilon_max),
    ):
        budget = "no limit" if most is None else f"of {most:g}"
        say(format, f"{what} {epsilon_text(spent)} {budget}, at delta = {found.delta:g}")


@app.command()
def log(
    dir: ClientDir,
    last: Annotated[int, typer.Option(help="how many answers to list", min=1)] = 100,
    run: Annotated[int | None, typer.Option(help="those of one run", min=0)] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """List what has left this site: each answer to the server, with its size; needs no server."""
    from ..client.owner.sent_log import sent_rows

    rows = [
        {
            **asdict(row),
            "at": moment(row.at_s),
            "size": amount(row.bytes),
            "hash": row.sha256.removeprefix("sha256:")[:12],
            "length": "-" if row.norm is None else f"{row.norm:.4g}",
            "of_client": "-" if row.epsilon is None else epsilon_text(row.epsilon),
            "of_record": "-" if row.record_epsilon is None else epsilon_text(row.record_epsilon),
        }
        for row in sent_rows(dir, last=last, run_id=run)
    ]
    columns = {"at": "AT", "run_id": "RUN", "round": "ROUND", "app": "APP", "hash": "HASH"}
    columns |= {"kind": "WHAT", "size": "BYTES", "length": "NORM"}
    columns |= {"of_client": "EPSILON", "of_record": "OF A RECORD", "reason": "REASON"}
    show_rows(format, rows, columns=columns, empty="nothing has left this site")


@app.command()
def page(
    dir: ClientDir,
    port: Annotated[
        int, typer.Option(help="the port of this machine; 0: any", min=0, max=65535)
    ] = PAGE_PORT,
    format: FormatOption = Format.TEXT,
) -> None:
    """Serve the owner's pages to a browser on this machine: what left, the budgets, pause and resume.

    The agent may run or not.
    """
    from ..client.owner.identity_folder import IdentityFolder
    from ..client.pages.site_folder import SiteFolder
    from ..client.pages.web import owner_app
    from ..pages.serve import serve_pages  # imports the web server

    name = IdentityFolder(dir).load().name
    site = SiteFolder(dir, clock=time.time)
    serve_pages(
        lambda browsers: owner_app(site, browsers, name=name),
        port=port,
        invite=lambda link: say(format, f"open this link once:  {link}", event="link", link=link),
    )


@app.command()
def doctor(dir: ClientDir, format: FormatOption = Format.TEXT) -> None:
    """Check server, clock, certificate, disk, windows, device, apps and data; exit code 1 on a problem."""
    from ..client.tools.doctor import examine

    async def check() -> bool:
        well = True
        async for finding in examine(dir):
            mark = "ok      " if finding.ok else "problem "
            say(
                format,
                f"{mark} {finding.subject:<12} {finding.text}",
                subject=finding.subject,
                ok=finding.ok,
                finding=finding.text,
            )
            well = well and finding.ok
        return well

    if not asyncio.run(check()):
        raise typer.Exit(1)


@app.command()
def profile(
    name: Annotated[str, typer.Argument(metavar="APP", help="an app under [apps] of client.toml")],
    dir: ClientDir,
    trace: Annotated[
        Path | None, typer.Option(help="the Chrome trace to write; by default in the folder")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Train one local round and show where its time goes; nothing is sent or stored."""
    from ..client.agent.warm_process import training_environment
    from ..config.client_config import load_client_config

    os.environ |= training_environment(load_client_config(dir).device)  # before torch is loaded
    from ..client.tools.profiling import advice_on, profile_round
    from ..client.tools.workbench import TryOut

    file = trace or dir / f"profile-{name}.json"
    found = profile_round(TryOut.open(dir, name), file)
    advice = [*advice_on(found)]
    if format is Format.JSON:
        say(format, "", **asdict(found), advice=advice, trace=str(file))
        return
    say(format, f"{found.steps} steps on {found.device} took {found.total_s:.2f} s")
    rows = [
        {"phase": phase, "s": f"{seconds:.3f}", "share": f"{found.share(phase):.0%}"}
        for phase, seconds in found.seconds.items()
    ]
    columns = {"phase": "PHASE", "s": "SECONDS", "share": "SHARE"}
    show_rows(format, rows, columns=columns, empty="")
    for sentence in advice:
        say(format, f"advice: {sentence}")
    say(format, f"trace, for chrome://tracing: {file}")
