"""Bare grpc-python streams with mutual TLS: what a transfer benchmark compares itself with.

One server process and some client processes; every client downloads the payload and uploads its
own, all at once. Nothing is stored, checked, trained or aggregated.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import grpc
import grpc.aio

from meadow.transport.authority import Authority
from meadow.transport.keys import KeyPair, create_request
from meadow.transport.tls import channel_credentials, server_credentials

__all__ = ["seconds_of_bare_rounds"]

OPTIONS = [("grpc.max_receive_message_length", 16 << 20)]


def seconds_of_bare_rounds(
    folder: Path, *, clients: int, payload_bytes: int, rounds: int, chunk_bytes: int
) -> list[float]:
    """Return how long each round of downloads and uploads took, in seconds."""
    now = datetime.now(UTC)
    authority = Authority.create(now=now)
    pair = authority.issue_server(["localhost"], now=now, days=1)
    request = create_request("bare", folder / "bare.key")
    client_pem = authority.issue_client(request, name="bare", now=now, days=1)
    (folder / "bare.ca").write_bytes(authority.certificate_pem)
    (folder / "bare.pem").write_bytes(client_pem)
    (folder / "bare-server.key").write_bytes(pair.key_pem)
    (folder / "bare-server.pem").write_bytes(pair.certificate_pem)
    arguments = [str(folder), str(payload_bytes), str(chunk_bytes)]
    server = _start("server", *arguments)
    try:
        port = _line(server)
        workers = [_start("client", *arguments, port) for _ in range(clients)]
        try:
            for worker in workers:
                _line(worker)
            return [_one_round(workers) for _ in range(rounds)]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    finally:
        server.kill()
        server.wait()


def _one_round(workers: list[subprocess.Popen[str]]) -> float:
    begun_s = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        print("go", file=worker.stdin, flush=True)
    for worker in workers:
        _line(worker)
    return time.perf_counter() - begun_s


def _start(role: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, role, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def _serve(folder: Path, payload_bytes: int, chunk_bytes: int) -> None:
    payload = os.urandom(payload_bytes)

    async def download(request: bytes, context: object) -> object:
        for start in range(0, payload_bytes, chunk_bytes):
            yield payload[start : start + chunk_bytes]

    async def upload(chunks: object, context: object) -> bytes:
        total = 0
        async for chunk in chunks:  # type: ignore[attr-defined]
            total += len(chunk)
        return str(total).encode()

    pair = KeyPair(
        key_pem=(folder / "bare-server.key").read_bytes(),
        certificate_pem=(folder / "bare-server.pem").read_bytes(),
    )
    server = grpc.aio.server(options=OPTIONS)
    handlers = {
        "Download": grpc.unary_stream_rpc_method_handler(download),
        "Upload": grpc.stream_unary_rpc_method_handler(upload),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bare", handlers),))
    ca_pem = (folder / "bare.ca").read_bytes()
    port = server.add_secure_port("127.0.0.1:0", server_credentials(lambda: pair, ca_pem=ca_pem))
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def _work(folder: Path, payload_bytes: int, chunk_bytes: int, port: str) -> None:
    payload = os.urandom(payload_bytes)
    pair = KeyPair(
        key_pem=(folder / "bare.key").read_bytes(),
        certificate_pem=(folder / "bare.pem").read_bytes(),
    )
    credentials = channel_credentials((folder / "bare.ca").read_bytes(), pair)
    channel = grpc.secure_channel(f"localhost:{port}", credentials, options=OPTIONS)
    download = channel.unary_stream("/Bare/Download")
    upload = channel.stream_unary("/Bare/Upload")
    print("ready", flush=True)
    for _ in sys.stdin:
        for _ in download(b""):
            pass
        upload(payload[at : at + chunk_bytes] for at in range(0, payload_bytes, chunk_bytes))
        print("done", flush=True)


if __name__ == "__main__":
    role, where, size, chunk, *rest = sys.argv[1:]
    if role == "server":
        asyncio.run(_serve(Path(where), int(size), int(chunk)))
    else:
        _work(Path(where), int(size), int(chunk), *rest)
