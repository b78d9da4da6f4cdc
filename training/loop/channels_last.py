"""Channels last: a CPU trains convolutions in less time where an image's channels lie side by side.

oneDNN's convolutions, and torch's pooling and norms, then take up to a fourth less time in common
networks. No value changes but by rounding; yet a module's own code can notice how values lie: `view` may raise,
dropout after a convolution draws in the order of memory, and a change of what `reshape` gives reaches the
tensor that was reshaped, or does not. So a module's step is traced both ways (`step_trace`), with a
batch of each size that the training has. The layout is taken only where both traces draw the same
random numbers in the same order and do nothing that could depend on memory; and where it saves copies, rather
than making them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from ...errors import DataError
from ..batches import Batch, in_pool, samples_in
from ..memory_watch import MemoryWatch
from ..module_params import Unrecorded
from ..settings import TrainingSettings
from ..step_trace import StepTrace, trace_step

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["ChannelsLast"]

LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

KNOWN_MAX = 1024
"""So many shapes of batches are remembered of a module."""

BYTES_GROWTH = 1.1
"""By this factor at most may the forward pass make more bytes: instance norm, which has no kernel for the
layout, copies every image, and takes 40 % longer."""

_known: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], bool]] = WeakKeyDictionary()
_without: WeakSet[nn.Module] = WeakSet()
"""Modules that were seen to have nothing to lay out."""


class ChannelsLast:
    """How the tensors of one training lie in memory, while it is entered.

    Without weights, everything stays as it is.
    """

    def __init__(self, weights: Sequence[nn.Parameter] = ()) -> None:
        self._weights = weights
        self._kept: list[torch.Tensor] = []

    @classmethod
    def of(
        cls, module: nn.Module, data: Data, settings: TrainingSettings, loss: LossOf
    ) -> ChannelsLast:
        """Return the layout for a training in fp32 on the CPU, by torch's own means alone.

        Guarantees: it depends on the module's structure and the shapes of the data, not on values, so
            that a training that is repeated, here or elsewhere, has the same.
        Raises:
            DataError: the data are not what the trainer takes, as it would say.
        """
        if module in _without:
            return cls()
        weights = _weights_of(module)
        if not weights:
            _without.add(module)
        pooled = in_pool(data) if weights else None
        if pooled is None or not isinstance(loss, Hashable):
            return cls()
        count = samples_in(data)
        (inputs, targets), rows = pooled
        sizes = {min(settings.batch_size, count), count % settings.batch_size} - {0}
        if not sizes or inputs.device.type != "cpu" or targets.device.type != "cpu":
            return cls()
        first = slice(0, max(sizes)) if rows is None else rows[: max(sizes)]
        batch = inputs[first], targets[first]
        kinds = [(each.shape[1:], each.dtype) for each in batch]
        module.train()
        known = _known.setdefault(module, {})
        for size in sorted(sizes):
            key = (size, *kinds, loss)
            if key not in known:
                found = _is_proven(module, weights, (batch[0][:size], batch[1][:size]), loss)
                if found is None:
                    return cls()
                if len(known) >= KNOWN_MAX:
                    known.clear()
                known[key] = found
            if not known[key]:
                return cls()
        return cls(weights)

    def __enter__(self) -> None:
        if not self._weights:
            return
        with Unrecorded():
            self._kept = [each.data for each in self._weights]
            for each in self._weights:
                each.data = _laid(each.data)

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Lay the weights as they were, with their present values, where they were."""
        kept, self._kept = self._kept, []
        if not kept:
            return
        with Unrecorded():
            for param, place in zip(self._weights, kept, strict=True):
                place.copy_(param.data)
                param.data = place

    def inputs(self, batch: torch.Tensor) -> torch.Tensor:
        """Return a batch as the module is to get it."""
        return _laid(batch) if self._kept and batch.ndim == 4 else batch

    def outputs(self, made: torch.Tensor) -> torch.Tensor:
        """Return what the module gave as losses and metrics are to get it."""
        return made.contiguous() if self._kept else made


def _laid(images: torch.Tensor) -> torch.Tensor:
    """Return them with the channels last; `contiguous` would leave images of one channel alone."""
    return images.to(memory_format=torch.channels_last)


def _weights_of(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of a module's convolutions of images, none if one of them is not fp32."""
    kinds = nn.Conv2d, nn.ConvTranspose2d
    layers = [each for each in module.modules() if isinstance(each, kinds)]
    found = [each._parameters.get("weight") for each in layers]  # not one that is computed
    weights = [each for each in dict.fromkeys(found) if each is not None]
    plain = all(each.dtype == torch.float32 and each.is_contiguous() for each in weights)
    return weights if plain and all(each.device.type == "cpu" for each in weights) else []


def _is_proven(
    module: nn.Module,
    weights: Sequence[nn.Parameter],
    batch: Batch,
    loss: LossOf,
) -> bool | None:
    """Return whether a module's step is the same but for rounding with the channels last, and saves time;
    None if it fails on these data anyway, as its training will say."""
    try:
        plain = _trace(module, (), *batch, loss)
    except DataError:  # what the trace refuses, of every client
        return False
    except Exception:  # whatever it is: the module's code, or the loss's
        return None
    try:
        laid = _trace(module, weights, *batch, loss)
    except Exception:  # whatever it is: it comes from the layout
        return False
    if plain is None or laid is None or not _is_alike(plain, laid):
        return False
    return laid.bytes <= BYTES_GROWTH * plain.bytes


def _is_alike(plain: StepTrace, laid: StepTrace) -> bool:
    outputs = [(each.outputs.shape, each.outputs.dtype) for each in (plain, laid)]
    return plain.draws == laid.draws and plain.unused == laid.unused and outputs[0] == outputs[1]


def _trace(
    module: nn.Module,
    weights: Sequence[nn.Parameter],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: LossOf,
) -> StepTrace | None:
    """Trace a step with these weights laid out, and the inputs, if there are any; None if anything in it
    could depend on memory."""
    chosen = {id(each) for each in weights}
    params: Mapping[str, torch.Tensor] = {
        name: _laid(each.data) if id(each) in chosen else each.data
        for name, each in module.named_parameters()
    }
    frozen = {name for name, each in module.named_parameters() if not each.requires_grad}
    trained = {name: each for name, each in params.items() if name not in frozen}
    others = {name: params[name] for name in frozen} | dict(module.named_buffers())
    begun = _laid(inputs) if chosen and inputs.ndim == 4 else inputs
    watch, wanted = MemoryWatch(), targets.clone()  # a loss may change them

    def losses_of(outputs: torch.Tensor) -> torch.Tensor:
        losses = loss(outputs.contiguous() if chosen else outputs, wanted)
        watch.end_forward(losses)
        return losses

    trace = trace_step(module, trained, others, begun, losses_of, watched=watch)
    return None if watch.found else trace
