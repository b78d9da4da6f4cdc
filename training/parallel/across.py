"""Torch's process group over several machines: gloo, on an address of the loopback network.

The same address and port lead to the same rank from every machine, by way of forwarders; torch does
not notice. Nothing of it is reachable from the network.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from torch import distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo, TCPStore

from ...errors import DataError

__all__ = ["BACKEND", "join_store", "listen", "make_store"]

BACKEND = "meadow_gloo"
"""Gloo on `_Gloo.device`."""
THREADS = 2
"""Of a process group, as torch's own default."""


class _Gloo:
    """The one socket on which this process's groups listen."""

    device: Any = None

    @classmethod
    def group(cls, store: Any, rank: int, ranks: int, timeout: timedelta) -> Any:
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout, options._threads = timeout, THREADS
        options._devices = [cls.device]
        return ProcessGroupGloo(store, rank, ranks, options)


def listen(address: str) -> int:
    """Have gloo listen on an address, as the first of this process; returns the port that it has taken.

    Raises:
        DataError: this system has no such address: it is not Linux.
    """
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _Gloo.group, devices=["cpu", "cuda", "xpu"])
    _Gloo.device = None
    try:
        _Gloo.device = ProcessGroupGloo.create_device(hostname=address)
        return _port_at(address)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"gloo cannot listen on {address}: {error}; several hosts need Linux, set "
            "device.hosts aside elsewhere"
        ) from error


def make_store(address: str, ranks: int, *, timeout_s: float) -> tuple[TCPStore, int]:
    """Return rank 0's store, which serves the others, and its port."""
    listener = socket.create_server((address, 0))  # torch itself would listen on all addresses
    port = int(listener.getsockname()[1])
    store = TCPStore(
        address,
        port,
        ranks,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, port


def join_store(address: str, port: int, ranks: int, *, timeout_s: float) -> TCPStore:
    """Return another rank's store.

    Raises:
        RuntimeError: rank 0's is not reached in time.
    """
    patience = timedelta(seconds=timeout_s)
    return TCPStore(address, port, ranks, timeout=patience, wait_for_workers=False)


def _port_at(address: str) -> int:
    """Return the port on which this process listens at an address, which gloo does not tell."""
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = os.dup(int(name))
        except OSError:
            continue
        try:
            found = socket.socket(fileno=fd)
        except OSError:  # it is no socket
            os.close(fd)
            continue
        with found:
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and found.family == socket.AF_INET:
                host, port = found.getsockname()
                if host == address:
                    return int(port)
    raise OSError("no socket of this process listens there")
