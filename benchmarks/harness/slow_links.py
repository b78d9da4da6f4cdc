"""Slow links: network namespaces, each behind a veth pair with a rate and a delay of its own.

The rate is `tc tbf` on both ends. The delay is a TCP proxy in the namespace, as kernels without netem
have none: `python slow_links.py PORT HOST DELAY_S` listens on 127.0.0.1:PORT and forwards to HOST:PORT.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Link", "leave_network", "slow_link"]

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)  # os.setns and os.unshare came with Python 3.12

QUEUED_BYTES_MAX = 1 << 20
"""In the proxy, per direction: four times what is in transit at 20 Mbit/s and 100 ms."""
PIECE_BYTES = 16 << 10


@dataclass(frozen=True)
class Link:
    """A namespace, and the server's end of its link."""

    namespace: str
    device: str

    def command(self, *words: str) -> list[str]:
        """Return a command that runs in the namespace."""
        return ["ip", "netns", "exec", self.namespace, *words]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Processes that this thread starts meanwhile run in the namespace."""
        with (
            Path("/proc/thread-self/ns/net").open() as own,
            Path("/run/netns", self.namespace).open() as other,
        ):
            _check(LIBC.setns(other.fileno(), CLONE_NEWNET))
            try:
                yield
            finally:
                _check(LIBC.setns(own.fileno(), CLONE_NEWNET))

    def count(self, direction: str) -> int:
        """Return the bytes that the server's end has sent ("tx") or received ("rx")."""
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        (line,) = (line for line in lines if line.strip().startswith(f"{self.device}:"))
        return int(line.partition(":")[2].split()[{"rx": 0, "tx": 8}[direction]])


def leave_network() -> None:
    """Give this process, and all that it starts, a network of its own, in which it may listen anywhere.

    Raises:
        OSError: this needs root.
    """
    _check(LIBC.unshare(CLONE_NEWNET))
    _do("ip", "link", "set", "lo", "up")


@contextmanager
def slow_link(number: int, port: int, *, mbit_per_s: int, delay_s: float) -> Iterator[Link]:
    """A namespace in which localhost:`port` is this machine's `port`, over a slow link."""
    link = Link(f"meadow-slow-{number}", f"mslow{number}")
    inner, here, there = f"mslow{number}i", f"10.213.{number}.1", f"10.213.{number}.2"
    shape = ["root", "tbf", "rate", f"{mbit_per_s}mbit", "burst", "16kb", "latency", "100ms"]
    with ExitStack() as stack:
        _do("ip", "netns", "add", link.namespace)
        stack.callback(_do, "ip", "netns", "del", link.namespace)
        _do("ip", "link", "add", link.device, "type", "veth", "peer", "name", inner)
        stack.callback(_do, "ip", "link", "del", link.device)
        _do("ip", "link", "set", inner, "netns", link.namespace)
        _do("ip", "addr", "add", f"{here}/24", "dev", link.device)
        _do("ip", "link", "set", link.device, "up")
        _do(*link.command("ip", "addr", "add", f"{there}/24", "dev", inner))
        _do(*link.command("ip", "link", "set", inner, "up"))
        _do(*link.command("ip", "link", "set", "lo", "up"))
        _do("tc", "qdisc", "add", "dev", link.device, *shape)
        _do(*link.command("tc", "qdisc", "add", "dev", inner, *shape))
        command = link.command(sys.executable, __file__, str(port), here, str(delay_s))
        proxy = subprocess.Popen(command)
        stack.callback(proxy.wait)
        stack.callback(proxy.terminate)
        yield link


def _check(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _do(*words: str) -> None:
    subprocess.run(words, check=True)


async def _delayed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_BYTES_MAX // PIECE_BYTES)

    async def take() -> None:
        data = b"-"
        while data:
            data = await reader.read(PIECE_BYTES)
            await queue.put((loop.time() + delay_s, data))

    taking = asyncio.create_task(take())
    try:
        while True:
            due_s, data = await queue.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if not data:
                break
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # the other side learns it by the close below
    finally:
        taking.cancel()
        writer.close()


async def _serve(port: int, host: str, delay_s: float) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        await asyncio.gather(_delayed(reader, back, delay_s), _delayed(there, writer, delay_s))

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
