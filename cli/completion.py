"""`meadow completion`: shell completion of commands, options and their values."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

__all__ = ["choice", "completion", "prepare_completion"]

PROGRAM = "meadow"
VARIABLE = "_MEADOW_COMPLETE"


class Shell(StrEnum):
    """The supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="whose script is printed")],
) -> None:
    """Print a script for a shell: meadow completion bash > ~/.local/share/bash-completion/completions/meadow"""
    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value)
    print(script, flush=True)


def prepare_completion() -> None:
    """Prepare the completions, if a shell has requested them."""
    if VARIABLE in os.environ:
        completion_init()


def choice(section: type[Any], key: str, *, help: str) -> Any:
    """Return an option whose values are those of a setting in a section of the configuration.

    The configuration checks the value, so that the command line and files give the same errors.
    """
    values = get_args(get_type_hints(section)[key])
    return typer.Option(
        metavar=f"[{'|'.join(values)}]", help=help, autocompletion=lambda: list(values)
    )
