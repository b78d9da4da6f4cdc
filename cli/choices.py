"""Options with a closed set of values: what help lists, and what a shell completes."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import typer

__all__ = ["choice"]


def choice(section: type[Any], key: str, *, help: str) -> Any:
    """Return an option for a setting of a section of the configuration, which has its values.

    The configuration checks the value, so that the command line and files say the same of it.
    """
    values = get_args(get_type_hints(section)[key])
    return typer.Option(
        metavar=f"[{'|'.join(values)}]", help=help, autocompletion=lambda: list(values)
    )
