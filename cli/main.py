"""The command `meadow`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # before NumPy: a run's sums must not depend on threads

import click
import typer

from .. import __version__
from ..errors import MeadowError
from . import client, demo, new, run, server, simulate, site
from .output import Format, fail

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning that survives: server, clients, simulation.",
)
app.add_typer(server.app, name="server")
app.add_typer(client.app, name="client")
app.add_typer(site.app, name="site")
app.add_typer(run.app, name="run")
app.command("simulate")(simulate.simulate)
app.command("demo")(demo.demo)
app.command("new")(new.new)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="print the version")) -> None:
    if version:
        print(f"meadow {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 on success, 2 on a wrong call or config, 1 on failure."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    format = Format.JSON if "json" in given or "--format=json" in given else Format.TEXT
    try:
        code = app(given, standalone_mode=False)
    except MeadowError as error:
        fail(error, format=format)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        print("meadow: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
