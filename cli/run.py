"""`meadow run`: submit an app to a server, and follow, stop or fetch its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..apps.folder import App
from ..errors import MeadowError
from ..reports.sentences import moment, sentence_of
from ..server.remote.connection import admin_stub
from ..server.remote.runs import events_of, named, site_names
from ..server.remote.runs import pull as pull_folder
from ..server.remote.runs import submit as submit_app
from ..transport import fleet_pb2 as pb
from .admin import AdminOption, DirOption
from .live import RunView
from .output import Format, FormatOption, say, show_rows

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Submit, follow, stop and fetch runs.")

COLUMNS = {
    "id": "RUN",
    "app": "APP",
    "status": "STATUS",
    "round": "ROUND",
    "rounds": "OF",
    "submitted": "SUBMITTED",
    "cause": "CAUSE",
}
RunNumber = Annotated[int, typer.Argument(help="the run's number, as `meadow run list` shows it")]


@app.command()
def submit(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="a folder with an app")],
    dir: DirOption = None,
    admin: AdminOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="override a setting: run.rounds=5")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="follow the run to its end")] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Send an app to the server and begin a run of it."""
    loaded = App.load(folder, overrides=settings or [])
    with admin_stub(dir, admin) as stub:
        run = submit_app(stub, loaded)
        say(
            format,
            f"run {run.id} of {run.app} ({run.sha256[:12]}) is {run.status}",
            run=run.id,
            app=run.app,
            sha256=run.sha256,
            status=run.status,
        )
        if watch:
            _follow(stub, run.id, format)


@app.command("list")
def list_(
    dir: DirOption = None, admin: AdminOption = None, format: FormatOption = Format.TEXT
) -> None:
    """List all runs."""
    with admin_stub(dir, admin) as stub:
        runs = stub.Runs(pb.Empty(), timeout=10).runs
    empty = "no run yet; `meadow run submit APP` begins one"
    show_rows(format, [_row(run) for run in runs], columns=COLUMNS, empty=empty)


@app.command()
def show(
    run: RunNumber,
    dir: DirOption = None,
    admin: AdminOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Show one run and what happened in it."""
    with admin_stub(dir, admin) as stub:
        detail = stub.ShowRun(pb.RunId(id=run), timeout=10)
        names = site_names(stub)
    row = _row(detail.run)
    events = [
        {"at": moment(event.at_s), "kind": event.kind, **named(json.loads(event.json), names)}
        for event in detail.events
    ]
    if format is Format.JSON:
        say(format, "", **row, events=events)
        return
    say(format, "\n".join(f"{COLUMNS[key].lower():10} {row[key]}" for key in COLUMNS))
    for event in events:
        if (sentence := sentence_of(event["kind"], event)) is not None:
            say(format, f"{event['at']}  {sentence}")


@app.command()
def watch(
    run: RunNumber,
    dir: DirOption = None,
    admin: AdminOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Follow a run live, from its beginning to its end."""
    with admin_stub(dir, admin) as stub:
        _follow(stub, run, format)


def _follow(stub: Any, run_id: int, format: Format) -> None:
    with RunView(f"run {run_id}", format=format) as view:
        for kind, detail in events_of(stub, run_id):
            view.show(kind, detail)
    final = stub.ShowRun(pb.RunId(id=run_id), timeout=10).run
    if final.status == "failed":
        raise MeadowError(
            f"run {run_id} failed: {final.cause}; `meadow run show {run_id}` tells more"
        )


@app.command()
def stop(
    run: RunNumber,
    dir: DirOption = None,
    admin: AdminOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Stop a run at once; its last committed model stays."""
    with admin_stub(dir, admin) as stub:
        stopped = stub.Stop(pb.RunId(id=run), timeout=60)
    text = f"run {stopped.id} is {stopped.status} after round {stopped.round}"
    say(format, text, **_row(stopped))


@app.command()
def resume(
    run: RunNumber,
    dir: DirOption = None,
    admin: AdminOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Resume a failed or stopped run after its last committed round."""
    with admin_stub(dir, admin) as stub:
        resumed = stub.Resume(pb.RunId(id=run), timeout=60)
    say(format, f"run {resumed.id} goes on after round {resumed.round}", **_row(resumed))


@app.command()
def pull(
    run: RunNumber,
    out: Annotated[Path | None, typer.Option(help="where to; default: run-ID")] = None,
    dir: DirOption = None,
    admin: AdminOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Fetch a run's folder: the model, the metrics and the summary."""
    target = out or Path(f"run-{run}")
    if target.exists() and any(target.iterdir()):
        raise MeadowError(f"{target} is not empty; give another folder with --out")
    with admin_stub(dir, admin) as stub:
        files = pull_folder(stub, run, target)
    say(format, f"{len(files)} files in {target}", out=str(target), files=files)


def _row(run: pb.Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "app": run.app,
        "status": run.status,
        "round": run.round,
        "rounds": run.rounds,
        "submitted": moment(run.submitted_at_s),
        "cause": run.cause,
        "sha256": run.sha256,
    }


def follow_and_pull(
    server_dir: Path, folder: Path, settings: list[str], out: Path, format: Format
) -> dict[str, Any]:
    """Run an app on a server to its end, fetch the run folder and return its summary."""
    loaded = App.load(folder, overrides=settings)
    with admin_stub(server_dir, None) as stub:
        run = submit_app(stub, loaded)
        _follow(stub, run.id, format)
        pull_folder(stub, run.id, out)
    return dict(json.loads((out / "summary.json").read_text()))
