"""Where a server is, as clients are told: IPv6 addresses, other ports, and proxies in between."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import grpc.aio
import pytest
from strange_listeners import ConnectProxy, listener

from meadow.server.daemon.daemon import _bind
from meadow.transport.authority import Authority
from meadow.transport.reach import why_not_reached
from meadow.transport.tls import server_credentials

from .processes import PATIENCE_S, Process, free_port, meadow, wait_until

NAME = "fl.example.test"
DIGITS = Path(__file__).parents[1] / "shared" / "digits"
DEPLOY = Path(__file__).parents[2] / "deploy"
COMMANDS = {
    kind: shutil.which(kind, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    for kind in ("haproxy", "nginx")
}
STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")


class Other(Process):
    """A program that is not ours."""

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as file:
            self.popen = subprocess.Popen(self.arguments, stdout=file, stderr=file)


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
        "--ca-fingerprint", fingerprint, "--app", str(DIGITS), stdin=token,
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


def passing_on(kind: str, folder: Path, fleet: int, enroll: int) -> tuple[list[str], int]:
    """Return the command that runs HAProxy or nginx with the configuration in deploy/, and its port."""
    file = {"haproxy": "haproxy/haproxy.cfg", "nginx": "nginx/meadow.conf"}[kind]
    text, port = (DEPLOY / file).read_text(), free_port()
    for old, new in (
        ("fl.example.org", NAME), ("127.0.0.1:9443", f"127.0.0.1:{fleet}"), ("5m", "1s"),
        ("127.0.0.1:9444", f"127.0.0.1:{enroll}"), ("bind :443", f"bind 127.0.0.1:{port}"),
        ("listen 443", f"listen 127.0.0.1:{port}"),
    ):  # fmt: skip
        text = text.replace(old, new)
    made = folder / Path(file).name
    made.write_text(text)
    if kind == "haproxy":
        return [COMMANDS[kind] or "", "-db", "-f", str(made)], port
    (folder / "nginx.conf").write_text(
        f"load_module {STREAM};\ndaemon off;\npid {folder}/pid;\nerror_log {folder}/nginx.log;\n"
        f"events {{}}\ninclude {made};\n"
    )
    log = str(folder / "nginx.log")
    return [COMMANDS[kind] or "", "-e", log, "-c", str(folder / "nginx.conf")], port


@pytest.mark.parametrize(
    "between",
    [
        "nothing",
        *(
            pytest.param(
                kind, marks=pytest.mark.skipif(not there, reason=f"apt-get install {what}")
            )
            for kind, there, what in (
                ("haproxy", COMMANDS["haproxy"], "haproxy"),
                ("nginx", COMMANDS["nginx"] and STREAM.exists(), "nginx-light libnginx-mod-stream"),
            )
        ),
    ],
)
def test_through_proxies(
    tmp_path: Path, processes: list[Process], monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """Clients are told names that this machine does not know, with one port: an HTTP proxy knows them.

    Before the server, nothing, or HAProxy or nginx passes TCP on by the name, and cuts what is idle
    for a second: the agent is back each time, and a run loses nothing.
    """
    folder, fleet, enroll = tmp_path / "server", free_port(), free_port()
    ways = {f"{NAME}:443": fleet, f"enroll.{NAME}:443": enroll}
    if between != "nothing":
        command, port = passing_on(between, tmp_path, fleet, enroll)
        processes.append(Other(command, tmp_path / "between.log"))
        processes[-1].start()
        ways = dict.fromkeys(ways, port)
    meadow("server", "init", "--dir", str(folder), "--host", "localhost")
    with (folder / "server.toml").open("a") as file:
        file.write(f'fleet_address = "{NAME}:443"\nenroll_address = "enroll.{NAME}:443"\n')
    start = ["server", "start", "--dir", str(folder), "--fleet-port", str(fleet)]
    server = Process([*start, "--enroll-port", str(enroll)], tmp_path / "server.log")
    processes.append(server)
    server.start()
    wait_until(lambda: server.events("listening"), "the server listens")
    token = meadow("server", "token", "site-a", "--dir", str(folder))
    assert token["server"] == f"enroll.{NAME}:443"
    proxy = ConnectProxy({name: ("127.0.0.1", port) for name, port in ways.items()})
    with listener(proxy) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        said = joins(
            tmp_path, processes, enroll=token["server"], fingerprint=token["ca_fingerprint"],
            token=token["token"],
        )  # fmt: skip
        assert said == f"connected to {NAME}:443 as site-a (node 1)"
        assert {target for target, _ in proxy.asked} == set(ways)
        monkeypatch.setenv("no_proxy", "localhost")
        if between == "nothing":
            assert meadow("server", "status", "--dir", str(folder))["connected"] == 1
            return
        agent = processes[-1]
        wait_until(lambda: len(agent.events("connected")) > 1, "it is cut, and back")
        settings = [f"--set={each}" for each in ("run.rounds=2", "run.min_clients=1")]
        run = str(meadow("run", "submit", str(DIGITS), "--dir", str(folder), *settings)["run"])
        summary = folder / "runs" / run / "summary.json"
        wait_until(summary.exists, "the run's end")
        found = json.loads(summary.read_text())
        assert (found["status"], found["rounds"]) == ("finished", 2), found


@pytest.mark.skipif(no_ipv6() != "", reason=no_ipv6())
def test_both_families() -> None:
    """`listen = "::"` takes IPv6 and IPv4."""

    async def scenario() -> list[str | None]:
        now = datetime.now(UTC)
        authority = Authority.create(now=now)
        pair = authority.issue_server(["localhost"], now=now, days=1)
        server = grpc.aio.server()
        port = _bind(server, "::", 0, server_credentials(lambda: pair, ca_pem=None), "fleet_port")
        await server.start()
        hosts = ("127.0.0.1", "[::1]")
        pem = authority.certificate_pem
        looks = (asyncio.to_thread(why_not_reached, f"{h}:{port}", pem, now=now) for h in hosts)
        found = await asyncio.gather(*looks)
        await server.stop(None)
        return found

    assert asyncio.run(scenario()) == [None, None]


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
