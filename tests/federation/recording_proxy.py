"""A proxy between agents and their server that reads everything: TLS ends in it, on both sides.

It has what no attacker has: the key of the server's authority, and the agents' own keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from meadow.client.owner.identity_folder import IdentityFolder
from meadow.server.daemon.server_dir import ServerFolder
from meadow.transport import fleet_pb2 as pb
from meadow.transport.identity import identity_of
from meadow.transport.tls import server_credentials

SERVICE = "/meadow.v1.Fleet/"
CALLS_MAX = 64
OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.http2.max_ping_strikes", 0)]


@dataclass
class Seen:
    """What one agent has sent through the proxy.

    Attributes:
        replies: its answers, in their order, repeats among them.
        files: the bytes that it has uploaded, by instruction and blob.
        kinds: the kinds of messages on its streams.
        other_calls: its calls that are neither streams nor transfers.
        sent_bytes: the bytes of all its messages, those of uploads among them.
    """

    replies: list[pb.Reply] = field(default_factory=list)
    files: dict[tuple[str, str], bytearray] = field(default_factory=dict)
    kinds: set[str | None] = field(default_factory=set)
    other_calls: set[str] = field(default_factory=set)
    sent_bytes: int = 0

    def note_message(self, data: bytes) -> None:
        """Write down a message of the stream."""
        self.sent_bytes += len(data)
        message = pb.AgentMessage.FromString(data)
        self.kinds.add(message.WhichOneof("kind"))
        if message.HasField("reply"):
            self.replies.append(message.reply)

    def note_upload(self, data: bytes, file: bytearray | None) -> bytearray:
        """Write down a message of an upload; return the file that it belongs to."""
        self.sent_bytes += len(data)
        message = pb.UploadMessage.FromString(data)
        if message.HasField("open"):
            opened = message.open
            return self.files.setdefault((opened.instruction_id, opened.blob.id), bytearray())
        assert file is not None
        chunk = message.chunk
        file[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data
        return file


class RecordingProxy(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes on every call of the fleet, as the agent that makes it, and writes down what it carries."""

    def __init__(self, server: Path, agents: list[Path], *, port: int, fleet_port: int) -> None:
        authority = ServerFolder(server).authority
        identities = [IdentityFolder(agent).load() for agent in agents]
        target = f"localhost:{fleet_port}"
        self._channels = {
            each.name: grpc.secure_channel(target, each.credentials(), OPTIONS)
            for each in identities
        }
        self.seen = {each.name: Seen() for each in identities}
        self._server = grpc.server(futures.ThreadPoolExecutor(CALLS_MAX), options=OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        pair = authority.issue_server(["localhost"], now=datetime.now(UTC), days=1)
        credentials = server_credentials(lambda: pair, ca_pem=authority.certificate_pem)
        self._server.add_secure_port(f"127.0.0.1:{port}", credentials)

    def start(self) -> None:
        """Listen."""
        self._server.start()

    def stop(self) -> None:
        """Drop every connection."""
        self._server.stop(None).wait()
        for channel in self._channels.values():
            channel.close()

    def service(self, details: Any) -> Any:
        """As gRPC asks it for a call: how to answer it."""
        method = details.method.removeprefix(SERVICE)
        makes = {
            "Connect": ("stream_stream", self._connect),
            "Upload": ("stream_unary", self._upload),
            "Download": ("unary_stream", self._pass_on("unary_stream", details.method)),
            "Renew": ("unary_unary", self._pass_on("unary_unary", details.method)),
        }
        kind, answer = makes[method]
        return getattr(grpc, f"{kind}_rpc_method_handler")(answer)

    def _name(self, context: Any) -> str:
        return identity_of(context.auth_context()["x509_pem_cert"][0]).name

    def _call(self, context: Any, kind: str, method: str) -> Any:
        return getattr(self._channels[self._name(context)], kind)(method)

    def _connect(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        seen = self.seen[self._name(context)]

        def noted() -> Iterator[bytes]:
            with suppress(grpc.RpcError):  # the agent has gone
                for data in requests:
                    seen.note_message(data)
                    yield data

        call = self._call(context, "stream_stream", f"{SERVICE}Connect")(noted())
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            _fail(context, error)

    def _upload(self, requests: Iterator[bytes], context: Any) -> Any:
        seen = self.seen[self._name(context)]

        def noted() -> Iterator[bytes]:
            file = None
            with suppress(grpc.RpcError):
                for data in requests:
                    file = seen.note_upload(data, file)
                    yield data

        try:
            return self._call(context, "stream_unary", f"{SERVICE}Upload")(noted())
        except grpc.RpcError as error:
            return _fail(context, error)

    def _pass_on(self, kind: str, method: str) -> Any:
        def answer(request: bytes, context: Any) -> Any:
            self.seen[self._name(context)].other_calls.add(method.removeprefix(SERVICE))
            try:
                return self._call(context, kind, method)(request)
            except grpc.RpcError as error:
                return _fail(context, error)

        def stream(request: bytes, context: Any) -> Iterator[bytes]:
            try:
                yield from self._call(context, kind, method)(request)
            except grpc.RpcError as error:
                _fail(context, error)

        return stream if kind.endswith("stream") else answer


def _fail(context: Any, error: Any) -> Any:
    return context.abort(error.code(), error.details())
