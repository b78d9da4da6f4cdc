"""`meadow plan`: what a round over a network will cost, before it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .output import Format, FormatOption, say, show_rows

if TYPE_CHECKING:
    from ..server.tools.round_plan import RoundCosts

__all__ = ["plan"]

BITS_PER_S = {"kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
SECONDS = {"ms": 1e-3, "s": 1.0}


def plan(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="a folder with an app")],
    clients: Annotated[
        int | None, typer.Option(help="how many clients are enrolled", min=1)
    ] = None,
    cohort: Annotated[int | None, typer.Option(help="how many take part in a round", min=1)] = None,
    link: Annotated[str, typer.Option(help="a client's line, the same both ways")] = "100Mbit/s",
    rtt: Annotated[str, typer.Option(help="its round trip to the server")] = "50ms",
    training_s: Annotated[
        float, typer.Option("--training-s", help="how long a client trains, in seconds", min=0)
    ] = 0.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="override a setting: compression.upload=int8")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Show the bytes, the time and the memory of one round, from the app's model and settings."""
    from ..apps.folder import App
    from ..server.tools.round_plan import AccessLink, round_costs  # imports what the help need not

    line = AccessLink(
        bytes_per_s=_measure("--link", link, BITS_PER_S) / 8,
        round_trip_s=_measure("--rtt", rtt, SECONDS),
    )
    overrides = list(settings or [])
    if clients is not None:
        overrides.append(f"simulation.clients={clients}")
    if cohort is not None:
        overrides.append(f"run.cohort={cohort}")
    app = App.load(folder, overrides=overrides)
    enrolled = clients or (app.config.simulation.clients if app.config else 1)
    costs = round_costs(app, clients=enrolled, slow=line.is_slow)
    seconds = {
        "download": line.download_s(costs.down_bytes),
        "training": training_s,
        "upload": line.upload_s(costs.up_bytes, clients=enrolled),
    }
    rows = _rows(costs, seconds)
    if format is Format.TEXT:
        say(format, f"{app.name}: a round of {costs.cohort} of {enrolled} clients\n")
    columns = {"what": "", "client_bytes": "bytes a client", "all_bytes": "bytes of all", "s": "s"}
    show_rows(format, rows, columns=columns, empty="")
    if format is Format.TEXT:
        say(format, "\n" + _memory_text(costs))


def _rows(costs: RoundCosts, seconds: dict[str, float]) -> list[dict[str, object]]:
    total_s = sum(seconds.values())
    sizes = {"download": costs.down_bytes, "training": 0, "upload": costs.up_bytes}
    rows: list[dict[str, object]] = [
        {"what": what, "client_bytes": size, "all_bytes": size * costs.cohort, "s": round(seconds[what], 2)}
        for what, size in sizes.items()
    ]  # fmt: skip
    both = costs.down_bytes + costs.up_bytes
    rows.append({"what": "round", "client_bytes": both, "all_bytes": both * costs.cohort, "s": round(total_s, 2)})  # fmt: skip
    if costs.evaluated_bytes:
        size = costs.evaluated_bytes
        what = "evaluation besides, at most"
        rows.append({"what": what, "client_bytes": size, "all_bytes": size * costs.cohort, "s": ""})
    if costs.memory is not None:
        rows.append({"what": "memory of a client", "client_bytes": costs.memory.client_bytes, "all_bytes": "", "s": ""})  # fmt: skip
        rows.append({"what": "memory of the server", "client_bytes": "", "all_bytes": costs.memory.server_bytes, "s": ""})  # fmt: skip
    if (disk := costs.disk) is not None:
        for what, one, server in (
            ("a client's", disk.client_bytes, ""),
            ("the server's", "", disk.server_bytes),
        ):
            rows.append(
                {"what": f"{what} disk, at most", "client_bytes": one, "all_bytes": server, "s": ""}
            )
    return rows


def _memory_text(costs: RoundCosts) -> str:
    if costs.memory is None:
        return "What memory such a round takes is not known before it runs."
    return (
        "The memory is that of programs and params; a client's data and the activations of its batches "
        "come on top."
    )


def _measure(option: str, text: str, units: dict[str, float]) -> float:
    """Return a number with a unit, such as 20Mbit/s.

    Raises:
        ConfigError: it is none, or not above 0.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(\S+)", text)
    if found is None or found[2] not in units or not float(found[1]):
        raise ConfigError(
            f"{option} must be a number above 0 with {' or '.join(units)}, got {text!r}"
        )
    return float(found[1]) * units[found[2]]
