"""An installed app with the owner's data and device, to try a round without a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...apps.folder import App
from ...config.client_config import ClientConfig, load_client_config
from ...config.rules.builders import training_record
from ...errors import AppError
from ...flower.messages import params_to_arrays
from ...task import ClientData, Site, Task
from ...training.local.training import LocalTraining, Round
from ...training.module_params import build_module, params_of_module
from ...training.settings import TrainingSettings
from ...training.site_data import SiteData
from ...training.warm_module import WarmModule
from ..owner.identity_folder import IdentityFolder

__all__ = ["TryOut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TryOut:
    """The app, settings, data and devices of a trial round.

    Attributes:
        settings: those of the app's own meadow.toml; a run may have others.
    """

    app: App
    task: Task
    config: ClientConfig
    site: Site
    settings: TrainingSettings

    @classmethod
    def open(cls, directory: Path, name: str) -> TryOut:
        """Load an app that is installed in a client's folder.

        Raises:
            AppError: the app is not installed, or is not a Meadow app.
            ConfigError: client.toml is wrong.
        """
        config = load_client_config(directory)
        if name not in config.apps:
            known = ", ".join(sorted(config.apps)) or "none"
            raise AppError(f"app {name!r} is not installed in {directory}; there are: {known}")
        app = App.load(config.apps[name], environ={})
        if app.config is None:
            raise AppError(f"{name!r} is a Flower app: how it trains is in its own code")
        index = config.data.index
        if index is None:
            index = IdentityFolder(directory).load().node_id - 1
        count = config.data.count or index + 1
        return cls(
            app=app,
            task=app.load_task(),
            config=config,
            site=Site(index=index, count=count, config=config.data.config),
            settings=TrainingSettings.of(training_record(app.config)),
        )

    def training(self) -> LocalTraining:
        """Return the local training under the owner's settings, with its ranks started.

        Raises:
            DataError: a device is missing, or the ranks do not start.
        """
        directory = (self.config.source or Path()).parent
        return LocalTraining.owned(
            self.task,
            self.config.device,
            app_dir=str(self.app.folder),
            sha256=self.app.sha256,
            client_dir=directory / "trials",
        )

    def data(self, device: str) -> ClientData:
        """Return the owner's data.

        Raises:
            DataError: the data cannot be used.
        """
        return SiteData(self.task, self.site, device).loaded()

    def round(self, training: LocalTraining, *, key: int) -> Round:
        """Return a round that starts from the initial params; each round has another key."""
        module = WarmModule(self.task, training.module_device, training.use.prepare)
        seed = self.settings.seed
        arrays = params_to_arrays(params_of_module(build_module(self.task, seed)))
        return Round(
            site=self.site,
            data=self.data(training.device).train,
            settings=self.settings,
            client=1,
            load=lambda generation: module.with_params(arrays, seed=seed, generation=generation),
            key=(key,),
        )
