"""`meadow client rank`: other machines of a site that train together with the one whose agent leads."""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..reports.sentences import moment
from .output import Format, FormatOption, say

__all__ = ["rank"]

EVERY_ADDRESS = ("0.0.0.0", "::")


def rank(
    join: Annotated[
        str | None, typer.Option(help="HOST:PORT of the machine that leads: train with it")
    ] = None,
    member: Annotated[
        Path | None, typer.Option("--pass", help="with --join: the file of the invitation")
    ] = None,
    app_folders: Annotated[
        list[Path] | None,
        typer.Option("--app", help="with --join: an app's folder that may run here; repeatable"),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="with --join: how many processes; one a GPU if absent, and needed on the CPU",
            min=1,
            max=64,
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help='with --join: "all", "cpu", or numbers as 0,1')
    ] = None,
    threads: Annotated[
        int, typer.Option(help="with --join: CPU threads of a process", min=1, max=4096)
    ] = 1,
    invite: Annotated[
        str | None, typer.Option(help="on the machine that leads: the name of one that may join")
    ] = None,
    dir: Annotated[
        Path | None, typer.Option("--dir", help="with --invite: the client's folder")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="with --invite: the file to write; default: NAME.pass")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Train with another machine of this site, by --join; or let another one join, by --invite.

    With --join it runs in the foreground until SIGTERM or Ctrl-C, and finds the leader again whenever it is lost.
    """
    if (join is None) == (invite is None):
        raise ConfigError("give --join HOST:PORT, or --invite NAME on the machine that leads")
    if invite is not None:
        _invite(invite, dir, out, format)
        return
    if member is None or not app_folders:
        raise ConfigError("--join needs --pass, the file that --invite has written, and --app")
    _join(str(join), member, app_folders, processes, gpus, threads, format)


def _invite(name: str, dir: Path | None, out: Path | None, format: Format) -> None:
    from ..client.hosts.membership import Membership
    from ..client.owner.identity_folder import IdentityFolder
    from ..config.client_config import load_client_config
    from ..transport.address import Address

    if dir is None:
        raise ConfigError("--invite needs --dir, the folder of the client that leads")
    IdentityFolder(dir).load()
    device = load_client_config(dir).device
    file = out or Path(f"{name}.pass")
    if file.exists():
        raise ConfigError(f"{file} exists; give another place with --out, or remove it")
    invited = Membership(dir).invite(name, now=datetime.now(UTC))
    file.parent.mkdir(parents=True, exist_ok=True)
    invited.write(file)
    until_s = invited.identity.not_after.timestamp()
    listens = Address.parse(device.hosts_listen, what="device.hosts_listen")
    here = "THIS_HOST" if listens.host in EVERY_ADDRESS else listens.host
    leader = str(Address(host=here, port=listens.port))
    text = (
        f"{file} lets {name} join until {moment(until_s)}; it is a secret, and an older one is void\n"
        f"there    meadow client rank --join {leader} --pass {file.name} --app DIR"
    )
    if device.hosts is None:
        text += f"\nhere     set hosts = 2 (this machine included) under [device] of {dir / 'client.toml'}"
    say(
        format,
        text,
        host=name,
        join=leader,
        file=str(file),
        valid_until_s=until_s,
    )


def _join(
    leader: str,
    member: Path,
    apps: list[Path],
    processes: int | None,
    gpus: str | None,
    threads: int,
    format: Format,
) -> None:
    from ..apps.folder import App
    from ..client.agent.warm_process import training_environment
    from ..client.hosts.member import serve_ranks
    from ..client.hosts.membership import Pass
    from ..config.client_config import make_client_config
    from ..transport.address import Address

    address, shown = Address.parse(leader, what="--join"), Pass.read(member)
    device = {"parallel": "ddp", "processes": processes, "gpus": _gpus(gpus), "threads": threads}
    given = {key: value for key, value in device.items() if value is not None}
    config = make_client_config({"device": given}, where="meadow client rank").device
    folders = [folder.absolute() for folder in apps]
    for folder in folders:
        App.load(folder)  # that it is an app is told now, not in a round
    from ..machine.accelerators import accelerators
    from ..training.parallel.plan import ParallelPlan  # imports torch

    if processes is None and (gpus == "cpu" or not accelerators()):
        raise ConfigError("--join needs --processes on the CPU: there are no GPUs to count")
    devices = ParallelPlan.of(config).devices

    def report(text: str) -> None:
        say(format, f"{moment(time.time())} {text}", event="rank", message=text)

    async def serve() -> None:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, me.cancel)
        environment = training_environment(config)
        await serve_ranks(
            shown, address, apps=folders, devices=devices, environment=environment, report=report
        )

    try:
        asyncio.run(serve())
    except asyncio.CancelledError:
        report("stopped")


def _gpus(text: str | None) -> object:
    """Return what --gpus means, as device.gpus has it."""
    if text is None or text in ("all", "cpu"):
        return text
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f'--gpus must be "all", "cpu", or numbers as 0,1, got {text!r}') from None
