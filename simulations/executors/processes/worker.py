"""The worker process: `python -m meadow.simulations.executors.processes.worker --fd N`.

It loads one app and runs groups of its clients until the process that started it is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ....errors import MeadowError
from ....machine.process_limits import allow_many_files, keep_freed_memory, use_large_pages
from .group_files import WorkerSettings
from .group_runner import GroupRunner

__all__ = ["main"]

PARENT_GONE = 70

Orders = queue.SimpleQueue[dict[str, Any]]


def main() -> None:
    """Serve the process at the other end of an inherited socket until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when it ends
    keep_freed_memory()
    use_large_pages()
    allow_many_files()
    parser = argparse.ArgumentParser(prog="meadow.simulations.executors.processes.worker")
    parser.add_argument("--fd", type=int, required=True)
    fd = parser.parse_args().fd
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    orders: Orders = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    try:
        runner = GroupRunner(WorkerSettings(**orders.get()))
    except Exception as error:  # an app may raise anything while it is imported
        _send(connection, {"problem": _sentence(error)})
        return
    _send(connection, {"ready": os.getpid()})
    while True:
        _send(connection, _run(runner, orders.get()))


def _listen(connection: Connection, orders: Orders) -> None:
    """Pass orders on; end the process, in the middle of its work, when its parent is gone."""
    while True:
        try:
            orders.put(json.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            _end()


def _end() -> None:
    if os.getpgrp() == os.getpid():  # with what the app has started
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(PARENT_GONE)


def _run(runner: GroupRunner, order: dict[str, str]) -> dict[str, str]:
    try:
        runner.run(Path(order["shared"]), Path(order["inbox"]), Path(order["outbox"]))
    except Exception as error:  # not the app's: that is an error reply
        if not isinstance(error, MeadowError):
            traceback.print_exc()
        return {"problem": _sentence(error)}
    return {}


def _send(connection: Connection, answer: dict[str, Any]) -> None:
    try:
        connection.send_bytes(json.dumps(answer).encode())
    except OSError:
        _end()


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, MeadowError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
