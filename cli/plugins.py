"""`meadow plugins`: the names that settings take, of Meadow's own and of installed packages."""

from __future__ import annotations

from .. import __version__
from .output import Format, FormatOption, show_rows

__all__ = ["plugins"]


def plugins(format: FormatOption = Format.TEXT) -> None:
    """List the algorithms that strategy.name takes: Meadow's, and those of installed packages."""
    from ..config.schema.installed import STRATEGIES, installed_in
    from ..strategies.algorithms.builders import BUILT_IN  # imports Flower; the help need not

    rows = [
        {
            "setting": "strategy.name",
            "name": name,
            "builder": f"meadow.{name}",
            "package": f"meadow-fl {__version__}",
        }
        for name in BUILT_IN
    ]
    rows += [
        {
            "setting": "strategy.name",
            "name": each.name,
            "builder": each.reference,
            "package": each.package,
        }
        for each in installed_in(STRATEGIES)
        if each.name not in BUILT_IN
    ]
    columns = {"setting": "setting", "name": "name", "builder": "builder", "package": "package"}
    show_rows(format, rows, columns=columns, empty="there are none")
