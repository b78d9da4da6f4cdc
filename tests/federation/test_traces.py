"""OpenTelemetry's traces of a real federation, as a collector receives them over OTLP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from .processes import Federation, wait_until

collected = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
SETTINGS = ("run.rounds=2", "run.min_clients=2", "simulation.clients=2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A span that arrived, with the service that sent it."""

    service: str
    name: str
    trace: bytes
    id: bytes
    parent: bytes
    begin_ns: int
    end_ns: int
    about: dict[str, str]


class Collector(ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receive)
        self.spans: list[Seen] = []

    def named(self, name: str) -> list[Seen]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]


class Receive(BaseHTTPRequestHandler):
    """Reads one request of an exporter."""

    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        for each in collected.ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {a.key: a.value.string_value for a in each.resource.attributes}
            for span in (span for scope in each.scope_spans for span in scope.spans):
                self.server.spans.append(
                    Seen(
                        service=service["service.name"],
                        name=span.name,
                        trace=span.trace_id,
                        id=span.span_id,
                        parent=span.parent_span_id,
                        begin_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                        about={a.key: a.value.string_value for a in span.attributes},
                    )
                )
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector that the processes of the block are told of, as a standard says."""
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        try:
            yield server
        finally:
            server.shutdown()


def test_one_trace_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the worker over the daemon to each agent's fetching, training and sending: a tree in one
    trace, each span within its parent's time, with run, round, client and instruction."""
    with collecting(monkeypatch) as collector:
        made = Federation(tmp_path, DIGITS)
        try:
            made.start_server()
            made.add_clients(2)
            run = made.submit(*SETTINGS)
            assert made.wait_for_end(run)["status"] == "finished"
            wait_until(lambda: len(collector.named("meadow.round")) == 2, "the rounds are seen")
            answered = len(collector.named("meadow.instruction"))
            wait_until(
                lambda: len(collector.named("meadow.client.upload")) >= answered,
                "the agents' spans are seen",
            )
        finally:
            made.close()
    rounds = sorted(collector.named("meadow.round"), key=lambda span: span.begin_ns)
    assert [span.about for span in rounds] == [
        {"meadow.run": str(run), "meadow.round": str(number)} for number in (1, 2)
    ]
    assert {(span.service, span.parent) for span in rounds} == {("meadow-worker", b"")}
    assert rounds[0].trace != rounds[1].trace
    for top in rounds:
        asked = [s for s in collector.named("meadow.instruction") if s.parent == top.id]
        kinds = {s.about["meadow.message_type"] for s in asked}
        clients = {s.about["meadow.client"] for s in asked}
        assert "train" in kinds and len(clients) == 2
        assert len(asked) == len(kinds) * len(clients)
        for one in asked:
            assert (one.service, one.trace) == ("meadow-server", top.trace)
            assert one.about["meadow.outcome"] == "answered"
            assert top.begin_ns <= one.begin_ns <= one.end_ns <= top.end_ns
            (there,) = [
                s for s in collector.named("meadow.client.instruction") if s.parent == one.id
            ]
            assert (there.service, there.trace) == ("meadow-agent", top.trace)
            same = ("run", "round", "client", "instruction", "message_type", "outcome")
            for key in (f"meadow.{name}" for name in same):
                assert there.about[key] == one.about[key], key
            assert one.begin_ns <= there.begin_ns
            parts = sorted(
                (s for s in collector.spans if s.parent == there.id), key=lambda s: s.begin_ns
            )
            assert [part.name for part in parts] == [
                "meadow.client.fetch", "meadow.client.train", "meadow.client.upload",
            ]  # fmt: skip
            for before, part in zip([there, *parts], parts, strict=False):
                assert part.trace == top.trace
                assert there.begin_ns <= part.begin_ns <= part.end_ns <= there.end_ns
                assert before is there or before.end_ns <= part.begin_ns
    known = {span.id for span in collector.spans}
    assert {span.parent for span in collector.spans} <= known | {b""}, "no span is an orphan"
