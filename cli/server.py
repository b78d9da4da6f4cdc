"""`meadow server`: lay out a server, run its daemon, invite clients."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ..errors import MeadowError
from ..machine.json_log import JsonFormatter
from ..machine.process_limits import allow_many_files, keep_freed_memory
from ..reports.sentences import amount, epsilon_text, moment, sentence_of
from ..server.daemon.server_dir import ServerFolder
from ..server.remote.connection import admin_stub
from ..transport import fleet_pb2 as pb
from ..transport.identity import check_client_name, fingerprint_of
from . import role
from .admin import ServerDir
from .audit import audit
from .invite import invite as invite_
from .output import Format, FormatOption, say, show_rows
from .page import page

__all__ = ["app", "log_to_stderr"]

app = typer.Typer(no_args_is_help=True, help="Lay out a server, run its daemon, invite clients.")
app.add_typer(role.app, name="role")
app.command("audit")(audit)
app.command("page")(page)
app.command("invite")(invite_)

ASKED_COLUMNS = {
    "run_id": "RUN",
    "unit": "HIDES",
    "law": "NOISE",
    "noise_multiplier": "MULTIPLIER",
    "probability": "PROBABILITY",
    "count": "RELEASES",
}


@app.command()
def init(
    dir: ServerDir,
    host: Annotated[
        str, typer.Option("--host", help="the name or address by which clients reach this server")
    ] = "localhost",
    format: FormatOption = Format.TEXT,
) -> None:
    """Lay out a server: certificate authority, journal and admin identity."""
    server_folder = ServerFolder.create(dir, host=host, now=datetime.now(UTC))
    fingerprint = fingerprint_of(server_folder.authority.certificate_pem)
    say(
        format,
        f"server laid out in {dir}\n"
        f"CA fingerprint  {fingerprint}\n"
        f"start it with   meadow server start --dir {dir}\n"
        f"invite clients  meadow server invite CLIENT --dir {dir}",
        dir=str(dir),
        ca_fingerprint=fingerprint,
    )


@app.command()
def start(
    dir: ServerDir,
    fleet_port: Annotated[
        int | None, typer.Option(help="port for enrolled clients; 0: any free one")
    ] = None,
    enroll_port: Annotated[
        int | None, typer.Option(help="port for enrolment; 0: any free one")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Run the daemon in the foreground; SIGTERM or Ctrl-C drains and stops it. Its log goes to stderr,
    with --format json as lines of JSON."""
    from ..server.daemon.daemon import Daemon  # imports grpc's server side

    keep_freed_memory()
    allow_many_files()
    log_to_stderr(format)
    server_folder = ServerFolder(dir, fleet_port=fleet_port, enroll_port=enroll_port)

    def ready(addresses: dict[str, str]) -> None:
        text = f"listening: fleet {addresses['fleet']}, enrolment {addresses['enroll']}"
        text += f", metrics {addresses['metrics']}" if "metrics" in addresses else ""
        say(format, text, event="listening", **addresses)

    async def serve() -> None:
        await Daemon(server_folder).run(ready=ready)

    asyncio.run(serve())
    say(format, "stopped; runs go on at the next start", event="stopped")


def log_to_stderr(format: Format) -> None:
    """Log every event to stderr, as a line with its time, level, run and round, or as one of JSON."""
    handler = logging.StreamHandler()
    formatter = logging.Formatter("%(asctime)sZ %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(JsonFormatter() if format is Format.JSON else formatter)
    log = logging.getLogger("meadow.server")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


@app.command()
def token(
    client: Annotated[str, typer.Argument(help="the client's name, e.g. hospital-a")],
    dir: ServerDir,
    hours: Annotated[float, typer.Option(help="how long the token is valid", min=0.01)] = 24.0,
    format: FormatOption = Format.TEXT,
) -> None:
    """Make a one-time enrolment token for a client; an older one of the client's is void."""
    check_client_name(client)
    server_folder = ServerFolder(dir)
    now_s = time.time()
    secret, node_id = server_folder.invite(client, hours=hours, now_s=now_s)
    expires_at_s = now_s + hours * 3600.0
    fingerprint = fingerprint_of(server_folder.authority.certificate_pem)
    address = server_folder.enroll_advertised()
    say(
        format,
        f"token           {secret}   (one use, until {moment(expires_at_s)})\n"
        f"CA fingerprint  {fingerprint}\n"
        f"on the client   meadow client enroll --dir DIR --server {address} \\\n"
        f"                    --token - --ca-fingerprint {fingerprint}",
        client=client,
        node_id=node_id,
        token=secret,
        expires_at_s=expires_at_s,
        ca_fingerprint=fingerprint,
        server=address,
    )


@app.command()
def tokens(dir: ServerDir, format: FormatOption = Format.TEXT) -> None:
    """List the enrolment tokens that were neither used nor revoked, and when they expire."""
    now_s = time.time()
    rows = [
        {
            "client": row.name,
            "state": "waiting" if row.expires_at_s >= now_s else "expired",
            "expires": moment(row.expires_at_s),
            "expires_at_s": row.expires_at_s,
        }
        for row in ServerFolder(dir).tokens()
    ]
    columns = {"client": "client", "state": "state", "expires": "expires"}
    empty = "no token waits; `meadow server token CLIENT` makes one"
    show_rows(format, rows, columns=columns, empty=empty)


@app.command()
def revoke_token(
    client: Annotated[str, typer.Argument(help="the client's name, e.g. hospital-a")],
    dir: ServerDir,
    format: FormatOption = Format.TEXT,
) -> None:
    """Void a client's unused token; a client that is enrolled stays enrolled."""
    if not ServerFolder(dir).revoke_token(client, now_s=time.time()):
        raise MeadowError(
            f"{client!r} has no unused token; `meadow server tokens --dir {dir}` lists them"
        )
    say(format, f"the token of {client} is void", client=client)


@app.command()
def renew_admin(dir: ServerDir, format: FormatOption = Format.TEXT) -> None:
    """Make a new admin.json; the old one and its copies are refused from now on."""
    path = ServerFolder(dir).renew_admin(datetime.now(UTC))
    say(format, f"{path} has a new key; every copy of the old one is refused", admin=str(path))


@app.command()
def check(
    dir: ServerDir,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="write a new journal with the intact rows of a damaged one"),
    ] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Check everything in a stopped server's folder; exit code 1 if something is damaged."""
    from ..server.daemon.check import DAMAGED_NAME, check_server_folder, repair_journal

    server_folder = ServerFolder(dir)
    if repair:
        saved = repair_journal(server_folder)
        rows = {t: f"{len(s.rows)} of {len(s.rows) + len(s.lost)}" for t, s in saved.items()}
        counts = ", ".join(f"{count} {table}" for table, count in rows.items())
        text = f"the new journal has {counts}; the damaged one is {DAMAGED_NAME}"
        say(format, text, repaired=rows, damaged=DAMAGED_NAME)
    well = True
    for finding in check_server_folder(server_folder):
        mark = "ok      " if finding.ok else "damaged "
        say(format, f"{mark} {finding.subject:<10} {finding.text}",
            subject=finding.subject, ok=finding.ok, finding=finding.text)  # fmt: skip
        well = well and finding.ok
    if not well:
        raise typer.Exit(1)


@app.command()
def doctor(dir: ServerDir, format: FormatOption = Format.TEXT) -> None:
    """Check configuration, keys, certificates, clock, disk, daemon, databases, audit log, backups, and who
    is told; also while the daemon runs. Exit code 1 on a problem."""
    from ..server.tools.doctor import examine_server

    well = True
    for finding in examine_server(dir):
        mark = "ok      " if finding.ok else "problem "
        say(format, f"{mark} {finding.subject:<14} {finding.text}",
            subject=finding.subject, ok=finding.ok, finding=finding.text)  # fmt: skip
        well = well and finding.ok
    if not well:
        raise typer.Exit(1)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="the file to write, outside the server's folder")],
    dir: ServerDir,
    format: FormatOption = Format.TEXT,
) -> None:
    """Write the server's folder to one file, also while the daemon runs; it has the secret keys."""
    from ..server.daemon.backup import back_up

    made = back_up(ServerFolder(dir), file, now=datetime.now(UTC))
    say(
        format,
        f"{file} has {made.files} files, {made.size_bytes / 1e6:.1f} MB, and the authority's secret key: "
        "keep it under lock",
        file=str(file),
        files=made.files,
        size_bytes=made.size_bytes,
        abandoned=list(made.abandoned),
    )


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="a file of `meadow server backup`")],
    dir: Annotated[Path, typer.Option("--dir", help="the folder to make; it must not exist")],
    format: FormatOption = Format.TEXT,
) -> None:
    """Make a server's folder of a backup; then check it, and start it as usual."""
    from ..server.daemon.backup import restore as restored

    found = restored(file, dir, now=datetime.now(UTC))
    text = f"{dir} is the server of {moment(found.made_at.timestamp())}; since then:"
    text += "\n- clients that were admitted are unknown: `meadow server invite CLIENT` invites them again"
    text += "\n- clients that were revoked are admitted again: `meadow site revoke CLIENT`"
    text += "\n- so are roles that were revoked, and a replaced admin.json: `meadow server role revoke NAME`, renew-admin"
    text += "\n- releases of private runs are missing in privacy.sqlite: put the newest one in its place"
    if found.abandoned:
        ended = ", ".join(str(run_id) for run_id in found.abandoned)
        text += f"\n- private runs have released more than is known here, and are over: {ended}"
    say(
        format,
        text,
        dir=str(dir),
        made_at=found.made_at.isoformat(),
        abandoned=list(found.abandoned),
    )
    check(dir, repair=False, format=format)


@app.command()
def prune(
    dir: ServerDir,
    run: Annotated[
        list[int] | None,
        typer.Option(help="an ended run, whatever [storage] in server.toml says; may be repeated"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would be deleted, and delete nothing")
    ] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Delete what ended runs have left, as [storage] in server.toml says; also while the daemon runs.

    Summaries, metrics and privacy ledgers stay."""
    from ..server.tools.pruning import prune_now

    found = list(prune_now(ServerFolder(dir), run, dry_run=dry_run, now_s=time.time()))
    rows = [
        {
            "run": each.run_id,
            "app": each.app,
            "status": each.status,
            "ended": moment(each.ended_at_s),
            "size_bytes": each.size_bytes,
            "frees": "-" if each.problem else amount(each.size_bytes),
            "problem": each.problem,
        }
        for each in found
    ]
    columns = {"run": "RUN", "app": "APP", "status": "STATUS", "ended": "ENDED", "frees": "FREES"}
    empty = (
        "nothing is due; [storage] in server.toml says how long ended runs keep what they have left"
    )
    show_rows(format, rows, columns=columns, empty=empty)
    if rows and format is Format.TEXT:
        total = amount(sum(each.size_bytes for each in found))
        say(format, f"{total} {'would be' if dry_run else 'were'} freed")
        for each in found:
            if each.problem:
                say(format, f"run {each.run_id} cannot be pruned: {each.problem}")
    if any(each.problem for each in found):
        raise typer.Exit(1)


@app.command()
def status(dir: ServerDir, format: FormatOption = Format.TEXT) -> None:
    """Show whether the daemon runs, the connected clients, and the runs under way."""
    server_folder = ServerFolder(dir)
    if not server_folder.listening():
        raise MeadowError(
            f"the server in {dir} is not running; start it with `meadow server start --dir {dir}`"
        )
    with admin_stub(dir, None) as stub:
        now: pb.ServerStatus = stub.Status(pb.Empty(), timeout=10)
    runs = [
        {"id": run.id, "app": run.app, "status": run.status, "round": f"{run.round}/{run.rounds}"}
        for run in now.runs
    ]
    addresses = server_folder.listening()
    warnings = [
        text
        for (kind, _), detail in server_folder.conditions().items()
        if (text := sentence_of(kind, detail))
    ]
    if format is Format.JSON:
        say(format, "", version=now.version, connected=now.connected, enrolled=now.enrolled,
            addresses=addresses, up_s=time.time() - now.started_at_s, runs=runs, warnings=warnings)  # fmt: skip
        return
    say(format, f"meadow {now.version}, up {_ago(now.started_at_s)}, fleet {addresses['fleet']}")
    say(format, f"{now.connected} of {now.enrolled} clients connected")
    for text in warnings:
        say(format, f"warning: {text}")
    columns = {"id": "RUN", "app": "APP", "status": "STATUS", "round": "ROUND"}
    show_rows(format, runs, columns=columns, empty="no run is under way")


@app.command()
def events(dir: ServerDir, format: FormatOption = Format.TEXT) -> None:
    """Show the server's events: starts, enrolments, refused callers."""
    rows = [
        {**json.loads(event["json"]), "at": moment(event["at_s"]), "kind": event["kind"]}
        for event in ServerFolder(dir).events()
    ]
    for row in rows:
        row["what"] = ", ".join(f"{k}: {v}" for k, v in row.items() if k not in ("at", "kind"))
    show_rows(
        format, rows, columns={"at": "AT", "kind": "EVENT", "what": "WHAT"}, empty="no events yet"
    )


@app.command()
def privacy(dir: ServerDir, format: FormatOption = Format.TEXT) -> None:
    """Show the server's privacy ledger: each run's releases, and the epsilon of all together."""
    from ..run.population_ledger import open_population

    with closing(open_population(ServerFolder(dir).folder)) as ledger:
        asked = ledger.rows()
        found = {"epsilon": ledger.epsilon("client"), "record_epsilon": ledger.epsilon("record")}
    epsilons = {key: each if math.isfinite(each) else None for key, each in found.items()}
    rows = [asdict(row) for row in asked]
    if format is Format.JSON:
        say(format, "", **epsilons, delta=ledger.delta, asked=rows)
        return
    show_rows(format, rows, columns=ASKED_COLUMNS, empty="no run has asked for anything yet")
    for whose, epsilon in zip(("a client", "a record"), epsilons.values(), strict=True):
        text = f"epsilon of {whose} that is in all runs: {epsilon_text(epsilon)}"
        say(format, f"{text} at delta = {ledger.delta:g}")


def _ago(at_s: float) -> str:
    seconds = max(0.0, time.time() - at_s)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
