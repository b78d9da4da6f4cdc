"""Write docs/algorithms.md from the code: `make docs`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meadow.config.load import make_config
from meadow.errors import ConfigError
from meadow.strategies.algorithms.catalogue import CATALOGUE, Entry
from meadow.strategies.algorithms.fedasync import fedasync
from meadow.strategies.algorithms.fedbuff import fedbuff

INTRODUCTION = """\
# Algorithms

This page is generated from the code by `make docs`; a test checks that it is up to date.

`[strategy] name` chooses one; its keys are in [configuration.md](configuration.md#strategy). All
run over gRPC and under Flower with Meadow's client app, and on every executor of a
[simulation](simulation.md). An algorithm with client state needs clients that take part
repeatedly: with ten thousand clients that each take part once, it is no better than FedAvg.

"In one tensor" states whether the executor `vectorized` trains a cohort at once; where it cannot, it
runs the clients one by one and reports why. Where clients have params of their own, evaluations report
the common ones' metrics and those of the clients', as `personal-loss`;
`[evaluation] tuning_epochs` does so for any algorithm.

The auxiliary tensors beside the params are summed like them, so that updates may be summed on the
way: in a worker process, in a vectorized cohort, under secure aggregation.

[own-algorithms.md](own-algorithms.md) explains how to write one that is not here.
"""

ASYNCHRONOUS = {"fedbuff": fedbuff, "fedasync": fedasync}
WITHOUT_WAITING = """\
# Asynchronous rounds

`[rounds] kind` chooses one for the algorithms that go with it; see
[asynchronous.md](asynchronous.md).
"""
OPTIMIZERS = {"any": "any", "sgd": "`sgd`", "plain sgd": "`sgd` without momentum", "none": "none"}
Settings = dict[str, dict[str, Any]]
SECURE: Settings = {"privacy": {"secure_aggregation": {"enabled": True}}}
NORM: Settings = {"run": {"update_norm_max": 1.0}}
CHOICES = (SECURE, NORM, {"rounds": {"kind": "fedbuff"}})


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, table()]
    parts += [section(name, entry) for name, entry in CATALOGUE.items()]
    parts += [WITHOUT_WAITING]
    parts += [without_waiting(name, builder) for name, builder in ASYNCHRONOUS.items()]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def table() -> str:
    """Return the table of what goes with what."""
    columns = [
        "name",
        "clients keep",
        "travels beside the params",
        "local optimizer",
        "in one tensor",
        "secure aggregation",
        "`run.update_norm_max`",
        "asynchronous",
    ]
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    rows = []
    for name, entry in CATALOGUE.items():
        beside = ", ".join(kinds_of(entry)) or "nothing"
        fits = ["yes" if goes_with(name, settings) else "no" for settings in CHOICES]
        one_by_one = entry.personal or not entry.together or entry.optimizer == "none"
        stacks = "no" if one_by_one else "yes"
        cells = [f"`{name}`", entry.keeps, beside, OPTIMIZERS[entry.optimizer], stacks, *fits]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*head, *rows])


def kinds_of(entry: Entry) -> list[str]:
    """Return the kinds of auxiliary tensors of an algorithm; clusters are one kind here."""
    kinds = entry.builder(**entry.example).auxiliary
    return list(dict.fromkeys(re.sub(r"-\d+$", "s", kind) for kind in kinds))


def goes_with(name: str, settings: Settings) -> bool:
    """Return whether a configuration with this algorithm and these settings is accepted."""
    run = dict(settings.get("run", {}))
    if "rounds" not in settings:  # asynchronous ones have no cohorts
        clients = 1 if CATALOGUE[name].single else 3
        run = {"min_clients": clients, "cohort": clients, **run}
    try:
        strategy = {"name": name, **CATALOGUE[name].example}
        make_config({**settings, "run": run, "strategy": strategy})
    except ConfigError:
        return False
    return True


def section(name: str, entry: Entry) -> str:
    """Return what there is to say of one algorithm."""
    title, what, source = about(entry.builder)
    if sum(each.builder.__module__ == entry.builder.__module__ for each in CATALOGUE.values()) > 1:
        title = f"{title} (`{name}`)"
    arguments = set(entry.arguments.values()) - {"seed"}
    keys = ", ".join(f"`{key}`" for key in sorted(arguments))
    lines = [
        f"## {title}",
        sentence(what),
        f'`name = "{name}"`' + (f", with {keys}." if keys else "."),
        f"A client {entry.client}." if entry.client else "",
        f"Source: {sentence(source)}",
    ]
    return "\n\n".join(line for line in lines if line)


def without_waiting(name: str, builder: Callable[..., Any]) -> str:
    """Return what there is to say of one kind of asynchronous rounds."""
    title, what, source = about(builder)
    lines = [
        f"## {title}",
        sentence(what),
        f'`rounds.kind = "{name}"`.',
        f"Source: {sentence(source)}",
    ]
    return "\n\n".join(lines)


def about(builder: Callable[..., Any]) -> tuple[str, str, str]:
    """Return what a builder's module is called, what it is, and where it is from."""
    module = inspect.cleandoc(inspect.getmodule(builder).__doc__ or "")  # type: ignore[union-attr]
    said, _, source = module.partition("Source: ")
    title, _, what = said.partition(": ")
    return title, what, source


def sentence(text: str) -> str:
    """Return a text as one line that ends with a full stop."""
    line = re.sub(r"\s+", " ", text).strip().rstrip(".")
    return f"{line[:1].upper()}{line[1:]}."


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
