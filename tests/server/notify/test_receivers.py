"""Receivers: what they are sent, and that none of them can hold up or harm the server."""

from __future__ import annotations

import asyncio
import email
import hashlib
import hmac
import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from email.policy import default
from pathlib import Path

import pytest
from webhooks import WebhookServer

from meadow.config.server_config import NotifyConfig
from meadow.errors import ConfigError
from meadow.server.notify import receivers
from meadow.server.notify.notices import Notice, _line
from meadow.server.notify.receivers import (
    CommandReceiver,
    NotTakenError,
    WebhookReceiver,
    read_key,
)
from meadow.transport.authority import Authority

KEY = b"k" * 40
NOTICE = Notice(
    number=7, id="ab-7-1000", event="run_failed", at_s=1.0, server="fl.example.org", run_id=3,
    text="run 3 failed: é", detail={"cause": "x"},
)  # fmt: skip
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def hook() -> Iterator[WebhookServer]:
    """A receiver."""
    made = WebhookServer()
    yield made
    made.close()


def webhook(url: str) -> WebhookReceiver:
    """Return what sends to an address."""
    return WebhookReceiver(NotifyConfig(url=url, key_file="k"), KEY, clock=lambda: 1234.5)


def test_a_signed_post(hook: WebhookServer) -> None:
    """The body is the notice; the signature covers it and the time, and is that of HMAC-SHA256."""
    asyncio.run(webhook(hook.url).take(NOTICE))
    ((headers, body),) = hook.got
    assert json.loads(body) == {
        "id": "ab-7-1000", "event": "run_failed", "at": "1970-01-01T00:00:01.000+00:00",
        "server": "fl.example.org", "text": "run 3 failed: é", "detail": {"cause": "x"}, "run": 3,
    }  # fmt: skip
    assert headers["Meadow-Time"] == "1234" and headers["Meadow-Id"] == "ab-7-1000"
    expected = hmac.new(KEY, b"1234." + body, hashlib.sha256).hexdigest()
    assert headers["Meadow-Signature"] == f"sha256={expected}"


@pytest.mark.parametrize(
    ("status", "refused"),
    [(301, True), (307, True), (400, True), (404, True), (429, False), (500, False), (503, False)],
)
def test_what_is_no_acceptance(hook: WebhookServer, status: int, refused: bool) -> None:
    """A redirect, also to a file, is followed by no request; a fault of the server's is tried again."""
    hook.statuses = [status]
    with pytest.raises(NotTakenError, match=f"answered {status}") as found:
        asyncio.run(webhook(hook.url).take(NOTICE))
    assert found.value.refused is refused
    assert len(hook.got) == 1
    assert "/hook" not in str(found.value), "a path may be a secret"


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _endless_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"H")
        await writer.drain()
        await asyncio.sleep(0.01)


async def _hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example.org ESMTP\r\n")
    await reader.read()


async def _endless_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    await _endless_line(reader, writer)


def asked(answer: Answer, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Send a notice to somebody who answers so."""
    monkeypatch.setattr(receivers, "SEND_S_MAX", seconds)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            await webhook(f"http://127.0.0.1:{port}/").take(NOTICE)
        finally:
            server.close()

    asyncio.run(main())


@pytest.mark.parametrize("answer", [_silent, _drip])
def test_the_slow_are_hung_up_on(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence, and a line that never ends, take as long as a notice may take, and no longer."""
    with pytest.raises(NotTakenError, match="did not answer in"):
        asked(answer, monkeypatch, 0.5)


@pytest.mark.parametrize("answer", [_endless_line, _hangs_up, _no_http])
def test_what_is_not_http(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused after the first kilobyte, or line."""
    with pytest.raises(NotTakenError, match=r"not HTTP|without an answer|reset"):
        asked(answer, monkeypatch, 30.0)


def test_a_body_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An acceptance is one as soon as its first line is there, however much follows."""
    asked(_endless_body, monkeypatch, 30.0)


def test_a_certificate_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Https is verified: a server with a certificate of its own gets nothing."""
    authority = Authority.create(now=datetime.now(UTC))
    pair = authority.issue_server(("localhost",), days=1, now=datetime.now(UTC))
    (tmp_path / "pair.pem").write_bytes(pair.key_pem + pair.certificate_pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pair.pem")
    (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)
    got: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
        try:
            with pytest.raises(NotTakenError, match="its certificate is not accepted"):
                await webhook(url).take(NOTICE)
            assert not got
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            await webhook(url).take(NOTICE)
            assert len(got) == 1
        finally:
            server.close()

    asyncio.run(main())


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    """The key's file is the server's user's alone, and the key long enough."""
    config, path = NotifyConfig(url="https://x", key_file="k"), tmp_path / "k"
    with pytest.raises(ConfigError, match="openssl rand"):
        read_key(config, tmp_path)
    path.write_bytes(KEY + b"\n")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600") as found:
        read_key(config, tmp_path)
    assert KEY.decode() not in str(found.value)
    path.chmod(0o600)
    assert read_key(config, tmp_path) == KEY
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="5 characters"):
        read_key(config, tmp_path)


# ------------------------------------------------------------------ commands


def python(program: str) -> CommandReceiver:
    """Return a receiver that is a program."""
    return CommandReceiver((sys.executable, "-c", program, "ops@example.org"))


def test_a_mail(tmp_path: Path) -> None:
    """The command reads a whole mail: a subject, an id, and what has happened."""
    out = tmp_path / "mail"
    program = f"import sys; open({str(out)!r}, 'wb').write(sys.stdin.buffer.read())"
    asyncio.run(python(program).take(NOTICE))
    mail = email.message_from_bytes(out.read_bytes(), policy=default)
    assert mail["Subject"] == "[meadow fl.example.org] run 3 failed: é"
    assert mail["Message-ID"] == "<ab-7-1000@fl.example.org>"
    assert "meadow run show 3" in mail.get_content()


def test_no_shell_and_no_header_of_an_app(tmp_path: Path) -> None:
    """A cause that is written as a header or a command stays a text."""
    text = _line("run 3 failed: \r\nBcc: all@example.org\r\n\r\n$(touch /tmp/x)")
    mail = email.message_from_bytes(
        Notice(
            number=1, id="a-1-1", event="run_failed", at_s=1.0, server="s", run_id=3, text=text,
            detail={},
        ).mail(),
        policy=default,
    )  # fmt: skip
    assert mail["Bcc"] is None
    assert "Bcc: all@example.org" in mail["Subject"]


def test_what_a_command_prints_is_the_reason() -> None:
    """A failure has the beginning of the output, without marks that a terminal would obey."""
    program = "import sys; print('no \\x1b[31m such user' * 100000); sys.exit(67)"
    with pytest.raises(NotTakenError, match=r"ended with status 67: no \?\[31m such") as found:
        asyncio.run(python(program).take(NOTICE))
    assert found.value.refused
    assert len(str(found.value)) < 400
    with pytest.raises(NotTakenError, match="status 75") as found:
        asyncio.run(python("import sys; sys.exit(75)").take(NOTICE))
    assert not found.value.refused
    with pytest.raises(NotTakenError, match="cannot be started"):
        asyncio.run(CommandReceiver(("/no/such/program",)).take(NOTICE))


def test_a_command_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed, with the program that it has started."""
    monkeypatch.setattr(receivers, "SEND_S_MAX", 10.0)
    out = tmp_path / "pid"
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"open({str(out)!r}, 'w').write(str(child.pid))\ntime.sleep(1000)"
    )

    async def main() -> None:
        with pytest.raises(NotTakenError, match="did not end in"):
            await python(program).take(NOTICE)

    asyncio.run(main())
    child = int(out.read_text())
    deadline_s = time.monotonic() + 60
    while is_alive(child):
        assert time.monotonic() < deadline_s, "it was not killed"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that was killed may wait for its parent to see that."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_leaves_something_in_the_background() -> None:
    """As sendmail may: the notice is taken when the command itself has ended."""
    program = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(5)'])"
    )
    asyncio.run(python(program).take(NOTICE))
