"""Trains a module on one site's data: some epochs from the params that the server sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import torch

from ...errors import DataError, NothingLearnedError
from ...randomness.seeded import seeded
from ...randomness.seeds import derive, spread_one
from ..batches import Batch, batches_of, first_order, samples_in
from ..device_use import DeviceUse
from ..evaluation import ExampleMeans
from ..micro_batch import MicroBatch, ran_out_of_memory
from ..module_layout import begin_training, layout_of
from ..objectives import proximal
from ..parallel.parallelism import Alone, Parallelism
from ..parallel.sharded_tensors import local_of
from ..settings import TrainingSettings
from ..step_timer import StepTimer, Unwatched
from .optimizers import Slots, local_optimizer
from .unfinished import Place, Unfinished

if TYPE_CHECKING:
    from ...task import Data, Task
    from ..mid_epoch import MidEpoch

__all__ = ["Draws", "Session", "draws_of", "train"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_HALF = frozenset(_AUTOCAST.values())


class Session(Protocol):
    """What an algorithm does in a client's training.

    Attributes:
        slots: what the optimizer begins with; None: with new ones.
        has_loss: whether `losses` is there, and is followed in the place of the task's loss.
    """

    slots: Slots | None
    has_loss: bool

    def losses(
        self,
        inputs: torch.Tensor,
        outputs: torch.Tensor,
        targets: torch.Tensor,
        task_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Return each example's loss, after the module's forward pass."""

    def correct(self) -> None:
        """Correct the gradients of the step that is about to be made."""


def train(
    task: Task,
    module: torch.nn.Module,
    data: Data,
    settings: TrainingSettings,
    *,
    client: int,
    device: str,
    session: Session | None = None,
    parallelism: Parallelism | None = None,
    use: DeviceUse | None = None,
    timer: StepTimer | None = None,
    micro_batch: MicroBatch | None = None,
    saves: MidEpoch | None = None,
    resume_at: int = -1,
    draws: Draws | None = None,
) -> tuple[int, dict[str, float]]:
    """Train `module` in place; returns the number of samples seen in an epoch, and the means of
    "loss" and the task's metrics over all examples, as they were before each step.

    `session` is the algorithm's part in the steps, if it has one; it is not saved. With `saves` the
    round is saved every `saves.every_steps` steps; `resume_at` is the saved step to continue from.
    `draws` is what `draws_of` gives for these settings and data, if that is known already.

    Guarantees: the same params, data, settings and client give the same bits in any process
        that has as many threads and the same kind of device, resumed or not; no global generator
        is left changed. On several ranks the params are those of one within rounding, unless the
        module draws random numbers.
    Raises:
        DataError: the data are empty or not what the task needs, or the loss is not finite.
    """
    parallelism = parallelism or Alone()
    if draws is None or parallelism.part:
        draws = draws_of(settings, client, data, part=parallelism.part)
    with seeded(draws.training, device, inside=draws.inside):
        pieces = micro_batch or MicroBatch()
        around = use or DeviceUse(), timer or Unwatched()
        local = _Local(task, module, settings, device, parallelism, *around, pieces, session)
        return local.run(data, draws, saves, resume_at)


class Draws(NamedTuple):
    """What a client's random numbers in a round follow from.

    Attributes:
        training: the seed of what the module and its loss draw.
        batches: the seed of the orders in which an epoch goes through the data.
        first: the order of the first epoch, (samples,); None where it is not known beforehand.
        inside: whether a `seeded` block is around this training and others.
    """

    training: int
    batches: int
    first: torch.Tensor | None
    inside: bool = False


def draws_of(settings: TrainingSettings, client: int, data: Data, *, part: int = 0) -> Draws:
    """Return a client's draws in a round; those of part 0 are what one process alone would draw."""
    own = (part,) if part else ()
    training = derive(settings.stream, settings.server_round, client, "training", *own)
    batches = batch_order_seed(settings, client)
    return Draws(training, batches, first_order(data, batches))


def batch_order_seed(settings: TrainingSettings, client: int) -> int:
    """Return the seed of a client's batches in a round."""
    return spread_one(_stream_of_batches(settings.stream, settings.server_round), client)


@lru_cache(maxsize=4)  # the clients of a round share it
def _stream_of_batches(stream: int, server_round: int) -> int:
    return derive(stream, server_round, "batches")


class _Local:
    """One client's training in one round."""

    def __init__(
        self,
        task: Task,
        module: torch.nn.Module,
        settings: TrainingSettings,
        device: str,
        parallelism: Parallelism,
        use: DeviceUse,
        timer: StepTimer,
        micro_batch: MicroBatch,
        session: Session | None,
    ) -> None:
        self._task = task
        self._settings = settings
        self._device = torch.device(device)
        self._parallelism = parallelism
        self._use = use
        self._timer = timer
        self._micro_batch = micro_batch
        begin_training(module)
        dtype = _AUTOCAST.get(settings.precision)
        self._casts = dtype is not None
        autocast = partial(timer.of, "forward") if dtype is None else partial(self._casting, dtype)
        module = parallelism.attach(module, autocast)
        self._params = [p for p in layout_of(module).params if p.requires_grad]
        near = self._params if settings.proximal_mu else ()
        self._starts = [local_of(param.detach()).clone() for param in near]
        self._session = session
        self._loss_of = session if session is not None and session.has_loss else None
        clips = settings.gradient_clip_norm > 0
        self._corrects = bool(self._starts) or session is not None or clips
        scaled = settings.precision == "fp16"
        self.scaler = torch.amp.GradScaler(self._device.type) if scaled else None
        slots = session.slots if session is not None else None
        self._optimizer = local_optimizer(self._params, settings, slots)
        self._means = ExampleMeans(task)
        self._module = module
        self._differentiate = timer.around("backward", parallelism.backward)
        self._optimize = timer.around("optimizer", self._descend)
        self.loss_of = timer.around("forward", self._losses)
        """Returns each example's loss; with `note` the examples count for loss and metrics."""

    def run(
        self, data: Data, draws: Draws, saves: MidEpoch | None, at: int
    ) -> tuple[int, dict[str, float]]:
        """Train for the configured epochs."""
        settings, parallelism = self._settings, self._parallelism
        sizes = _sizes(data, settings.batch_size, parallelism)
        place, means = Place(), {}
        unfinished: Unfinished | None = None
        if saves is not None:
            parts = self._module, self._optimizer, self.scaler, self._means
            unfinished = Unfinished(*parts, str(self._device))
            place = unfinished.resume(saves, at, parallelism) if at >= 0 else place
        while place.epoch < settings.epochs:
            batches = batches_of(
                data,
                settings.batch_size,
                seed=draws.batches,
                order=None if place.epoch else draws.first,
                epoch=place.epoch,
                skip=place.batches,
                share=parallelism.share if parallelism.parts > 1 else None,
                processes=self._use.loader_processes,
            )
            for group in _groups(batches, settings.accumulation_steps, self._timer):
                self._step(group, sizes[place.batches : place.batches + len(group)])
                place.batches += len(group)
                place.steps += 1
                if saves and unfinished and place.steps % saves.every_steps == 0:
                    unfinished.save(saves, place, parallelism)
            examples, *sums = parallelism.totals([self._means.examples, *self._means.sums()])
            means = {
                name: total / examples for name, total in zip(self._means.names, sums, strict=True)
            }
            if not math.isfinite(means["loss"]):
                raise NothingLearnedError(
                    f"the training loss is {means['loss']} in round "
                    f"{settings.server_round}, epoch {place.epoch + 1}; lower "
                    "training.learning_rate, set training.gradient_clip_norm, or look for "
                    "invalid values in the data"
                )
            place.begin_next_epoch(samples=int(examples))
        parallelism.collect()
        return place.samples, means

    def _step(self, group: list[Batch], sizes: Sequence[int]) -> None:
        """Make one optimizer step from the mean gradient over all examples of these batches."""
        sizes = sizes or [targets.shape[0] for _, targets in group]  # len() is slower
        mark = self._means.mark()
        while True:
            try:
                self._backward(group, sizes)
                break
            except Exception as error:
                if not ran_out_of_memory(error) or self._parallelism.ranks > 1:
                    raise  # ranks that wait for this one are started again
            self._micro_batch.halve(max(sizes))
            self._means.back_to(mark)
            self._optimizer.zero_grad()
        self._optimize()

    def _descend(self) -> None:
        """Make a step from the gradients that are there."""
        if self.scaler:
            optimizer = cast(torch.optim.Optimizer, self._optimizer)  # as far as a scaler uses it
            self.scaler.unscale_(optimizer)
        if self._corrects:
            self._correct()
        if self.scaler:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.zero_grad()

    def _backward(self, group: list[Batch], sizes: Sequence[int]) -> None:
        """Add up the gradients of the mean loss over all examples, on all ranks."""
        examples, parallelism = sum(sizes), self._parallelism
        place, device = self._use.place, self._device
        for index, (batch, size) in enumerate(zip(group, sizes, strict=True)):
            mine, most = parallelism.rows(size), -(-size // parallelism.parts)
            pieces = self._micro_batch.pieces(batch, rows=mine, most=most)
            for number, (inputs, targets, live) in enumerate(pieces, 1):
                inputs, targets = place((inputs, targets), device)
                last = number == len(pieces) and index == len(group) - 1
                loss = _PieceLoss(self, examples, live, inputs)
                self._differentiate(inputs, targets, loss, live=live, last=last)

    def _losses(
        self, inputs: torch.Tensor, outputs: torch.Tensor, targets: torch.Tensor, *, note: bool
    ) -> torch.Tensor:
        if self._casts and outputs.dtype in _HALF:
            outputs = outputs.float()
        if self._loss_of is None:
            losses = self._task.loss(outputs, targets)
        else:
            losses = self._loss_of.losses(inputs, outputs, targets, self._task.loss)
        if note:
            self._means.add(outputs, targets, losses)
        return losses

    @contextmanager
    def _casting(self, dtype: torch.dtype) -> Iterator[None]:
        """What the forward pass runs in, of a precision that is not float32's."""
        with self._timer.of("forward"), torch.autocast(self._device.type, dtype):
            yield

    def _correct(self) -> None:
        """Apply the algorithm's local objective, then clip."""
        settings = self._settings
        for param, start in zip(self._params, self._starts, strict=False):
            if param.grad is not None:
                here = local_of(param.grad), local_of(param.detach())
                here[0].copy_(proximal(*here, start, mu=settings.proximal_mu))
        if self._session is not None:
            self._session.correct()
        if settings.gradient_clip_norm:
            self._parallelism.clip(self._params, settings.gradient_clip_norm)


class _PieceLoss:
    """What a piece of a batch adds to the loss whose gradient makes the step.

    That is the mean over the step's examples; a piece that does not count adds nothing.
    """

    __slots__ = ("_examples", "_inputs", "_live", "_local")

    def __init__(self, local: _Local, examples: int, live: bool, inputs: torch.Tensor) -> None:
        self._local = local
        self._examples = examples
        self._live = live
        self._inputs = inputs

    def __call__(
        self, outputs: torch.Tensor, targets: torch.Tensor, *, note: bool = True
    ) -> torch.Tensor:
        """As `LossOf`."""
        losses = self._local.loss_of(self._inputs, outputs, targets, note=note and self._live)
        if not self._live:
            added = losses.sum() * 0
        elif losses.shape[0] == self._examples:
            added = losses.mean()  # the same gradient as below, in half the time
        else:
            added = losses.sum() / self._examples
        scaler = self._local.scaler
        return scaler.scale(added) if scaler else added

    def backward(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """As `LossOf.backward`; no mean is computed: the examples begin with the gradient that it
        would give them."""
        if self._local.scaler or not self._live:
            torch.autograd.backward(self(outputs, targets))
            return
        losses = self._local.loss_of(self._inputs, outputs, targets, note=True)
        share = _share_of_mean(losses.shape[0], self._examples, losses.dtype, losses.device)
        # What torch.autograd.backward(losses, share) ends in. Before, that imports SymPy, 200 ms in each
        # process, and its checks take a fourth of a small model's step.
        torch.autograd.Variable._execution_engine.run_backward(
            (losses,), (share,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )


@lru_cache(maxsize=16)
def _share_of_mean(
    count: int, examples: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the gradient of `count` terms of a mean over so many examples: (count,), as torch's own
    backward pass makes it."""
    return torch.ones((), dtype=dtype, device=device).expand(count) / examples


def _sizes(data: Data, batch_size: int, parallelism: Parallelism) -> list[int]:
    """Return the sizes of an epoch's batches, over all ranks; nothing where one rank sees them.

    Raises:
        DataError: the ranks do not have the same number of samples.
    """
    if parallelism.parts == 1:
        return []
    count = samples_in(data)
    if parallelism.totals([count]) != [count * parallelism.ranks]:
        raise DataError(
            f"process {parallelism.rank} of {parallelism.ranks} has {count} samples, others another number; "
            "client_data must give the same data in every process"
        )
    return [min(batch_size, count - at) for at in range(0, count, batch_size)]


def _groups(batches: Iterator[Batch], size: int, timer: StepTimer) -> Iterator[list[Batch]]:
    """Return lists of `size` batches, the last one perhaps shorter."""
    return iter(timer.around("data", lambda: list(islice(batches, size))), [])
