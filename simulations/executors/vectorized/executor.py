"""The vectorized executor: a cohort's models in one tensor, each layer one kernel for all.

It takes broadcasts of an app that is made from a `Task`. A cohort is cut into chunks that fit
into memory; what it trains adds up to one reply, or is one reply a client where somebody needs
every single update.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType

from ....errors import NOTHING_TO_EVALUATE, AgreementError, DataError
from ....flower.messages import metrics_record, record_dict
from ....machine.accelerators import free_bytes, is_accelerator, widest_float
from ....privacy.dp.example_level import ExampleTerms
from ....strategies.rounds.broadcast import Broadcast
from ....task import Task
from ....training.algorithms.algorithms import LocalAlgorithm
from ....training.algorithms.client_half import ClientHalf, client_half
from ....training.algorithms.personalization import Personalization
from ....training.algorithms.work_bench import LocalWork
from ....training.local.session import shared_in, without_auxiliary
from ....training.module_layout import begin_training
from ....training.settings import TrainingSettings
from ....training.warm_module import WarmModule
from ...population.clients import SimulatedClients
from ..contract import EventSink, Executor, error_reply
from ..site_data import SimulatedData
from .agreement import check_agreement
from .clipped_sums import require_exact_sums
from .cohort_data import CohortData, KnownCohort, Loaded
from .example_values import Trained
from .linear_descent import LinearDescent
from .linear_training import LinearModule, LinearModules, train_linear
from .stacked_dp_sgd import train_stacked_dp_sgd
from .stacked_evaluation import StackedEvaluation
from .stacked_module import StackedModule
from .stacked_replies import CohortReplies
from .stacked_session import StackedSession
from .stacked_training import train_stacked
from .step_threads import step_threads
from .step_trace import undisturbed

__all__ = ["VectorizedExecutor"]

CHUNK_BYTES = 1 << 30
"""What a chunk's params, gradients and activations may take on a CPU."""
GPU_SHARE = 4
"""On an accelerator a chunk may take one part in so many of the free memory."""
HELD_MAX = 8
"""So many numbers of rows have their own copy of a module without large weights."""
COPIES = 4
"""Params, gradients, their products, and what differentiation keeps: each this often."""


class VectorizedExecutor:
    """Trains and evaluates many clients at once; other messages go to `other`, one by one.

    Guarantees: the same messages give the same bits with the same number of threads. A client
        whose training fails is an error reply and changes nothing for the others.
    """

    name = "vectorized"

    def __init__(
        self,
        task: Task,
        clients: SimulatedClients,
        *,
        device: str,
        combine: bool,
        other: Executor,
        in_group: bool = False,
        verify: bool = False,
        sink: EventSink | None = None,
    ) -> None:
        """With `verify`, two clients of the first chunk are also trained alone, and compared.

        With `in_group` the cohorts are groups of a larger one, whose means somebody else adds up:
        they are not rounded, and evaluated clients reply one by one.
        """
        self.combines = combine
        self._in_group = in_group
        self._task = task
        self._device = torch.device(device)
        self._module = WarmModule(task, device)
        self._data = SimulatedData(task, clients)
        self._evaluation = StackedEvaluation(task, self._device)
        self._known = KnownCohort()
        self._clients = clients
        self._other = other
        self._verify = verify
        self._sink = sink or EventSink()
        self._stacked: dict[tuple[Any, ...], StackedModule] = {}
        self._linear: dict[StackedModule, LinearModules | None] = {}
        self._low_rank: dict[StackedModule, dict[int, StackedModule]] = {}
        self._told = False

    def close(self) -> None:
        """Give up the other executor too."""
        self._other.close()

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Run the clients; a broadcast of another kind goes to the other executor."""
        if isinstance(messages, Broadcast) and messages.message_type == MessageType.TRAIN:
            return self._train(messages)
        if isinstance(messages, Broadcast) and messages.message_type == MessageType.EVALUATE:
            return self._evaluate(messages)
        if isinstance(messages, Broadcast) and messages.message_type == MessageType.QUERY:
            return self._count(messages)
        return self._other.execute(messages)

    # ------------------------------------------------------------------ training

    def _train(self, order: Broadcast) -> Iterator[Message]:
        settings = TrainingSettings.of(cast(ConfigRecord, order.content["config"]))
        algorithm = client_half(settings, self._task)
        if (why := _one_by_one(settings, algorithm)) or not isinstance(algorithm, LocalAlgorithm):
            self._emit(DataError(why))
            yield from self._other.execute(order)
            return
        arrays = cast(ArrayRecord, order.content["arrays"])
        module = self._module.with_params(without_auxiliary(arrays, algorithm), seed=settings.seed)
        begin_training(module)  # a module's own `train` may set what was put back just now
        replies = self._replies_to(order, module, settings)
        loaded = self._known.find(order.clients)
        if loaded is None:
            loaded = []
            yield from self._load(order, replies, loaded)
            loaded.sort(key=lambda each: -each[1].train.count)
            if len(loaded) == len(order.clients):
                self._known.remember(order.clients, loaded)
        while loaded:
            chunk: Loaded = loaded
            try:
                stacked = self._stacked_module(module, loaded, settings, algorithm, arrays)
                rows = _rows_of(loaded, settings)
                held = self._kept_low_rank(stacked, replies, rows)
                chunk = loaded[: _even(len(loaded), self._chunk_size(held, settings, rows))]
                yield from self._train_chunk(chunk, stacked, held, algorithm, settings, replies)
            except AgreementError:
                raise
            except Exception as error:  # the task's code, or torch for want of a rule
                self._emit(error)
                failed = {client for client, _ in chunk}
                in_order = [client for client in order.clients if client in failed]
                yield from self._other.execute(order.to(in_order))
            loaded = loaded[len(chunk) :]
        yield from replies.finish()

    def _train_chunk(
        self,
        chunk: Loaded,
        stacked: StackedModule,
        held: StackedModule,
        algorithm: LocalAlgorithm,
        settings: TrainingSettings,
        replies: CohortReplies,
    ) -> Iterator[Message]:
        """Train some clients; what is mapped is the module `held`, perhaps without large weights."""
        clients = [client for client, _ in chunk]
        data = self._known.lay(chunk, device=self._device, epochs=settings.epochs)
        dp_sgd = ExampleTerms.of(replies.config)
        clips = replies.clipping is not None
        descent = LinearDescent.of(settings) if dp_sgd is None else None
        linear: LinearModule | None = None
        if descent is not None:
            linear = self._linear_module(stacked, data, settings, clips)
        if clips and self.combines:
            require_exact_sums(stacked)
        flops = (stacked if linear is None else linear).example_flops
        with step_threads(flops, data, settings):
            session: StackedSession | None = None
            trained: Trained | None = None
            if dp_sgd is not None:
                trained = train_stacked_dp_sgd(
                    self._task, stacked, data, settings, dp_sgd, clients=clients
                )
            elif linear is not None and descent is not None:
                trained = self._train_linear(linear, stacked, data, settings, descent, clients)
            if trained is None:
                with undisturbed(stacked.module, self._task.loss, self._device):
                    session, losses = self._session_of(chunk, stacked, algorithm, settings, replies)
                    trained = train_stacked(
                        self._task,
                        held,
                        data,
                        settings,
                        clients=clients,
                        session=session,
                        losses=losses,
                    )
            if self._verify and dp_sgd is None and not replies.noise_is_local:
                self._verify = False
                self._compare(stacked, trained, replies, clients, data.counts.tolist())
            if session is not None:
                session.keep(np.flatnonzero(np.isfinite(trained.means["loss"])).tolist())
            answers = replies.add(stacked, trained, clients, data.counts.tolist())
            if self.combines:  # it adds everything up now, and yields only what failed
                answers = iter(list(answers))
        yield from answers

    def _compare(
        self,
        stacked: StackedModule,
        trained: Trained,
        replies: CohortReplies,
        clients: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        """Compare the clients with the most and the fewest samples with themselves alone."""
        good = np.flatnonzero(np.isfinite(trained.means["loss"])).tolist()
        found = {
            clients[row]: replies.single(stacked, trained, row, clients[row], counts[row])
            for row in dict.fromkeys((*good[:1], *good[-1:]))
        }
        if found:
            check_agreement(replies.order, found, self._other, self._clients)

    def _train_linear(
        self,
        linear: LinearModule,
        stacked: StackedModule,
        data: CohortData,
        settings: TrainingSettings,
        descent: LinearDescent,
        clients: Sequence[int],
    ) -> Trained | None:
        """Train the chunk as linear layers; None where that raises: what vmap makes of it counts."""
        try:
            with undisturbed(stacked.module, self._task.loss, self._device):
                return train_linear(
                    self._task,
                    linear,
                    data,
                    settings,
                    descent,
                    clients=clients,
                    mixing=stacked.mixing_metrics,
                )
        except Exception:  # vmap raises it again, if it is the task's
            self._linear[stacked] = None
            return None

    def _session_of(
        self,
        chunk: Loaded,
        stacked: StackedModule,
        algorithm: LocalAlgorithm,
        settings: TrainingSettings,
        replies: CohortReplies,
    ) -> tuple[StackedSession | None, torch.Tensor | None]:
        """Return the algorithm's part of the round, and the losses before it, if it needs them."""
        if settings.algorithm == "plain":
            return None, None
        losses = None
        clients = [client for client, _ in chunk]
        session = StackedSession(algorithm, stacked, replies.arrays, clients, self._clients)
        if algorithm.needs_losses:
            _, means = self._evaluation.evaluate(
                stacked.module,
                [data.train for _, data in chunk],
                batch_size=settings.batch_size,
            )
            losses = torch.from_numpy(means["loss"]).to(self._device, widest_float(self._device))
        return session, losses

    def _stacked_module(
        self,
        module: torch.nn.Module,
        loaded: Loaded,
        settings: TrainingSettings,
        algorithm: LocalAlgorithm,
        arrays: ArrayRecord,
    ) -> StackedModule:
        """Return the module for this precision and loss; it is tried on some inputs when it is new."""
        chosen, shared = None, {}
        if algorithm.has_loss:
            chosen = algorithm
            shared = shared_in(arrays, algorithm, {}, self._device)
        named = (settings.algorithm, settings.algorithm_arguments) if chosen else ()
        key = (module, settings.precision, *named)
        if key not in self._stacked:
            some = CohortData.of([data.train for _, data in loaded[:3]], device=self._device)
            self._stacked[key] = StackedModule(
                self._task,
                module,
                some.probe(),
                precision=settings.precision,
                algorithm=chosen,
                shared=shared,
            )
        self._stacked[key].begin_round(chosen, shared)
        _refuse(self._stacked[key], settings)
        return self._stacked[key]

    def _linear_module(
        self, stacked: StackedModule, data: CohortData, settings: TrainingSettings, clips: bool
    ) -> LinearModule | None:
        """Return the module as linear layers, if that is all there is to train."""
        if settings.algorithm != "plain":
            return None
        if stacked not in self._linear:
            self._linear[stacked] = LinearModules.of(stacked)
        modules = self._linear[stacked]
        return None if modules is None else modules.choose(data, settings, norms=clips)

    def _kept_low_rank(
        self, stacked: StackedModule, replies: CohortReplies, rows: int
    ) -> StackedModule:
        """Return the module as it is held where large weights need not be made for each client."""
        settings = TrainingSettings.of(replies.config)
        private = replies.clipping is not None or ExampleTerms.of(replies.config) is not None
        if private or settings.algorithm != "plain" or LinearDescent.of(settings) is None:
            return stacked
        if stacked not in self._low_rank:
            self._low_rank[stacked] = {}
        known = self._low_rank[stacked]
        if rows not in known:
            if len(known) >= HELD_MAX:
                known.clear()
            known[rows] = stacked.keeping_low_rank(rows)
        return known[rows]

    def _chunk_size(self, stacked: StackedModule, settings: TrainingSettings, rows: int) -> int:
        """Return how many clients fit into memory at once."""
        held = [*stacked.trained.values(), *stacked.buffers.values()]
        params = sum(tensor.numel() * tensor.element_size() for tensor in held)
        for layer in stacked.low_rank.values():
            width = layer.in_features + layer.out_features
            params += rows * width * layer.weight.element_size()
        batch = settings.batch_size * settings.accumulation_steps * stacked.example_bytes
        free = free_bytes(self._device) if is_accelerator(self._device) else None
        room = CHUNK_BYTES if free is None else free // GPU_SHARE
        return max(1, room // (COPIES * (params + batch)))

    # ------------------------------------------------------------------ evaluation

    def _evaluate(self, order: Broadcast) -> Iterator[Message]:
        settings = TrainingSettings.of(cast(ConfigRecord, order.content["config"]))
        if why := _one_by_one(settings, client_half(settings, self._task)):
            self._emit(DataError(why))
            yield from self._other.execute(order)
            return
        arrays = cast(ArrayRecord, order.content["arrays"])
        module = self._module.with_params(arrays, seed=settings.seed)
        replies = self._replies_to(order, module, settings)
        loaded: Loaded = []
        yield from self._load(order, replies, loaded)
        tested = []
        for client, data in loaded:
            if data.test is None or not data.test.count:
                nothing = Error(NOTHING_TO_EVALUATE, f"site {client - 1} has no test data")
                yield Message(nothing, reply_to=replies.message_to(client))
            else:
                tested.append((client, data.test))
        if not tested:
            return
        clients = [client for client, _ in tested]
        try:
            counts, means = self._evaluation.evaluate(
                module, [data for _, data in tested], batch_size=settings.batch_size
            )
        except Exception as error:
            self._emit(error)
            yield from self._other.execute(order.to(clients))
            return
        yield from replies.measured(clients, counts, means)

    def _count(self, order: Broadcast) -> Iterator[Message]:
        """Say how many samples clients have, and keep the data for their training."""
        failed: list[int] = []
        for client in order.clients:
            try:
                data = self._data.of(client)
            except Exception:  # a task's code may raise anything
                failed.append(client)
                continue
            counts = {
                "num-examples": data.train.count,
                "num-test-examples": 0 if data.test is None else data.test.count,
            }
            (message,) = order.to([client])
            content = record_dict({"metrics": metrics_record(counts)})
            yield Message(content, reply_to=message)
        if failed:
            yield from self._other.execute(order.to(failed))

    # ------------------------------------------------------------------ both

    def _replies_to(
        self, order: Broadcast, module: torch.nn.Module, settings: TrainingSettings
    ) -> CohortReplies:
        return CohortReplies(
            order,
            module,
            settings,
            combine=self.combines,
            in_group=self._in_group,
            sink=self._sink,
        )

    def _load(self, order: Broadcast, replies: CohortReplies, loaded: Loaded) -> Iterator[Message]:
        """Load the cohort's data into `loaded`; yields the replies of those that fail."""
        for client in order.clients:
            try:
                loaded.append((client, self._data.of(client)))
            except Exception as error:  # a task's code may raise anything
                yield error_reply(replies.message_to(client), error, self._sink)

    def _emit(self, error: Exception) -> None:
        """Report, once a run, why clients are run one by one."""
        if not self._told:
            self._told = True
            self._sink.event("not_vectorized", {"reason": self._explained(error)})

    def _explained(self, error: Exception) -> str:
        """Say what happened, and in which module of the model."""
        names = {
            id(each): name for module, *_ in self._stacked for name, each in module.named_modules()
        }
        where = ""
        for frame, _ in traceback.walk_tb(error.__traceback__):
            layer = frame.f_locals.get("self")
            if isinstance(layer, torch.nn.Module) and names.get(id(layer)):
                where = f" (in the module {names[id(layer)]!r}, a {type(layer).__name__})"
        return f"{self._sink.explain(error)}{where}"


def _one_by_one(settings: TrainingSettings, half: ClientHalf) -> str:
    """Say why clients do not take training steps from the same params, where they do not."""
    if isinstance(half, Personalization):
        return f"under strategy {settings.algorithm!r} clients have params of their own"
    if isinstance(half, LocalWork):
        return f"under strategy {settings.algorithm!r} clients work one by one"
    if half.trains_itself:
        return f"under strategy {settings.algorithm!r} clients make their steps themselves"
    if settings.tuning_epochs:
        return "evaluation.tuning_epochs > 0 trains every client's params anew"
    return ""


def _even(clients: int, most: int) -> int:
    """Return the size of the first of as few chunks as need be, all of the same size up to one: a small
    last one would take nearly as long as a large one, and be recorded for itself."""
    return -(-clients // -(-clients // most))


def _rows_of(loaded: Loaded, settings: TrainingSettings) -> int:
    """Return how many rows the batches of a client have in a round, at most and with padding."""
    size = settings.batch_size * settings.accumulation_steps
    return settings.epochs * -(-loaded[0][1].train.count // size) * size


def _refuse(stacked: StackedModule, settings: TrainingSettings) -> None:
    """Raise where only the trainer for one client supports the settings."""
    if settings.precision == "fp16":
        raise DataError("training.precision fp16 scales the loss by what each client has seen")
    if settings.accumulation_steps > 1 and (not stacked.in_rows or stacked.mixing_metrics):
        raise DataError(
            "training.accumulation_steps > 1 with a model, a loss or a metric that is not known to "
            "look at each example alone"
        )
