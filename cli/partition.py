"""`meadow partition`: the data of each client of a simulation, shown without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import AppError
from .output import Format, FormatOption, say, show_rows

if TYPE_CHECKING:
    from ..config.sections.model import Config
    from ..reports.partition_survey import Survey

__all__ = ["partition"]

ROWS_MAX = 40
CLASS_COLUMNS_MAX = 12
_HEADINGS = {
    "of": "",
    "min": "least",
    "p5": "5 %",
    "median": "median",
    "p95": "95 %",
    "max": "most",
    "mean": "mean",
}


def partition(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="a folder with an app")],
    clients: Annotated[int | None, typer.Option(help="how many clients", min=1)] = None,
    plot: Annotated[
        Path | None, typer.Option(help="write a picture: FILE.png, FILE.svg or FILE.pdf")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="override a setting: simulation.alpha=0.1")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Show which data each simulated client gets: samples, classes, and how uneven they are."""
    from ..apps.folder import App
    from ..config.rules.builders import build_partition
    from ..reports.partition_picture import check_picture, draw
    from ..reports.partition_survey import survey  # imports torch; the help need not

    if plot is not None:
        check_picture(plot)
    overrides = list(settings or [])
    if clients is not None:
        overrides.append(f"simulation.clients={clients}")
    app = App.load(folder, overrides=overrides)
    if app.config is None:
        raise AppError(f"{app.name} is a Flower app: its own code divides its data")
    found = survey(
        app.load_task(),
        build_partition(app.config),
        clients=app.config.simulation.clients,
        seed=app.config.run.seed,
        explain=app.explain,
    )
    title = _title(app.name, app.config, found)
    if plot is not None:
        draw(found, plot, title=title)
    if format is Format.JSON:
        summary = _summary(found)
        say(format, "", event="partition", app=app.name, summary=summary, clients=_rows(found))
    else:
        _show(found, title)
        if plot is not None:
            say(format, f"\nsee {plot}")


def _title(name: str, config: Config, found: Survey) -> str:
    chosen = config.simulation
    detail = {
        "dirichlet": f", alpha {chosen.alpha:g}",
        "size": f", alpha {chosen.alpha:g}",
        "shards": f", {chosen.classes_per_client} shards each",
    }.get(chosen.partition, "")
    return (
        f"{name}: {found.train.sum():,} samples to train on, {found.test.sum():,} to test on, "
        f"{len(found.train):,} clients ({chosen.partition}{detail}, seed {config.run.seed})"
    )


def _show(found: Survey, title: str) -> None:
    say(Format.TEXT, f"{title}\n")
    if len(found.train) <= ROWS_MAX:
        rows = [{**row, **row.get("labels", {})} for row in _rows(found)]
        show_rows(Format.TEXT, list(map(_rounded, rows)), columns=_columns(found), empty="")
        print(flush=True)
    lines = [{"of": name, **values} for name, values in _summary(found).items()]
    show_rows(Format.TEXT, list(map(_rounded, lines)), columns=_HEADINGS, empty="")


def _columns(found: Survey) -> dict[str, str]:
    names = ["client", "train", "test"]
    if found.labels is None:
        return {name: name for name in [*names, "mean", "deviation"]}
    labels = [str(each) for each in found.labels.classes.tolist()]
    if len(labels) > CLASS_COLUMNS_MAX:
        return {name: name for name in [*names, "classes", "distance"]}
    classes = {each: f"class {each}" for each in labels}
    return {**{name: name for name in names}, **classes, "distance": "distance"}


def _rows(found: Survey) -> list[dict[str, Any]]:
    columns: dict[str, list[Any]] = {
        "client": list(range(len(found.train))),
        "train": found.train.tolist(),
        "test": found.test.tolist(),
    }
    if found.labels is None:
        columns |= {"mean": found.means.tolist(), "deviation": found.deviations.tolist()}
    else:
        names = [str(each) for each in found.labels.classes.tolist()]
        counts = found.labels.counts.tolist()
        columns |= {
            "classes": found.labels.classes_each.tolist(),
            "distance": found.labels.distances.tolist(),
            "labels": [dict(zip(names, row, strict=True)) for row in counts],
        }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _summary(found: Survey) -> dict[str, Mapping[str, float]]:
    from ..reports.partition_survey import quantiles

    summary = {"train samples": quantiles(found.train)}
    if found.test.any():
        summary["test samples"] = quantiles(found.test)
    if found.labels is None:
        return summary | {"target's mean": quantiles(found.means)}
    return summary | {
        "classes": quantiles(found.labels.classes_each),
        "distance": quantiles(found.labels.distances),
    }


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _short(value) for key, value in row.items()}


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
