"""The state of an unfinished round, from which training continues: saved and restored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import StoreError
from ...randomness.seeded import generator_states, set_generator_states
from ..evaluation import ExampleMeans
from ..mid_epoch import MidEpoch, Moment
from ..module_params import to_array, to_tensor
from ..parallel.parallelism import Parallelism
from ..parallel.sharded_tensors import local_of
from .optimizers import Optimizer

__all__ = ["Place", "Unfinished"]

RANDOM = "random:"
VALUES = "values:"


@dataclass(slots=True)
class Place:
    """How far a round's training has come.

    Attributes:
        epoch: how many are over.
        batches: how many of the present one are.
        steps: how many steps the optimizer has made in all.
        samples: how many examples an epoch has; 0 before the first one ends.
    """

    epoch: int = 0
    batches: int = 0
    steps: int = 0
    samples: int = 0

    def begin_next_epoch(self, *, samples: int) -> None:
        """Go on to the next epoch; `samples` is how many were seen so far."""
        self.epoch, self.batches, self.samples = self.epoch + 1, 0, self.samples or samples


class Unfinished:
    """The state of an unfinished round: params, buffers, optimizer, scaler, means and random generators."""

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: Optimizer,
        scaler: torch.amp.GradScaler | None,
        means: ExampleMeans,
        device: str,
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._scaler = scaler
        self._means = means
        self._device = device

    def save(self, saves: MidEpoch, place: Place, parallelism: Parallelism) -> None:
        """Write this rank's part of it.

        Raises:
            StoreError: the disk does not take it.
        """
        arrays: dict[str, NDArray[Any]] = {}
        if parallelism.rank == 0 or parallelism.sharded:
            arrays |= {name: to_array(tensor) for name, tensor in self._tensors()}
        for name, state in generator_states(self._device).items():
            arrays[RANDOM + name] = state
        for name, values in self._means.values().items():
            arrays[VALUES + name] = to_array(values)
        scaler = {} if self._scaler is None else self._scaler.state_dict()
        facts = {"place": asdict(place), "steps": self._optimizer.steps, "scaler": scaler}
        saves.write(place.steps, parallelism.rank, Moment(arrays, facts))

    @torch.no_grad()
    def resume(self, saves: MidEpoch, step: int, parallelism: Parallelism) -> Place:
        """Put back what was saved after a step.

        Raises:
            StoreError: it cannot be read, or is another round's.
        """
        own = _read(saves, step, parallelism.rank)
        held = own if parallelism.sharded or parallelism.rank == 0 else _read(saves, step, 0)
        for name, tensor in self._tensors():
            tensor.copy_(_tensor(held, name))
        self._optimizer.resume(int(own.facts["steps"]))
        if self._scaler is not None:
            self._scaler.load_state_dict(dict(own.facts["scaler"]))
        values = [name for name in own.arrays if name.startswith(VALUES)]
        kept = {name.removeprefix(VALUES): _tensor(own, name) for name in values}
        self._means.extend({name: tensor.to(self._device) for name, tensor in kept.items()})
        random = [name for name in own.arrays if name.startswith(RANDOM)]
        states = {name.removeprefix(RANDOM): own.arrays[name] for name in random}
        set_generator_states(states, self._device)
        return Place(**own.facts["place"])

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, param in self._module.named_parameters():
            yield f"param:{name}", local_of(param.detach())
        for name, buffer in self._module.named_buffers():
            yield f"buffer:{name}", buffer
        for number, slot in enumerate(self._optimizer.slots):
            for index, tensor in enumerate(slot):
                yield f"slot:{number}:{index}", local_of(tensor)


def _read(saves: MidEpoch, step: int, rank: int) -> Moment:
    moment = saves.read(step, rank)
    if moment is None:
        raise StoreError(f"the round that was saved in {saves.folder} cannot be read")
    return moment


def _tensor(moment: Moment, name: str) -> torch.Tensor:
    array = moment.arrays.get(name)
    if array is None:
        raise StoreError(f"the round that was saved has no {name!r}")
    return to_tensor(np.array(array))
