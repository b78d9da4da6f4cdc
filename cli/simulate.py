"""`meadow simulate`: an app with many clients, on this machine."""

from __future__ import annotations

import gc
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from ..apps.flower_app import read_node_config
from ..config.sections.simulation import SimulationConfig
from ..errors import ConfigError, MeadowError
from ..machine.process_limits import keep_freed_memory, use_large_pages, wait_for_threads
from .completion import choice
from .live import RunView
from .output import Format, FormatOption, say

__all__ = ["simulate"]


def simulate(
    folder: Annotated[
        Path | None, typer.Argument(metavar="APP", help="a folder with an app")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="how many clients", min=1)] = None,
    rounds: Annotated[int | None, typer.Option(help="how many rounds", min=1)] = None,
    executor: Annotated[
        str | None, choice(SimulationConfig, "executor", help="how clients are executed")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="decides everything random", min=0)] = None,
    out: Annotated[
        Path | None, typer.Option(help="the run folder; default: runs/APP-DATE-TIME")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="a run folder: go on with an interrupted simulation")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="override a setting: training.epochs=2")
    ] = None,
    node_config: Annotated[
        list[str] | None,
        typer.Option(help='what every client finds in its node_config: dataset-path="/data"'),
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Simulate an app, Meadow's or plain Flower's, with many clients on this machine."""
    if (folder is None) == (resume is None):
        raise ConfigError("give either an app, or --resume with a run folder")
    given = (clients, rounds, executor, seed, out, settings, node_config)
    if resume is not None and any(each is not None for each in given):
        raise ConfigError(
            "--resume goes on with the settings that the run began with; give no more"
        )
    keep_freed_memory()
    use_large_pages()
    wait_for_threads()
    from ..simulations import run  # imports torch; the command's help need not

    gc.freeze()  # 300,000 objects of libraries, which stay: to look at them all takes 0.2 s

    about = folder if resume is None else resume
    assert about is not None
    with RunView(about.resolve().name, format=format) as view, _prints_aside(format):
        if resume is not None:
            target = resume
            summary = run.resume(resume, on_event=view.show)
        else:
            assert folder is not None
            overrides = list(settings or [])
            if (folder / "meadow.toml").is_file():
                named = {"run.rounds": rounds, "simulation.executor": executor, "run.seed": seed}
                executor = None
                overrides += [f"{key}={value}" for key, value in named.items() if value is not None]
            elif rounds is not None or seed is not None:
                raise ConfigError(
                    f"{folder} is a Flower app: its rounds and seed are keys of its own config; "
                    "give them with --set"
                )
            target = out or run.default_folder(folder.resolve().name)
            summary = run.simulate(
                folder,
                overrides=overrides,
                out=target,
                clients=clients,
                executor=executor,
                node_config=read_node_config(node_config or []),
                on_event=view.show,
            )
    _conclude(summary, target, format)


def _prints_aside(format: Format) -> AbstractContextManager[Any]:
    """Let what an app prints not get between the lines that a program reads."""
    return redirect_stdout(sys.stderr) if format is Format.JSON else nullcontext()


def _conclude(summary: dict[str, Any], target: Path, format: Format) -> None:
    again = f"meadow simulate --resume {target}"
    if summary["status"] == "failed":
        rounds = summary["rounds"]
        step = f"go on after round {rounds} with the same app:  {again}"
        if not rounds:
            step = "no round was completed; repair the cause, and simulate anew"
        raise MeadowError(f"{summary['cause']}\n{step}")
    if summary["status"] == "stopped":
        text = f"stopped after round {summary['rounds']}; continue with:  {again}"
    else:
        text = f"finished {summary['rounds']} rounds in {summary['duration_s']:.1f} s; see {target}"
    say(format, text, event="summary", folder=str(target), **summary)
