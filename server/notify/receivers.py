"""Who is told: a webhook, or a command. Each takes one notice at a time, in bounded time and memory."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from ... import __version__
from ...config.server_config import NotifyConfig
from ...errors import ConfigError, UnreachableError
from ...transport.address import Address
from .notices import Notice

__all__ = [
    "SEND_S_MAX",
    "CommandReceiver",
    "NotTakenError",
    "NoticeReceiver",
    "WebhookReceiver",
    "read_key",
    "receivers_of",
    "signature_of",
]

SEND_S_MAX: Final = 20.0
"""The time for one notice, from the name's lookup to the answer's first line, or to the command's end."""
ANSWER_BYTES_MAX: Final = 1024
KEY_CHARS_MIN: Final = 32
KEY_BYTES_MAX: Final = 4096
PRINTED_CHARS_MAX: Final = 200
LAST_WORDS_S: Final = 0.5
TRY_LATER_STATUSES: Final = (408, 425, 429)
TRY_LATER_EXIT: Final = 75
"""EX_TEMPFAIL of sysexits.h, as sendmail has it."""
FORGOTTEN_ENVIRONMENT: Final = "MEADOW_"


class NotTakenError(UnreachableError):
    """A receiver did not take a notice; `refused` if it has read it and will not have it."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class NoticeReceiver(Protocol):
    """Somebody who is told."""

    @property
    def name(self) -> str:
        """Its key in [notify]."""

    @property
    def place(self) -> str:
        """Where it is, without secrets, for events and logs."""

    def why_not_reached(self) -> str:
        """Return why it cannot be reached now, empty if it can; it is sent nothing, and may take
        `SEND_S_MAX` seconds."""

    async def take(self, notice: Notice) -> None:
        """Hand a notice over.

        Raises:
            NotTakenError: it was not taken, or not within `SEND_S_MAX` seconds.
        """


def read_key(config: NotifyConfig, folder: Path) -> bytes:
    """Return the secret that signs.

    Raises:
        ConfigError: the file is missing, too short, or others can read it.
    """
    assert config.key_file is not None
    path = folder / config.key_file
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(KEY_BYTES_MAX + 1).strip()
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; make the key of [notify] with `openssl rand -hex 32 > {path}`"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path}: other users can read the key of [notify]; `chmod 600 {path}`")
    if not KEY_CHARS_MIN <= len(key) <= KEY_BYTES_MAX:
        raise ConfigError(
            f"{path}: the key of [notify] has {len(key)} characters; it must have {KEY_CHARS_MIN} to "
            f"{KEY_BYTES_MAX}: `openssl rand -hex 32 > {path}`"
        )
    return key


def signature_of(key: bytes, time: str, body: bytes) -> str:
    """Return the HMAC-SHA256 over the time in the header, a full stop, and the body, in hexadecimal."""
    return hmac.new(key, time.encode() + b"." + body, hashlib.sha256).hexdigest()


def receivers_of(
    config: NotifyConfig, folder: Path, *, clock: Callable[[], float]
) -> list[NoticeReceiver]:
    """Return the receivers of [notify] in a server's folder.

    Raises:
        ConfigError: as `read_key`.
    """
    found: list[NoticeReceiver] = []
    if config.url is not None:
        found.append(WebhookReceiver(config, read_key(config, folder), clock=clock))
    if config.command:
        found.append(CommandReceiver(config.command))
    return found


class WebhookReceiver:
    """POSTs a notice as JSON. Of the answer, only the status is read; no redirect is followed."""

    name = "url"

    def __init__(self, config: NotifyConfig, key: bytes, *, clock: Callable[[], float]) -> None:
        parts = config.parts
        assert parts is not None and parts.hostname is not None
        self._secure = parts.scheme == "https"
        self._address = Address(parts.hostname, parts.port or (443 if self._secure else 80))
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._host = parts.netloc
        self._key, self._clock = key, clock

    @property
    def place(self) -> str:
        """Without the path, which may be a secret of its own."""
        return f"{'https' if self._secure else 'http'}://{self._host}"

    def why_not_reached(self) -> str:
        """See `NoticeReceiver.why_not_reached`: it is connected to, and its certificate looked at."""

        async def connect() -> None:
            async with asyncio.timeout(SEND_S_MAX):
                _, writer = await self._connected()
                writer.transport.abort()

        try:
            asyncio.run(connect())
        except TimeoutError:
            return f"{self.place} did not answer in {SEND_S_MAX:.0f} s"
        except (OSError, ValueError) as error:
            return f"{self.place}: {_reason(error)}"
        return ""

    async def take(self, notice: Notice) -> None:
        """See `NoticeReceiver.take`: any 2xx is an acceptance."""
        try:
            async with asyncio.timeout(SEND_S_MAX):
                status = await self._post(notice)
        except TimeoutError:
            raise NotTakenError(f"{self.place} did not answer in {SEND_S_MAX:.0f} s") from None
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            raise NotTakenError(f"{self.place}: {_reason(error)}") from None
        if 200 <= status < 300:
            return
        redirect = "; it redirects, which is not followed: give the address itself"
        raise NotTakenError(
            f"{self.place} answered {status}{redirect if 300 <= status < 400 else ''}",
            refused=300 <= status < 500 and status not in TRY_LATER_STATUSES,
        )

    async def _post(self, notice: Notice) -> int:
        body, time = notice.body(), str(int(self._clock()))
        head = "\r\n".join(
            (
                f"POST {self._target} HTTP/1.1",
                f"Host: {self._host}",
                f"User-Agent: meadow/{__version__}",
                "Content-Type: application/json",
                f"Content-Length: {len(body)}",
                f"Meadow-Event: {notice.event}",
                f"Meadow-Id: {notice.id}",
                f"Meadow-Time: {time}",
                f"Meadow-Signature: sha256={signature_of(self._key, time, body)}",
                "Connection: close",
                "\r\n",
            )
        )
        reader, writer = await self._connected()
        try:
            writer.write(head.encode("ascii") + body)
            await writer.drain()
            return _status_in(await reader.readuntil(b"\n"))
        finally:
            writer.transport.abort()  # what else it sends is not waited for

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context() if self._secure else None
        return await asyncio.open_connection(
            self._address.host, self._address.port, ssl=context, limit=ANSWER_BYTES_MAX
        )


def _status_in(line: bytes) -> int:
    """Return the status in an answer's first line.

    Raises:
        ValueError: it is none of HTTP.
    """
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise ValueError("its answer is not HTTP")
    return int(rest[:3])


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, EOFError):
        return "it closed the connection without an answer"
    if isinstance(error, asyncio.LimitOverrunError):
        return "its answer is not HTTP"
    foreign = isinstance(
        error, ssl.SSLError | socket.gaierror
    )  # their numbers are not the system's
    if isinstance(error, OSError) and error.errno and not foreign:
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error)


class CommandReceiver:
    """Starts a program, without a shell, and writes a notice to its standard input as a mail.

    Exit status 0 is an acceptance, and 75 asks for another try later. A program that runs for too long
    is killed, with those that it has started.
    """

    name = "command"

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)

    @property
    def place(self) -> str:
        """The program, without its arguments."""
        return self._command[0]

    def why_not_reached(self) -> str:
        """See `NoticeReceiver.why_not_reached`: it is not started."""
        path = Path(self._command[0])
        if not path.is_file():
            return f"{path} does not exist"
        return "" if os.access(path, os.X_OK) else f"{path} may not be executed by this user"

    async def take(self, notice: Notice) -> None:
        """See `NoticeReceiver.take`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env={
                    k: v for k, v in os.environ.items() if not k.startswith(FORGOTTEN_ENVIRONMENT)
                },
            )
        except (OSError, ValueError) as error:
            raise NotTakenError(f"{self.place} cannot be started: {_reason(error)}") from None
        talking = asyncio.create_task(_talk(process, notice.mail()))
        try:
            async with asyncio.timeout(SEND_S_MAX):
                code = await process.wait()
                # what it has left in the background, as sendmail may, is not waited for
                await asyncio.wait({talking}, timeout=LAST_WORDS_S)
        except TimeoutError:
            raise NotTakenError(f"{self.place} did not end in {SEND_S_MAX:.0f} s") from None
        finally:
            talking.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        printed = talking.result() if talking.done() and not talking.cancelled() else ""
        if code:
            how = f"ended with status {code}" if code > 0 else f"was killed by signal {-code}"
            said = f": {printed}" if printed else ""
            raise NotTakenError(
                f"{self.place} {how}{said}", refused=code not in (TRY_LATER_EXIT, -9)
            )


async def _talk(process: asyncio.subprocess.Process, mail: bytes) -> str:
    """Write the mail, and read what the program prints to its end; return the beginning of that."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(ConnectionError):  # it need not read all
        process.stdin.write(mail)
        await process.stdin.drain()
    process.stdin.close()
    printed = b""
    while data := await process.stdout.read(4096):
        printed = (printed + data)[: 4 * PRINTED_CHARS_MAX]
    text = " ".join(printed.decode(errors="replace").split())[:PRINTED_CHARS_MAX]
    return "".join(mark if mark.isprintable() else "?" for mark in text)
