"""Where a server is, as clients are told: IPv6 addresses, other ports, and proxies in between."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from strange_listeners import ConnectProxy, listener

from .processes import PATIENCE_S, Process, free_port, meadow, wait_until

NAME = "fl.example.test"


def no_ipv6() -> str:
    """Return why this machine has no IPv6, empty if it has."""
    try:
        with socket.socket(socket.AF_INET6) as plain:
            plain.bind(("::1", 0))
    except OSError as error:
        return f"this machine has no IPv6 loopback: {error.strerror}"
    return ""


@pytest.fixture
def processes() -> list[Process]:
    """Collect what is started, to be stopped in the end."""
    started: list[Process] = []
    yield started  # type: ignore[misc]
    for process in reversed(started):
        process.stop()


def joins(
    folder: Path, processes: list[Process], *, enroll: str, fingerprint: str, token: str
) -> str:
    """Enrol a client and have its agent connect; returns what it says then."""
    client = str(folder / "client")
    meadow(
        "client", "enroll", "--dir", client, "--server", enroll, "--token", "-",
        "--ca-fingerprint", fingerprint, stdin=token,
    )  # fmt: skip
    agent = Process(["client", "start", "--dir", client], folder / "client.log")
    processes.append(agent)
    agent.start()
    return str(wait_until(lambda: agent.events("connected"), "it connects")[0]["message"])


@pytest.mark.skipif(no_ipv6() != "", reason=no_ipv6())
def test_ipv6(tmp_path: Path, processes: list[Process]) -> None:
    """A server at ::1 is told, enrolled with and connected to in brackets, and its admin reaches it."""
    folder = str(tmp_path / "server")
    meadow("server", "init", "--dir", folder, "--host", "[::1]")
    start = ["server", "start", "--dir", folder, "--fleet-port", "0", "--enroll-port", "0"]
    server = Process(start, tmp_path / "server.log")
    processes.append(server)
    server.start()
    (listening,) = wait_until(lambda: server.events("listening"), "the server listens")
    assert listening["fleet"].startswith("[::1]:")
    token = meadow("server", "token", "site-a", "--dir", folder)
    said = joins(
        tmp_path, processes, enroll=token["server"], fingerprint=token["ca_fingerprint"],
        token=token["token"],
    )  # fmt: skip
    assert said == f"connected to {listening['fleet']} as site-a (node {token['node_id']})"
    assert meadow("server", "status", "--dir", folder)["connected"] == 1
    log = (tmp_path / "server.log").read_text()
    assert "site-a (node 1) is connected" in log


def test_behind_nat_and_through_a_proxy(
    tmp_path: Path, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are told a name and ports that this machine does not know: a proxy does."""
    folder, fleet, enroll = tmp_path / "server", free_port(), free_port()
    meadow("server", "init", "--dir", str(folder), "--host", "localhost")
    with (folder / "server.toml").open("a") as file:
        file.write(f'fleet_address = "{NAME}:443"\nenroll_address = "{NAME}:444"\n')
    server = Process(
        ["server", "start", "--dir", str(folder), "--fleet-port", str(fleet),
         "--enroll-port", str(enroll)],
        tmp_path / "server.log",
    )  # fmt: skip
    processes.append(server)
    server.start()
    wait_until(lambda: server.events("listening"), "the server listens")
    token = meadow("server", "token", "site-a", "--dir", str(folder))
    assert token["server"] == f"{NAME}:444"
    proxy = ConnectProxy(
        {f"{NAME}:443": ("127.0.0.1", fleet), f"{NAME}:444": ("127.0.0.1", enroll)}
    )
    with listener(proxy) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        said = joins(
            tmp_path, processes, enroll=token["server"], fingerprint=token["ca_fingerprint"],
            token=token["token"],
        )  # fmt: skip
        assert said == f"connected to {NAME}:443 as site-a (node 1)"
        assert {target for target, _ in proxy.asked} == {f"{NAME}:443", f"{NAME}:444"}
        monkeypatch.setenv("no_proxy", "localhost")
        assert meadow("server", "status", "--dir", str(folder))["connected"] == 1


def test_a_port_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the port, its key and its option; gRPC says nothing beside it."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)  # flwr sets it in this process
    folder, log = str(tmp_path / "server"), tmp_path / "server.log"
    meadow("server", "init", "--dir", folder, "--host", "localhost")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        command = ["server", "start", "--dir", folder]
        server = Process([*command, "--fleet-port", str(port), "--enroll-port", "0"], log)
        server.start()
        assert server.popen is not None and server.popen.wait(PATIENCE_S) == 1
    said = log.read_text().splitlines()
    assert len(said) == 2, said  # for programs and for people
    assert all(f"127.0.0.1:{port} is taken" in line and "--fleet-port" in line for line in said)
