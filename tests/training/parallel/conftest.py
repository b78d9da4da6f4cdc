"""An app on disk, as ranks load it, and rounds of it on one process or several."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from meadow.apps.folder import App
from meadow.config.sections.device import DeviceConfig
from meadow.flower.messages import params_to_arrays
from meadow.task import Site
from meadow.training.local.training import LocalTraining, Round
from meadow.training.module_params import build_module, params_of_module
from meadow.training.settings import TrainingSettings
from meadow.training.site_data import SiteData
from meadow.training.warm_module import WarmModule

SCANS = Path(__file__).parent / "scans"


class Bench:
    """One app, trained in this process alone or with ranks."""

    def __init__(self, folder: Path, *, app: Path | None = None) -> None:
        """Make the app in a folder, or take one that was `laid_out` before."""
        self.folder = folder
        app = app or laid_out(folder)
        self.app = App.load(app, environ={})
        self.task = self.app.load_task()
        self.module: Any = sys.modules[self.task.loss.__module__]
        self._modules: dict[LocalTraining, WarmModule] = {}
        self._rounds = 0

    def say(self, name: str, text: object) -> None:
        """Leave a word for the app."""
        (self.folder / name).write_text(str(text))

    def passes(self, rank: int) -> list[int]:
        """Return the sizes of a rank's passes since this was asked last."""
        sizes = self.passes_so_far(rank)
        (self.folder / f"passes-{rank}").unlink(missing_ok=True)
        return sizes

    def passes_so_far(self, rank: int) -> list[int]:
        """Return likewise, and ask again later: another rank than the first may be behind."""
        file = self.folder / f"passes-{rank}"
        return [int(size) for size in file.read_text().split()] if file.exists() else []

    def training(self, **device: Any) -> LocalTraining:
        """Return what trains as an owner's [device] says."""
        return LocalTraining.owned(
            self.task,
            DeviceConfig(**{"device": "cpu", **device}),
            app_dir=str(self.app.folder),
            sha256=self.app.sha256,
            client_dir=self.folder,
        )

    def module_of(self, training: LocalTraining) -> WarmModule:
        """Return the module of what trains: ranks keep theirs, so this one has to stay too."""
        made = WarmModule(self.task, training.module_device, training.use.prepare)
        return self._modules.setdefault(training, made)

    def round(self, training: LocalTraining, *, key: str = "", **settings: Any) -> Round:
        """Return a round of site 0 from the same params as ever."""
        self._rounds += 1
        data = SiteData(self.task, Site(index=0, count=2), training.device).loaded().train
        module = self.module_of(training)
        arrays = params_to_arrays(params_of_module(build_module(self.task, 5)))
        return Round(
            site=Site(index=0, count=2),
            data=data,
            settings=TrainingSettings(**settings),
            client=1,
            load=lambda generation: module.with_params(
                arrays, seed=settings.get("seed", 0), generation=generation
            ),
            key=(key or self._rounds,),
        )

    def train(
        self, training: LocalTraining, *, key: str = "", **settings: Any
    ) -> tuple[dict[str, torch.Tensor], int, dict[str, float]]:
        """Train a round; returns the params, the samples and the means."""
        trained, samples, means = training.train(self.round(training, key=key, **settings))
        params = {name: value.clone() for name, value in trained.state_dict().items()}
        return params, samples, means

    def require_same_update(self, training: LocalTraining, **settings: Any) -> None:
        """Check that params, buffers, samples and metrics are those of one process with the same
        batches."""
        params, samples, means = self.train(self.training(), **settings)
        ours, seen, told = self.train(training, **settings)
        assert distance(ours, params) < 1e-5
        assert seen == samples == 53
        assert told == pytest.approx(means, rel=1e-5)


def laid_out(folder: Path) -> Path:
    """Make the app in a folder."""
    app = folder / "app"
    shutil.copytree(SCANS, app)
    with (app / "meadow.toml").open("a") as file:
        file.write('[strategy]\nname = "task:pulled"\n')
    return app


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest relative difference of two models' tensors."""
    assert list(one) == list(other)
    return max(
        float((one[name] - other[name]).double().norm() / other[name].double().norm().clamp(1e-12))
        for name in one
    )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return an app and its folder."""
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def pair(bench: Bench) -> Iterator[LocalTraining]:
    """Two ranks of one thread."""
    training = bench.training(parallel="ddp", processes=2, rank_timeout_s=4.0, save_steps=2)
    yield training
    training.close()
