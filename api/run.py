"""`Run`: a run folder as Python sees it, and several of them in comparison."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..apps.folder import App
from ..config.load import FILE_NAME, load_config
from ..config.sections.model import Config
from ..errors import ConfigError
from ..reports.charts import figure_of
from ..reports.json_lines import read_objects
from ..reports.markup import Html, element, fragment
from ..reports.page import write_report
from ..reports.panels import over_rounds
from ..reports.run_record import read_run
from ..reports.shown_run import show_runs
from ..reports.svg import require_matplotlib
from ..simulations.run import ORIGIN
from ..task import Task
from ..transport.tensors import TensorFile
from .display import table_of

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

__all__ = ["Comparison", "Run", "compare", "load_run", "table"]

Row = dict[str, Any]
PARTS = ("train", "evaluate", "server")
ROWS_SHOWN = 5


class Run:
    """A run of a federation, finished or under way, in its folder.

    Everything is read anew from the folder's files, which docs/results.md describes.

    Attributes:
        folder: the run folder.
        task: the task, where this process knows it.
    """

    def __init__(self, folder: Path | str, *, task: Task | None = None) -> None:
        self.folder = Path(folder)
        self.task = task
        read_run(self.folder)

    @property
    def summary(self) -> Mapping[str, Any]:
        """The end of the run (summary.json): status, cause, rounds, final and best metrics,
        duration in seconds, privacy, failures; only the status "under way" before its end."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        except FileNotFoundError:
            return {"status": "under way"}
        except ValueError as error:
            raise ConfigError(f"{self.folder / 'summary.json'} is damaged: {error}") from None
        return found

    @property
    def status(self) -> str:
        """ "finished", "stopped", "failed" or "under way"."""
        return str(self.summary["status"])

    @property
    def config(self) -> Config:
        """Every setting of the run, defaults included."""
        return load_config(self.folder / FILE_NAME, environ={})

    @property
    def metrics(self) -> Any:
        """A row a round: "round", "clients", "train.loss" and so on, "duration_s", bytes.

        A pandas DataFrame where pandas is installed, else a list of dicts.
        """
        return table([_flat(row) for row in self._rows()])

    @property
    def clients(self) -> Any:
        """A row for each round and client that took part: "round", "client", "examples",
        "train.loss" and so on; as `metrics`, a DataFrame or a list of dicts."""
        return table(list(_client_rows(self.folder / "clients.jsonl")))

    def curve(self, metric: str) -> list[float]:
        """Return a metric, as "server.accuracy", of each round that measured it, in their order.

        Raises:
            ConfigError: no round measured it.
        """
        rows = [_flat(row) for row in self._rows()]
        values = [float(row[metric]) for row in rows if row.get(metric) is not None]
        if not values:
            known = ", ".join(sorted({key for row in rows for key in row if "." in key}))
            raise ConfigError(f"no round has a metric {metric!r}; there are {known or 'none'}")
        return values

    def params(self) -> dict[str, NDArray[Any]]:
        """Return the params of the last committed round by name.

        Raises:
            StoreError: no round was committed, or the file is damaged.
        """
        path = self.folder / "model.safetensors"
        size = path.stat().st_size if path.is_file() else 0
        tensors = TensorFile.open(path, size_max=size).tensors
        return {name: np.array(tensor.numpy()) for name, tensor in tensors.items()}

    def model(self, task: Task | None = None) -> torch.nn.Module:
        """Return the task's module with the params of the last committed round.

        `task` is needed where neither this process made the run nor its app folder is there.

        Raises:
            ConfigError: no task is known.
            AppError: the params are not those of the task's model.
            StoreError: no round was committed.
        """
        from ..training.module_params import build_module, load_params

        task = task or self.task or self._task_of_app()
        module = build_module(task, self.config.run.seed)
        load_params(module, self.params())
        return module

    def plot(self, metrics: Sequence[str] | None = None) -> Figure:
        """Return the curves over rounds as a matplotlib figure; `metrics` as "server.accuracy".

        Raises:
            ConfigError: matplotlib is not installed, or there is no such metric.
        """
        return Comparison([self]).plot(metrics)

    def report(self, out: Path | str | None = None) -> Path:
        """Write the report, one HTML file without references; report.html in the folder if absent.

        Raises:
            ConfigError: matplotlib is not installed, or a file of the folder is damaged.
        """
        target = Path(out) if out is not None else self.folder / "report.html"
        write_report([self.folder], target)
        return target

    def __repr__(self) -> str:
        summary = self.summary
        final = summary.get("final") or {}
        values = [
            f"{part} {name} {value:.4g}"
            for part in PARTS
            for name, value in (final.get(part) or {}).items()
        ]
        about = [f"{len(self._rows())} rounds", *values]
        return f"<Run {self.folder} {summary['status']}: {', '.join(about)}>"

    def _repr_html_(self) -> str:
        rows = self._rows()
        head = element("p", element("b", self.folder.name), f": {self.status}, {len(rows)} rounds")
        return fragment([head, *_chart([self]), table_of(rows[-ROWS_SHOWN:])])

    def _rows(self) -> list[Row]:
        return list(read_objects(self.folder / "metrics.jsonl"))

    def _task_of_app(self) -> Task:
        try:
            origin = json.loads((self.folder / ORIGIN).read_text())
            folder = origin["app"]
        except (OSError, ValueError, KeyError, TypeError):
            folder = None
        if not isinstance(folder, str):
            raise ConfigError(
                f"{self.folder} does not say which task it is of; use run.model(task)"
            )
        return App.load(folder, overrides=origin["settings"], environ={}).load_task()


class Comparison(Sequence[Run]):
    """Several runs side by side."""

    def __init__(self, runs: Sequence[Run]) -> None:
        """Raises: ConfigError: there is no run."""
        if not runs:
            raise ConfigError("there is no run to compare")
        self._runs = tuple(runs)
        self._shown = show_runs([read_run(run.folder) for run in self._runs])

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, place: Any) -> Any:
        return self._runs[place]

    @property
    def summary(self) -> Any:
        """A row a run: "run", "status", "rounds", the settings in which the runs differ, and the
        final metrics; a DataFrame or a list of dicts, as `Run.metrics`."""
        settings = [shown.record.settings for shown in self._shown]
        keys = sorted({key for each in settings for key in each})
        differing = [key for key in keys if len({each.get(key) for each in settings}) > 1]
        rows = []
        for run, shown in zip(self._runs, self._shown, strict=True):
            found = run.summary
            row: Row = {"run": shown.name, "status": found["status"], "rounds": len(run._rows())}
            row |= {key: shown.record.settings.get(key) for key in differing}
            rows.append(row | _flat(found.get("final") or {}, without=("round",)))
        return table(rows)

    def plot(self, metrics: Sequence[str] | None = None) -> Figure:
        """Return the curves of all runs over rounds as a matplotlib figure; see `Run.plot`."""
        require_matplotlib()
        panels = {panel.title: panel for panel in over_rounds(self._shown)}
        wanted = (
            list(panels) if metrics is None else [name.replace(".", " ", 1) for name in metrics]
        )
        if missing := [name for name in wanted if name not in panels]:
            known = ", ".join(name.replace(" ", ".", 1) for name in panels)
            raise ConfigError(f"there is no metric {missing[0]!r}; there are {known}")
        names = [shown.name for shown in self._shown]
        return figure_of([panels[name] for name in wanted], names if len(names) > 1 else ())

    def report(self, out: Path | str) -> Path:
        """Write the report that compares the runs, one HTML file without references."""
        write_report([run.folder for run in self._runs], Path(out))
        return Path(out)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self)} runs: {', '.join(each.name for each in self._shown)}>"

    def _repr_html_(self) -> str:
        return fragment(_chart(self._runs))


def load_run(folder: Path | str, *, task: Task | None = None) -> Run:
    """Return the run of a folder: of a simulation, or pulled from a server.

    Raises:
        ConfigError: it is no run folder, or a file in it is damaged.
    """
    return Run(folder, task=task)


def compare(runs: Sequence[Run | Path | str]) -> Comparison:
    """Return several runs in comparison.

    Raises:
        ConfigError: there is none, or a folder is no run's.
    """
    return Comparison([run if isinstance(run, Run) else Run(run) for run in runs])


def _chart(runs: Sequence[Run]) -> Iterator[Html]:
    """Yield the curves as SVG, nothing where matplotlib is missing or there is no metric."""
    try:
        figure = Comparison(runs).plot()
    except ConfigError:
        return
    if figure.axes:
        yield Html(figure._repr_html_())


def table(rows: list[Row]) -> Any:
    """Return rows as a pandas DataFrame, or as they are where pandas is not installed."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def _flat(row: Mapping[str, Any], *, without: Sequence[str] = ()) -> Row:
    flat: Row = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": each for name, each in value.items()}
        elif value is not None and key not in without:
            flat[key] = value
    return flat


def _client_rows(path: Path) -> Iterator[Row]:
    for found in read_objects(path):
        rows: dict[Any, Row] = {}
        tables = {"": {"clients": found.get("clients"), "examples": found.get("examples")}}
        tables |= {part: found.get(part) or {} for part in ("train", "evaluate")}
        for part, table in tables.items():
            clients = table.get("clients") or found.get("clients") or []
            for name, values in table.items():
                if name == "clients" or not isinstance(values, list):
                    continue
                for client, value in zip(clients, values, strict=False):
                    row = rows.setdefault(client, {"round": found["round"], "client": client})
                    row[f"{part}.{name}" if part else name] = value
        yield from rows.values()
