"""The command `meadow`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..machine.process_limits import (
    begin_with_one_thread,
    keep_accountants_quiet,
    keep_grpc_quiet,
    share_cores,
)

begin_with_one_thread()  # before NumPy is imported
keep_grpc_quiet()
keep_accountants_quiet()

import click
import typer
from click.exceptions import NoArgsIsHelpError

from .. import __version__
from ..errors import ConfigError, MeadowError
from . import app as app_commands
from . import (
    client,
    demo,
    new,
    partition,
    plan,
    plugins,
    privacy,
    relay,
    report,
    run,
    server,
    simulate,
    site,
    sweep,
    track,
)
from .completion import completion, prepare_completion
from .output import Format, fail, show_renamings

__all__ = ["app", "main"]

PROGRAM = "meadow"
INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C has ended."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning that survives: server, clients, simulation.",
)
app.add_typer(server.app, name="server")
app.add_typer(client.app, name="client")
app.add_typer(relay.app, name="relay")
app.add_typer(site.app, name="site")
app.add_typer(run.app, name="run")
app.add_typer(app_commands.app, name="app")
app.add_typer(privacy.app, name="privacy")
app.command("simulate")(simulate.simulate)
app.command("demo")(demo.demo)
app.command("new")(new.new)
app.command("partition")(partition.partition)
app.command("plan")(plan.plan)
app.command("plugins")(plugins.plugins)
app.command("report")(report.report)
app.command("track")(track.track)
app.command("sweep")(sweep.sweep)
app.command("completion")(completion)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="print the version")) -> None:
    if version:
        print(f"meadow {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 on success, 2 on a wrong call or config, 1 on failure."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    share_cores()
    prepare_completion()
    show_renamings()
    format = Format.JSON if "json" in given or "--format=json" in given else Format.TEXT
    try:
        code = app(given, standalone_mode=False, prog_name=PROGRAM)
    except MeadowError as error:
        fail(error, format=format)
        sys.exit(error.exit_code)
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        fail(_wrong_call(error), format=format)
        sys.exit(2)
    except OSError as error:  # a file or folder that a command names
        about = f"{error.filename}: " if error.filename else ""
        fail(MeadowError(f"{about}{error.strerror or error}"), format=format)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer gives it as a code, too
        fail(MeadowError("interrupted"), format=format)
    sys.exit(code if isinstance(code, int) else 0)


def _wrong_call(error: click.ClickException) -> MeadowError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else PROGRAM
    what = " ".join(error.format_message().split()).rstrip(".")
    return ConfigError(f"{what}; `{command} --help` shows how it is called")
