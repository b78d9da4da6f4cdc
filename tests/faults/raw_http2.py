"""HTTP/2 by hand: a peer that begins messages and does not end them, and sends any frame it likes.

Source: RFC 9113 (frames), RFC 7541 (HPACK, of which only literals and the static table are used),
and gRPC's PROTOCOL-HTTP2.md (a message is a byte, its length in four, and its bytes).
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import tempfile
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from meadow.transport.keys import KeyPair

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
FRAME_BYTES = 16 << 10
WAIT_S = 0.05
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class RawHttp2:
    """One connection; a thread reads what the server grants."""

    def __init__(self, address: str, pair: KeyPair | None, *, source: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), 20, source_address=(source, 0))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if pair is not None:
            with tempfile.TemporaryDirectory() as folder:
                key, certificate = Path(folder, "key"), Path(folder, "certificate")
                key.write_bytes(pair.key_pem)
                certificate.write_bytes(pair.certificate_pem)
                context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(plain, server_hostname=host)
        self.socket.setblocking(False)
        self._using = threading.Lock()
        self.ended = threading.Event()
        self._granted = threading.Condition()
        self._windows: dict[int, int] = defaultdict(int)
        self._windows[0] = 65_535
        self._initial = 65_535
        self._settled = False
        self._streams: list[int] = []
        self.send(PREFACE)
        self.frame(SETTINGS, 0, 0, b"")
        threading.Thread(target=self._read, daemon=True).start()

    def frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Send a frame."""
        self.send(frame_of(kind, flags, stream, payload))

    def send(self, data: bytes) -> None:
        """Send any bytes; other threads may send and receive meanwhile, of which OpenSSL bears one at a time.

        Raises:
            OSError: the connection has been ended.
        """
        left = memoryview(data)
        while left:
            with self._using, suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                left = left[self.socket.send(left) :]
                continue
            if self.ended.is_set():
                raise ConnectionError
            select.select([], [self.socket], [], WAIT_S)

    def open(self, path: str) -> int:
        """Begin a call and return its stream."""
        stream = 2 * len(self._streams) + 1
        self._streams.append(stream)
        with self._granted:
            self._windows[stream] += self._initial
        self.frame(HEADERS, END_HEADERS, stream, headers_of(path))
        return stream

    def begin(self, stream: int, declared_bytes: int, sent_bytes: int, wait_s: float) -> int:
        """Send so much of a message that is declared larger, as the server grants it; return how
        much it took before it granted no more for so long, or ended the stream."""
        left = bytearray(b"\x00" + struct.pack(">I", declared_bytes)) + bytes(sent_bytes)
        total = len(left)
        with suppress(OSError):
            while left and (size := self._take(stream, min(len(left), FRAME_BYTES), wait_s)):
                self.frame(DATA, 0, stream, bytes(left[:size]))
                del left[:size]
        return total - len(left)

    def initial_window(self, wait_s: float) -> int:
        """Return what the server's settings grant every stream, once it has sent them."""
        with self._granted:
            assert self._granted.wait_for(lambda: self._settled, wait_s), "no settings"
            return self._initial

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _take(self, stream: int, wanted: int, wait_s: float) -> int:
        def free() -> int:
            return min(wanted, self._windows[0], self._windows[stream])

        with self._granted:
            self._granted.wait_for(lambda: free() > 0 or self.ended.is_set(), wait_s)
            size = max(0, free())
            self._windows[0] -= size
            self._windows[stream] -= size
            return 0 if self.ended.is_set() else size

    def _read(self) -> None:
        with suppress(OSError, ValueError, struct.error):  # or it is closed here
            while head := self._exactly(9):
                size, kind, flags, stream = _unpacked(head)
                payload = self._exactly(size)
                with self._granted:
                    if kind == WINDOW_UPDATE:
                        self._windows[stream] += struct.unpack(">I", payload)[0]
                    elif kind == RESET:
                        self._windows[stream] = -(1 << 40)
                    elif kind == SETTINGS and not flags:
                        self._settle(payload)
                    self._granted.notify_all()
                if kind in (SETTINGS, PING) and not flags:
                    self.frame(kind, 1, 0, payload if kind == PING else b"")
        self.ended.set()
        with self._granted:
            self._granted.notify_all()

    def _settle(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == 4:
                for stream in self._streams:
                    self._windows[stream] += value - self._initial
                self._initial = value
        self._settled = True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            with self._using, suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                more = self.socket.recv(size - len(data))
                if not more:
                    raise ConnectionError
                data += more
                continue
            select.select([self.socket], [], [], WAIT_S)
        return data


def frame_of(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame."""
    head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream)
    return head + payload


def headers_of(path: str) -> bytes:
    """Return the headers of a call."""
    block = bytes((0x83, 0x87)) + _literal(4, path) + _literal(1, "localhost")
    return block + _literal(31, "application/grpc") + b"\x10" + _text("te") + _text("trailers")


def _unpacked(head: bytes) -> tuple[int, int, int, int]:
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    return int.from_bytes(head[:3], "big"), kind, flags, stream & 0x7FFF_FFFF


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def _literal(index: int, value: str) -> bytes:
    """Return a header that is not to be indexed, its name from the static table."""
    name = bytes((0x10 | index,)) if index < 15 else bytes((0x1F, index - 15))
    return name + _text(value)
