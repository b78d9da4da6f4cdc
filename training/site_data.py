"""One site's data, loaded when first needed and kept on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import DataError
from ..task import ClientData, Site, Task
from .batches import samples_in

if TYPE_CHECKING:
    from ..task import Data

__all__ = ["SiteData"]


class SiteData:
    """What a task loads of one site."""

    def __init__(self, task: Task, site: Site, device: str) -> None:
        self._task = task
        self._site = site
        self._device = device
        self._data: ClientData | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether `loaded` costs nothing any more."""
        return self._data is not None

    def loaded(self) -> ClientData:
        """Return the data; the first call loads them.

        Raises:
            DataError: the task returns something else, or data that cannot be used.
        """
        if self._data is None:
            data = self._task.client_data(self._site)
            if not isinstance(data, ClientData):
                kind = type(data).__name__
                raise DataError(f"client_data must return a meadow.ClientData, got a {kind}")
            test = None if data.test is None else self._placed(data.test)
            self._data = ClientData(train=self._placed(data.train), test=test)
        return self._data

    def _placed(self, data: Data) -> Data:
        """Move a pair of tensors to the device once, not batch by batch."""
        samples_in(data)  # raises where the data are of no use
        if isinstance(data, tuple) and self._device != "cpu":
            return data[0].to(self._device), data[1].to(self._device)
        return data
