"""`meadow plugins`: the names that settings take, of Meadow's own and of installed packages."""

from __future__ import annotations

from .. import __version__
from .output import Format, FormatOption, show_rows

__all__ = ["plugins"]


def plugins(format: FormatOption = Format.TEXT) -> None:
    """List the names that settings take for what a package may bring, and which package brings each."""
    from ..config.schema.installed import RULES, SCHEDULES, SELECTIONS, STRATEGIES, installed_in
    from ..strategies.algorithms.builders import BUILT_IN  # imports Flower; the help need not
    from ..strategies.robust.rules import AGGREGATIONS
    from ..strategies.rounds.selection import KINDS

    ours = f"meadow-fl {__version__}"
    rows = []
    for setting, names, group in (
        ("strategy.name", {name: f"meadow.{name}" for name in BUILT_IN}, STRATEGIES),
        ("selection.kind", dict.fromkeys(KINDS, ""), SELECTIONS),
        ("robust.aggregation", dict.fromkeys(AGGREGATIONS, ""), RULES),
        ("training.schedule", dict.fromkeys(("constant", "cosine", "step"), ""), SCHEDULES),
    ):
        found = [(name, stands_for, ours) for name, stands_for in names.items()]
        found += [
            (each.name, each.reference, each.package)
            for each in installed_in(group)
            if each.name not in names
        ]
        keys = "name", "stands_for", "package"
        rows += [{"setting": setting, **dict(zip(keys, each, strict=True))} for each in found]
    columns = {"setting": "setting", "name": "name", "stands_for": "is", "package": "package"}
    show_rows(format, rows, columns=columns, empty="there are none")
