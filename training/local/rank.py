"""A rank beside the training process: `python -m meadow.training.local.rank --fd N`.

It loads the app and the owner's data as rank 0 does, and computes its part of every round. It ends
when rank 0 is gone, and after any exception, which it tells before.
"""

from __future__ import annotations

import argparse
import os
import queue
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...apps.folder import App
from ...errors import AppError, DataError, MeadowError
from ...machine.process_limits import keep_freed_memory
from ...privacy.dp.mechanisms.noise import generator_from
from ...task import Site, Task
from ..algorithms.algorithms import CORRECTED, local_algorithm
from ..algorithms.corrections import Corrections
from ..loop.record_training import train_records
from ..loop.trainer import train
from ..micro_batch import MicroBatch, ran_out_of_memory
from ..parallel.divided import Divided, send
from ..parallel.evaluation import evaluate_together
from ..parallel.form import Parallelism
from ..parallel.meeting import is_lost_rank, join
from ..parallel.orders import READY, RankStart, RoundOrder, hear, tell
from ..site_data import SiteData
from ..warm_module import WarmModule

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["main"]

RANK_0_GONE = 70
FAILED = 1


def main() -> None:
    """Serve rank 0 until it is gone."""
    keep_freed_memory()
    parser = argparse.ArgumentParser(prog="meadow.training.local.rank")
    parser.add_argument("--fd", type=int, required=True)
    connection = Connection(parser.parse_args().fd)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    app = None
    try:
        start = RankStart.from_json(orders.get())
        app = App.load(start.app_dir, environ={})
        if app.sha256 != start.sha256:
            raise AppError(f"{start.app_dir} was changed since the agent looked at it")
        task = app.load_task()
        tell(connection, {"kind": READY, "text": ""})
        place = Path(start.meeting_place)
        form = join(start.plan, start.rank, place, stages=task.stages)
        member = _Member(task, start, form)
        while True:
            member.obey(RoundOrder.from_json(orders.get()))
    except BaseException as error:
        traceback.print_exc()
        text = app.explain(error) if app and not isinstance(error, MeadowError) else str(error)
        tell(connection, {"kind": _kind(error), "text": text})
        os._exit(FAILED)  # not through torch, which would wait for the others


class _Member:
    """One rank's task, module and data."""

    def __init__(self, task: Task, start: RankStart, form: Parallelism) -> None:
        self._task = task
        self._form = form
        self._device = start.plan.devices[start.rank]
        self._use = start.use
        device = "cpu" if start.plan.sharded else self._device
        self._module = WarmModule(task, device, start.use.prepare)
        self._data: tuple[Site, SiteData] | None = None

    def obey(self, order: RoundOrder) -> None:
        if self._data is None or self._data[0] != order.site:
            self._data = order.site, SiteData(self._task, order.site, self._device)
        module, data = self._module.fresh(seed=order.settings.seed), self._data[1].loaded()
        if not order.evaluate:
            self._train(order, module, data.train)
            return
        asked = data.train if order.evaluate == "train" else data.test
        if asked is None:
            raise DataError(
                "this process has no test data, and the first one has; client_data must give the "
                "same data in every process"
            )
        size = order.settings.batch_size
        task, device = self._task, self._device
        evaluate_together(task, module, asked, batch_size=size, device=device, form=self._form)

    def _train(self, order: RoundOrder, module: torch.nn.Module, data: Data) -> None:
        if order.records is not None:
            assert isinstance(self._form, Divided)
            train_records(
                self._task,
                module,
                data,
                order.settings,
                order.records,
                client=order.client,
                device=self._device,
                coins=generator_from(bytes.fromhex(order.coins)),
                form=self._form,
            )
            return
        session = None
        if order.settings.algorithm in CORRECTED:
            session = Corrections.empty(local_algorithm(order.settings), module)
            send(session.tensors())
        train(
            self._task,
            module,
            data,
            order.settings,
            client=order.client,
            device=self._device,
            session=session,
            form=self._form,
            use=self._use,
            micro_batch=MicroBatch(order.examples_max),
            saves=order.saves,
            resume_at=order.resume_at,
        )


def _listen(connection: Connection, orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    try:
        while True:
            orders.put(hear(connection))
    except (EOFError, OSError):
        os._exit(RANK_0_GONE)


def _kind(error: BaseException) -> str:
    if ran_out_of_memory(error):
        return "memory"
    return "lost" if is_lost_rank(error) else "app"


if __name__ == "__main__":
    main()
