"""How many examples go through a module at once: fewer, once memory has run out."""

from __future__ import annotations

import torch

from ..errors import DataError
from .batches import Batch

__all__ = ["MicroBatch", "Piece", "ran_out_of_memory"]

Piece = tuple[torch.Tensor, torch.Tensor, bool]
"""Inputs, targets, and whether they count."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception means that a device's memory was not enough."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # the CPU's


class MicroBatch:
    """A bound on the examples of one pass, halved when memory runs out and kept for later rounds.

    Batches are then computed in pieces whose gradients are added up, so that a step is made of
    as many examples as the run asks for.

    Attributes:
        examples_max: the bound; None as long as memory was enough.
    """

    def __init__(self, examples_max: int | None = None) -> None:
        self.examples_max = examples_max

    def halve(self, examples: int) -> None:
        """Bound pieces by half of `examples`, a number that did not fit into memory.

        Raises:
            DataError: one example is too many already.
        """
        tried = min(examples, self.examples_max or examples)
        if tried <= 1:
            raise DataError(
                "memory does not hold the training of a single example; use a smaller model, or "
                "a device with more memory"
            )
        self.examples_max = tried // 2

    def pieces(self, batch: Batch, *, rows: int, most: int) -> list[Piece]:
        """Return a rank's part of a batch in pieces of about the same size.

        `rows` of its examples count: all, or none where the batch has fewer examples than there
        are ranks. `most` is the largest part that a rank has: all ranks make as many pieces, of
        one example that does not count where there is nothing.
        """
        inputs, targets = batch
        count = -(-most // self.examples_max) if self.examples_max else 1
        if count == 1:
            return [(inputs, targets, rows > 0)]
        made = []
        for index in range(count):
            some = slice(rows * index // count, rows * (index + 1) // count)
            live = some.stop > some.start
            some = some if live else slice(0, 1)
            made.append((inputs[some], targets[some], live))
        return made
