"""A rank beside the training process: `python -m meadow.training.local.rank --fd N [--app DIR]`.

It loads the app and the owner's data as rank 0 does, and computes its part of every round. It ends
when rank 0 is gone, or after an exception, which it first reports to rank 0.
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
from torch._C._distributed_c10d import Store

from ...apps.folder import App
from ...errors import AppError, DataError, MeadowError
from ...machine.process_limits import keep_freed_memory
from ...privacy.dp.mechanisms.noise import generator_from
from ...task import Site, Task
from ..algorithms.algorithms import LocalAlgorithm
from ..algorithms.client_half import client_half
from ..algorithms.corrections import Corrections
from ..loop.dp_sgd import train_dp_sgd
from ..loop.trainer import train
from ..micro_batch import MicroBatch, ran_out_of_memory
from ..parallel.across import join_store, listen
from ..parallel.divided import Divided, send
from ..parallel.evaluation import evaluate_together
from ..parallel.instructions import (
    READY,
    Meeting,
    RankStart,
    RoundInstruction,
    receive_message,
    send_message,
)
from ..parallel.parallelism import Parallelism
from ..parallel.rendezvous import file_store, is_lost_rank, join
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
    parser.add_argument(
        "--app", help="where the app is on this machine, if not where rank 0 has it"
    )
    given = parser.parse_args()
    connection = Connection(given.fd)
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    app = None
    try:
        start = RankStart.from_json(messages.get())
        app = App.load(given.app or start.app_dir, environ={})
        if app.sha256 != start.sha256:
            raise AppError(f"{app.folder} was changed since the agent looked at it")
        task = app.load_task()
        port = str(listen(start.address)) if start.address else ""
        send_message(connection, {"kind": READY, "text": port})
        store = _store(start, messages)
        parallelism = join(start.plan, start.rank, store, stages=task.stages)
        member = _Member(task, start, parallelism)
        while True:
            member.obey(RoundInstruction.from_json(messages.get()))
    except BaseException as error:
        traceback.print_exc()
        text = app.explain(error) if app and not isinstance(error, MeadowError) else str(error)
        send_message(connection, {"kind": _kind(error), "text": text})
        os._exit(FAILED)  # not through torch, which would wait for the others


def _store(start: RankStart, messages: queue.SimpleQueue[dict[str, Any]]) -> Store:
    """Return what the ranks meet by."""
    plan = start.plan
    if not start.address:
        return file_store(Path(start.rendezvous), plan.ranks)
    there = Meeting(**messages.get())
    return join_store(there.address, there.port, plan.ranks, timeout_s=plan.timeout_s)


class _Member:
    """One rank's task, module and data."""

    def __init__(self, task: Task, start: RankStart, parallelism: Parallelism) -> None:
        self._task = task
        self._parallelism = parallelism
        self._device = start.plan.devices[start.rank]
        self._use = start.use
        device = "cpu" if start.plan.sharded else self._device
        self._module = WarmModule(task, device, start.use.prepare)
        self._data: tuple[Site, SiteData] | None = None

    def obey(self, instruction: RoundInstruction) -> None:
        if self._data is None or self._data[0] != instruction.site:
            self._data = instruction.site, SiteData(self._task, instruction.site, self._device)
        module, data = self._module.fresh(seed=instruction.settings.seed), self._data[1].loaded()
        if not instruction.evaluate:
            self._train(instruction, module, data.train)
            return
        asked = data.train if instruction.evaluate == "train" else data.test
        if asked is None:
            raise DataError(
                "this process has no test data, and the first one has; client_data must give the "
                "same data in every process"
            )
        size = instruction.settings.batch_size
        task, device = self._task, self._device
        evaluate_together(
            task, module, asked, batch_size=size, device=device, parallelism=self._parallelism
        )

    def _train(self, instruction: RoundInstruction, module: torch.nn.Module, data: Data) -> None:
        if instruction.dp_sgd is not None:
            assert isinstance(self._parallelism, Divided)
            train_dp_sgd(
                self._task,
                module,
                data,
                instruction.settings,
                instruction.dp_sgd,
                client=instruction.client,
                device=self._device,
                sampling=generator_from(bytes.fromhex(instruction.sampling)),
                parallelism=self._parallelism,
            )
            return
        session = None
        if instruction.settings.algorithm != "plain":
            half = client_half(instruction.settings, self._task)
            assert isinstance(half, LocalAlgorithm)  # rank 0 refuses others
            session = Corrections.empty(half, module)
            send(session.tensors())
        train(
            self._task,
            module,
            data,
            instruction.settings,
            client=instruction.client,
            device=self._device,
            session=session,
            parallelism=self._parallelism,
            use=self._use,
            micro_batch=MicroBatch(instruction.examples_max),
            saves=instruction.saves,
            resume_at=instruction.resume_at,
        )


def _listen(connection: Connection, messages: queue.SimpleQueue[dict[str, Any]]) -> None:
    try:
        while True:
            messages.put(receive_message(connection))
    except (EOFError, OSError):
        os._exit(RANK_0_GONE)


def _kind(error: BaseException) -> str:
    if ran_out_of_memory(error):
        return "memory"
    return "lost" if is_lost_rank(error) else "app"


if __name__ == "__main__":
    main()
