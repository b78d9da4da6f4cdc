"""The leader as a process of its own: `python -m meadow.client.hosts.link --fd N`.

Torch holds Python's lock while it connects ranks, so bytes are carried beside the training process,
and nobody on the network keeps that from its work. The two speak JSON over a socket pair; a way to a
rank crosses as a file descriptor. The process ends with the training process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...config.sections.device import DeviceConfig
from ...errors import ConfigError, DataError, MeadowError
from ...training.parallel.hosts import Host, RankProcess
from .leader import Leader
from .membership import Membership

__all__ = ["Link"]

MODULE = "meadow.client.hosts.link"
CALL_BYTES_MAX = 64 << 10
"""What the two say to each other at once."""
LOST = 70
"""The status of a rank whose machine is gone."""


class _RemoteRank:
    """A rank on another machine: it lives as long as the connection to it, which its group closes."""

    pid = 0

    def __init__(self, way: socket.socket) -> None:
        self._way = way

    def poll(self) -> int | None:
        try:
            ended = not self._way.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return LOST
        return LOST if ended else None

    def kill(self) -> None:
        with suppress(OSError):
            self._way.shutdown(socket.SHUT_RDWR)

    def wait(self) -> int:
        self._way.close()
        return LOST


class Link:
    """As `Hosts`: asks the leader's process.

    Attributes:
        port: where the leader listens.
    """

    def __init__(self, directory: Path, config: DeviceConfig) -> None:
        """Start it.

        Raises:
            ConfigError: no machine was invited, or the address is not this machine's or not free.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-m", MODULE, "--fd", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        self._calls = ours
        self._prefix = ""
        asked = {"hosts": config.hosts, "wait_s": config.hosts_wait_s}
        listen = config.hosts_listen
        self.port = int(
            self._call("lead", directory=str(directory), listen=listen, **asked)["port"]
        )

    def gather(self) -> tuple[Host, ...]:
        """As `Hosts.gather`."""
        answer = self._call("gather")
        self._prefix = answer["address"]
        return tuple(
            Host(name=each["name"], devices=tuple(each["devices"])) for each in answer["hosts"]
        )

    def changed(self) -> bool:
        """As `Hosts.changed`."""
        return bool(self._call("changed")["changed"])

    def address(self, host: int) -> str:
        """As `Hosts.address`."""
        return f"{self._prefix}.{host + 1}"

    def start(self, host: int, sha256: str) -> tuple[RankProcess, Connection]:
        """As `Hosts.start`."""
        way = self._call("start", host=host, sha256=sha256)["way"]
        return _RemoteRank(way), Connection(way.dup().detach())

    def connect(self, ports: Sequence[Sequence[int]]) -> None:
        """As `Hosts.connect`."""
        self._call("connect", ports=ports)

    def end(self) -> None:
        """As `Hosts.end`."""
        self._call("end")

    def close(self) -> None:
        """End the process."""
        self._calls.close()
        self._process.wait()

    def _call(self, kind: str, **asked: Any) -> dict[str, Any]:
        try:
            self._calls.send(json.dumps({"kind": kind, **asked}).encode())
            data, fds, _, _ = socket.recv_fds(self._calls, CALL_BYTES_MAX, 1)
        except OSError as error:
            raise DataError(f"the process that leads other hosts is gone: {error}") from error
        if not data:
            raise DataError("the process that leads other hosts has ended; its output says why")
        answer: dict[str, Any] = json.loads(data)
        for name, kind_of in (
            ("config", ConfigError),
            ("data", DataError),
            ("lost", ConnectionError),
        ):
            if name in answer:
                raise kind_of(answer[name])
        if fds:
            answer["way"] = socket.socket(fileno=fds[0])
        return answer


async def _serve(calls: socket.socket) -> None:
    """Answer one call after another until the training process is gone."""
    loop = asyncio.get_running_loop()
    calls.setblocking(False)
    leader: Leader | None = None
    while data := await loop.sock_recv(calls, CALL_BYTES_MAX):
        asked = json.loads(data)
        ways: list[socket.socket] = []
        try:
            if leader is None:
                leader = _leader(asked)
                answer: dict[str, Any] = {"port": leader.port}
            else:
                answer = await _answer(leader, asked, ways)
        except ConfigError as error:
            answer = {"config": str(error)}
        except OSError as error:
            answer = {"lost": str(error) or type(error).__name__}
        except MeadowError as error:
            answer = {"data": str(error)}
        socket.send_fds(calls, [json.dumps(answer).encode()], [way.fileno() for way in ways])
        for way in ways:
            way.close()
    if leader is not None:
        await leader.close()


def _leader(asked: dict[str, Any]) -> Leader:
    config = DeviceConfig(
        hosts=asked["hosts"], hosts_listen=asked["listen"], hosts_wait_s=asked["wait_s"]
    )
    return Leader(
        Membership(Path(asked["directory"])),
        config,
        report=lambda text: print(f"meadow: {text}", file=sys.stderr, flush=True),
    )


async def _answer(
    leader: Leader, asked: dict[str, Any], ways: list[socket.socket]
) -> dict[str, Any]:
    kind = asked["kind"]
    if kind == "gather":
        hosts = [asdict(host) for host in await leader.gather()]
        return {"hosts": hosts, "address": leader.address(0).rpartition(".")[0]}
    if kind == "changed":
        return {"changed": leader.changed()}
    if kind == "start":
        ways.append(await leader.start(asked["host"], asked["sha256"]))
    elif kind == "connect":
        await leader.connect(asked["ports"])
    elif kind == "end":
        await leader.end()
    return {}


def main() -> None:
    """Serve the training process at the other end of an inherited socket until it is gone."""
    parser = argparse.ArgumentParser(prog=MODULE)
    parser.add_argument("--fd", type=int, required=True)
    with socket.socket(fileno=parser.parse_args().fd) as calls:
        asyncio.run(_serve(calls))


if __name__ == "__main__":
    main()
