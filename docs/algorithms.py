"""Write docs/algorithms.md from the code: `make docs`."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from meadow.config import make_config
from meadow.errors import ConfigError
from meadow.strategies.catalogue import CATALOGUE, Entry

INTRODUCTION = """\
# Algorithms

This page is made from the code by `make docs`; a test holds it current.

`[strategy] name` chooses one; its keys are in [configuration.md](configuration.md#strategy). All
run over gRPC and under Flower with Meadow's client app, and on every executor of a
[simulation](simulation.md). An algorithm that keeps something at its clients needs clients that
come back: with ten thousand of which each is seen once, it is no better than FedAvg.

What travels beside the params adds up like them, so that updates may be summed on the way: in a
worker process, in a vectorized cohort, under secure aggregation.
"""

OPTIMIZERS = {"any": "any", "sgd": "`sgd`", "plain sgd": "`sgd` without momentum"}
Settings = dict[str, dict[str, Any]]
SECURE: Settings = {"privacy": {"secure_aggregation": {"enabled": True}}}
NORM: Settings = {"run": {"update_norm_max": 1.0}}


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, table()]
    parts += [section(name, entry) for name, entry in CATALOGUE.items()]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def table() -> str:
    """Return the table of what goes with what."""
    columns = [
        "name",
        "clients keep",
        "travels beside the params",
        "local optimizer",
        "secure aggregation",
        "`run.update_norm_max`",
    ]
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    rows = []
    for name, entry in CATALOGUE.items():
        beside = ", ".join(entry.builder().companions) or "nothing"
        fits = ["yes" if goes_with(name, settings) else "no" for settings in (SECURE, NORM)]
        cells = [f"`{name}`", entry.keeps, beside, OPTIMIZERS[entry.optimizer], *fits]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*head, *rows])


def goes_with(name: str, settings: Settings) -> bool:
    """Return whether a configuration with this algorithm and these settings is accepted."""
    run = {"min_clients": 3, **settings.get("run", {})}
    try:
        make_config({**settings, "run": run, "strategy": {"name": name}})
    except ConfigError:
        return False
    return True


def section(name: str, entry: Entry) -> str:
    """Return what there is to say of one algorithm."""
    module = inspect.cleandoc(inspect.getmodule(entry.builder).__doc__ or "")  # type: ignore[union-attr]
    about, _, source = module.partition("Source: ")
    title, _, what = about.partition(": ")
    keys = ", ".join(f"`{key}`" for key in sorted(set(entry.arguments.values())))
    lines = [
        f"## {title}",
        sentence(what),
        f'`name = "{name}"`, with {keys}.',
        f"A client {entry.client}." if entry.client else "",
        f"Source: {sentence(source)}",
    ]
    return "\n\n".join(line for line in lines if line)


def sentence(text: str) -> str:
    """Return a text as one line that ends with a full stop."""
    line = re.sub(r"\s+", " ", text).strip().rstrip(".")
    return f"{line[:1].upper()}{line[1:]}."


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
