"""DP-SGD on one site's data: what leaves is private for each of its examples.

Opacus computes the gradient of every example in one backward pass. Sampling bits and noise
come from the operating system's entropy, as a run's seed is not secret. Ranks that train together
draw the same ones, and each computes the gradients of a part of the examples.

Source: Abadi et al., "Deep learning with differential privacy" (2016), algorithm 1; Yousefpour et
al., "Opacus: user-friendly differential privacy library in PyTorch" (2021).
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import DataError
from ...machine.accelerators import widest_float
from ...privacy.dp.example_level import ExampleTerms
from ...privacy.dp.mechanisms.noise import generator_of
from ...randomness.entropy import system_entropy
from ...randomness.seeded import seeded
from ...randomness.seeds import derive
from ..batches import Batch, chosen_from, samples_in
from ..example_separation import (
    EXAMINED,
    check_separation,
    check_unchanged,
    example_losses,
    tensors_held,
)
from ..objectives import proximal
from ..parallel.divided import Divided, send_params
from ..parallel.parallelism import rows_of
from ..settings import TrainingSettings
from .optimizers import descend, new_slots

if TYPE_CHECKING:
    from ...task import Data, Task

__all__ = ["clipped_sums", "draw_examples", "step_noise", "train_dp_sgd"]

GRADIENT_BYTES = 256 << 20
"""What the gradients of single examples may take at once."""
BLOCK_BYTES = 4 << 20
"""What gradients take at once in float64: it stays in a processor's cache."""
GRADIENT_ROUNDING = 1e-2
"""By how much of its length a gradient may differ when it is computed in another way."""


def train_dp_sgd(
    task: Task,
    module: torch.nn.Module,
    data: Data,
    settings: TrainingSettings,
    terms: ExampleTerms,
    *,
    client: int,
    device: str,
    sampling: np.random.Generator | None = None,
    parallelism: Divided | None = None,
) -> int:
    """Train `module` in place; returns the number of examples, and nothing else about them.

    `sampling` is the source of sampling bits and noise, the same on all ranks; None: a new one.
    `parallelism` is how ranks divide the examples; None: this process has them all.

    Guarantees: the module's params are private by `terms.event(settings.epochs)`.
    Edge cases: an example whose gradient is not finite adds nothing; a batch without examples is a
        step of noise.
    Raises:
        DataError: there are no data, an example influences another's loss, the module changes
            its own tensors, or Opacus is missing.
    """
    count = samples_in(data)
    if not count:
        raise DataError("there are no samples; a site's data must not be empty")
    part, parts = 0, 1
    if parallelism is not None:
        part, parts = parallelism.part, parallelism.parts
        send_params(module)
    params = [param for param in module.parameters() if param.requires_grad]
    starts = [param.detach().clone() for param in params] if settings.proximal_mu else []
    slots, sampling = new_slots(params, settings), sampling or generator_of(system_entropy)
    size = sum(param.numel() * param.element_size() for param in params)
    rows = max(1, GRADIENT_BYTES // max(1, size))
    own = (part,) if part else ()  # as `trainer.train` has it
    stream = derive(settings.seed, settings.server_round, client, "training", *own)
    held, tried, plain = tensors_held(module), _some_of(data, device), copy.deepcopy(module)
    check_separation(task, plain.train(), *tried)
    with seeded(stream, device), _example_gradients(module.train()) as hooked:
        _check_gradients(task, plain, hooked, tried)
        for step in range(1, terms.steps(settings.epochs) + 1):
            sums = [torch.zeros_like(each, dtype=widest_float(each.device)) for each in params]
            places = draw_examples(count, terms.rate, sampling)
            mine = rows_of(len(places), part, parts)
            for start in range(mine.start, mine.stop, rows):
                some = places[start : min(start + rows, mine.stop)]
                batch = chosen_from(data, torch.from_numpy(some))
                _add_clipped(task, hooked, params, batch, terms.clip_norm, sums)
            if parallelism is not None:
                parallelism.add_up(sums)
            check_unchanged(module, held)
            gradients = [
                ((total + step_noise(total, terms, sampling)) / (terms.rate * count)).to(each.dtype)
                for total, each in zip(sums, params, strict=True)
            ]
            for place, start_of in enumerate(starts):
                here = params[place].detach()
                gradients[place] = proximal(
                    gradients[place], here, start_of, mu=settings.proximal_mu
                )
            descend(params, gradients, slots, settings, step=step)
            held = tensors_held(module, held)
    check_separation(task, module, *tried)  # a module may leak only after some steps
    return count


def draw_examples(count: int, rate: float, sampling: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return which examples are in a step's batch: each independently, with probability `rate`."""
    return np.flatnonzero(sampling.random(count) < rate)


def step_noise(
    like: torch.Tensor, terms: ExampleTerms, sampling: np.random.Generator
) -> torch.Tensor:
    """Return a step's noise on a sum of clipped gradients."""
    drawn = torch.from_numpy(sampling.standard_normal(tuple(like.shape), np.float32))
    return drawn.to(like.device, like.dtype).mul_(terms.noise_multiplier * terms.clip_norm)


def _add_clipped(
    task: Task,
    module: Any,
    params: list[torch.nn.Parameter],
    batch: Batch,
    clip_norm: float,
    sums: list[torch.Tensor],
) -> None:
    """Add the clipped gradients of a batch's examples to the sums."""
    device = sums[0].device
    inputs, targets = batch[0].to(device), batch[1].to(device)
    single = _gradients_of_examples(task, module, params, inputs, targets)
    known = [(total, each) for total, each in zip(sums, single, strict=True) if each is not None]
    if known:
        rows = [each.flatten(1) for _, each in known]
        for (total, _), added in zip(known, clipped_sums(rows, clip_norm), strict=True):
            total += added.view_as(total)


def clipped_sums(
    gradients: Sequence[torch.Tensor], clip_norm: float, counted: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Return the sums of examples' clipped gradients, of each tensor; those not `counted` add nothing.

    Shapes: gradients (..., examples, values), `counted` (..., examples), sums (..., values).

    Guarantees: an example moves the sums by `clip_norm` at most, up to the rounding of float64, whatever
        the gradients' dtype, where the device has float64.
    Edge cases: a gradient that is not finite adds nothing.
    """
    wide = widest_float(gradients[0].device)
    squares = torch.zeros(gradients[0].shape[:-1], dtype=wide, device=gradients[0].device)
    for each in gradients:
        for block in _blocks(each):
            squares += torch.linalg.vector_norm(block.to(wide), dim=-1) ** 2
    finite = squares.isfinite()
    kept = finite if counted is None else finite & counted
    factors = torch.where(kept, (clip_norm / squares.sqrt()).clamp(max=1.0), 0.0).unsqueeze(-2)
    if not bool(finite.all()):
        gradients = [each.nan_to_num(0.0, 0.0, 0.0) for each in gradients]
    return [
        torch.cat([factors @ block.to(wide) for block in _blocks(each)], dim=-1).squeeze(-2)
        for each in gradients
    ]


def _blocks(gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a few columns at a time."""
    rows = gradients.numel() // max(1, gradients.shape[-1])
    width = max(1, BLOCK_BYTES // (8 * max(1, rows)))
    return torch.split(gradients, width, dim=-1)


def _gradients_of_examples(
    task: Task,
    module: Any,
    params: list[torch.nn.Parameter],
    inputs: torch.Tensor,
    targets: torch.Tensor,
) -> list[torch.Tensor | None]:
    """Return the gradients of every example's loss, by param; None of one without any."""
    losses = example_losses(task, module, inputs, targets)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    single = [getattr(param, "grad_sample", None) for param in params]
    for param in params:
        param.grad_sample = None  # type: ignore[attr-defined]
        param.grad = None
    return single


def _some_of(data: Data, device: str) -> Batch:
    """Return examples to try the model with: as many of the data, the last again where they are few."""
    count = samples_in(data)
    places = torch.linspace(0, count - 1, min(count, EXAMINED)).long()
    chosen = chosen_from(data, places)
    inputs, targets = (part.to(device).nan_to_num(0.0, 0.0, 0.0) for part in chosen)
    rows = torch.arange(EXAMINED, device=inputs.device).clamp(max=len(targets) - 1)
    return inputs[rows], targets[rows]


def _check_gradients(task: Task, plain: torch.nn.Module, hooked: Any, some: Batch) -> None:
    """Check an example's gradient by Opacus against the one of `plain`, the same module without it.

    Raises:
        DataError: they differ.
    """
    own = [param for param in plain.parameters() if param.requires_grad]
    with seeded(0, str(some[0].device)):
        losses = example_losses(task, plain, *some)
    params = [param for param in hooked.parameters() if param.requires_grad]
    with seeded(0, str(some[0].device)):
        single = _gradients_of_examples(task, hooked, params, *some)
    for place in (0, EXAMINED - 1):
        alone = torch.autograd.grad(losses[place], own, retain_graph=True, allow_unused=True)
        found = [None if each is None else each[place] for each in single]
        if not _agree(found, alone):
            raise DataError(
                "the gradients of single examples of this model cannot be told apart: its layers "
                "must take the batch as the first dimension of what they compute with"
            )


def _agree(some: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor | None]) -> bool:
    """Say whether gradients are the same up to rounding; one that is missing is 0."""
    apart = size = 0.0
    for one, other in zip(some, others, strict=True):
        if one is None and other is None:
            continue
        one = torch.zeros_like(other) if one is None else one  # type: ignore[arg-type]
        other = torch.zeros_like(one) if other is None else other
        apart += float((one - other).to(widest_float(one.device)).square().sum())
        size += float(other.to(widest_float(other.device)).square().sum())
    return not math.isfinite(size) or apart <= GRADIENT_ROUNDING**2 * (size + 1e-12)


@contextmanager
def _example_gradients(module: torch.nn.Module) -> Iterator[Any]:
    """Let a backward pass leave every example's gradient in `grad_sample` of the params."""
    try:
        from opacus import GradSampleModule
        from opacus.validators import ModuleValidator
    except ImportError:
        raise DataError(
            "example-level privacy needs Opacus on the client: pip install 'meadow-fl[dp]'"
        ) from None
    if wrong := ModuleValidator.validate(module, strict=False):
        raise DataError(
            f"this model cannot be trained under example-level privacy: {wrong[0]}; "
            "use group or layer norm in the place of batch norm"
        )
    hooked = GradSampleModule(module, loss_reduction="sum")
    try:
        with warnings.catch_warnings():
            # its hooks look at outputs alone, and need no gradient of the inputs
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            yield hooked
    finally:
        hooked.to_standard_module()
