"""`meadow client apps`: the apps that the server offers, and the owner's approval of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..reports.sentences import moment
from .output import Format, FormatOption, plain, say, show_rows

__all__ = ["app"]

app = typer.Typer(help="See the apps that the server offers, and approve or refuse them.")

ClientDir = Annotated[Path, typer.Option("--dir", help="the client's folder")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="the app's name")]
Hash = Annotated[
    str, typer.Argument(metavar="HASH", help="its SHA-256, or the first 12 digits or more")
]


@app.callback(invoke_without_command=True)
def list_(
    context: typer.Context,
    dir: Annotated[Path | None, typer.Option("--dir", help="the client's folder")] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """List the apps that are installed and those that wait for approval."""
    if context.invoked_subcommand is not None:
        return
    if dir is None:
        raise ConfigError("--dir is missing; `meadow client apps --help` shows how it is called")
    from ..apps.folder import content_hash
    from ..client.owner.offers import Offers
    from ..client.owner.owner import Owner

    owner = Owner(dir, content_hash)
    approved = owner.config().approved
    rows = [
        {
            "app": name,
            "state": "approved" if name in approved else "installed",
            "sha256": found if isinstance(found, str) else f"{found}",
            "signer": "",
            "offered": "",
        }
        for name, found in owner.apps().items()
    ]
    rows += [
        {
            "app": offer.name,
            "state": "waits",
            "sha256": offer.sha256,
            "signer": offer.signer,
            "offered": moment(offer.at_s),
        }
        for offer in Offers(dir).pending()
    ]
    columns = {"app": "APP", "state": "STATE", "sha256": "SHA-256", "signer": "SIGNED BY"}
    show_rows(format, rows, columns=columns | {"offered": "OFFERED"}, empty="no app is installed")


@app.command()
def show(name: Name, dir: ClientDir, format: FormatOption = Format.TEXT) -> None:
    """Show the changes of an offered version against the installed one, without running it."""
    from ..apps.folder import content_hash
    from ..client.owner.offers import Offers
    from ..client.owner.owner import Owner

    offer, changes = Offers(dir).changes(name, Owner(dir, content_hash).folder(name))
    if format is Format.JSON:
        say(format, "", **asdict(offer), changes=[asdict(change) for change in changes])
        return
    signed = f"signed by {offer.signer}" if offer.signer else "not signed"
    say(format, f"app {offer.name}, sha256:{offer.sha256}, {signed}, offered {moment(offer.at_s)}")
    for change in changes:
        say(format, f"{change.kind:<8} {change.path} ({change.size_bytes} bytes)")
        for line in change.diff:
            print("    " + plain(line))
    say(
        format,
        f"to let it run here   meadow client apps approve {offer.name} {offer.sha256} --dir {dir}\n"
        f"to refuse it         meadow client apps refuse {offer.name} {offer.sha256} --dir {dir}",
    )


@app.command()
def approve(name: Name, sha256: Hash, dir: ClientDir, format: FormatOption = Format.TEXT) -> None:
    """Install an offered version, in place of any other; it may then run on this data."""
    from ..client.owner.offers import Offers

    folder = Offers(dir).approve(name, sha256)
    say(
        format,
        f"{name} sha256:{folder.name} is installed in {folder}",
        app=name,
        sha256=folder.name,
    )


@app.command()
def refuse(name: Name, sha256: Hash, dir: ClientDir, format: FormatOption = Format.TEXT) -> None:
    """Remove an offered or approved version, and refuse it from now on."""
    from ..client.owner.offers import Offers

    found = Offers(dir).refuse(name, sha256)
    say(format, f"{name} sha256:{found} is refused for good", app=name, sha256=found)
