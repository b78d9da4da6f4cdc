"""Traces: off unless asked for, and ids that two processes know without telling each other."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from meadow.transport import fleet_pb2 as pb
from meadow.transport.authority import Authority
from meadow.transport.spans import NO_SPAN, NO_TRACES, TEXT_CHARS_MAX, phase
from meadow.transport.tracing import asked_for, traces_of

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meadow.transport import trace_export

WITHOUT = """
import sys
import meadow.client.agent.agent, meadow.server.daemon.daemon, meadow.server.worker.worker
from meadow.transport.spans import NO_TRACES
from meadow.transport.tracing import traces_of
assert traces_of("meadow-agent", lambda: b"") is NO_TRACES
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What this process exports, if it is asked to."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(id_generator=trace_export._Ids())
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace_export, "_provider", lambda service: (provider, lambda: None))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    return kept


def instruction(id_: str = "1-ab", run: int = 1, group: str = "1") -> pb.Instruction:
    """Return an instruction of a round."""
    metadata = pb.Metadata(run_id=run, group_id=group, message_type="train")
    return pb.Instruction(id=id_, run_id=run, envelope=pb.Envelope(metadata=metadata))


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
    ],
)
def test_the_standard_variables(environ: dict[str, str], wanted: bool) -> None:
    """An endpoint or an exporter asks for traces; `none` and OTEL_SDK_DISABLED forbid them."""
    assert asked_for(environ) is wanted


def test_without_them_nothing_is_imported() -> None:
    """Not by the daemon, its worker or an agent; spans are one object that does nothing."""
    environ = {"PATH": "/usr/bin"}
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT], check=False, capture_output=True, text=True, env=environ
    )
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr
    with NO_TRACES.sent(instruction(), client=1) as span, span.present(), phase("x") as part:
        assert span is part is NO_SPAN


def test_a_process_without_the_extra_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The variables may be there for other programs: it goes on without traces."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "meadow.transport.trace_export", raising=False)
    pem = Authority.create(now=datetime.now(UTC)).certificate_pem
    assert traces_of("x", lambda: pem) is NO_TRACES
    assert "pip install 'meadow-fl[tracing]'" in caplog.text


def test_another_exporter_is_not_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is sent elsewhere instead, and the log says what there is."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    pem = Authority.create(now=datetime.now(UTC)).certificate_pem
    assert traces_of("x", lambda: pem) is NO_TRACES
    assert "OTEL_TRACES_EXPORTER is 'zipkin'" in caplog.text


def test_a_variable_that_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake there does not end an agent."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1000000")
    pem = Authority.create(now=datetime.now(UTC)).certificate_pem
    assert traces_of("wrong", lambda: pem) is NO_TRACES
    assert "one of the OTEL_* variables is wrong" in caplog.text


def test_both_sides_know_the_same_ids(exporter: InMemorySpanExporter) -> None:
    """From the authority, the run, the round and the instruction: server and client fit together, a
    second server's do not; and a restarted process goes on with the same trace."""
    pems = [Authority.create(now=datetime.now(UTC)).certificate_pem for _ in range(2)]
    for pem in (pems[0], pems[0], pems[1]):
        server, client = (
            traces_of("meadow-server", lambda p=pem: p),
            traces_of("a", lambda p=pem: p),
        )
        server.round(1, "1").end()
        server.sent(instruction(), client=3).end()
        with client.received(instruction(), client=3) as span, span.present():
            phase("meadow.client.train").end()
    spans = exporter.get_finished_spans()
    first, again, other = spans[:4], spans[4:8], spans[8:]
    for top, asked, part, there in (first, again, other):
        assert top.parent is None
        assert asked.parent is not None and asked.parent.span_id == top.context.span_id
        assert there.parent is not None and there.parent.span_id == asked.context.span_id
        assert part.parent is not None and part.parent.span_id == there.context.span_id
        assert len({span.context.trace_id for span in (top, asked, part, there)}) == 1
    traces = [each[0].context.trace_id for each in (first, again, other)]
    assert traces[0] == traces[1] != traces[2]
    assert first[1].context.span_id == again[1].context.span_id != other[1].context.span_id
    assert first[3].context.span_id != again[3].context.span_id


def test_rounds_and_instructions_are_told_apart(exporter: InMemorySpanExporter) -> None:
    """No two of them have an id in common, also where their names put together are the same text."""
    pem = Authority.create(now=datetime.now(UTC)).certificate_pem
    traces = traces_of("meadow-server", lambda: pem)
    for run, group in ((1, "11"), (11, "1"), (1, "1"), (2, "1")):
        traces.round(run, group).end()
        for number in range(3):
            traces.sent(instruction(f"{run}-{group}-{number}", run, group), client=number).end()
    spans = exporter.get_finished_spans()
    assert len({span.context.trace_id for span in spans}) == 4
    assert len({span.context.span_id for span in spans}) == len(spans)


def test_an_apps_seed_does_not_choose_ids(exporter: InMemorySpanExporter) -> None:
    """Nor do the ids take numbers from the app's generator."""
    pem = Authority.create(now=datetime.now(UTC)).certificate_pem
    traces, states = traces_of("meadow-agent", lambda: pem), []
    for _ in range(2):
        random.seed(7)
        traces.received(instruction(), client=1).end()
        states.append(random.getstate())
    one, two = exporter.get_finished_spans()
    assert one.context.span_id != two.context.span_id
    random.seed(7)
    assert states == [random.getstate()] * 2


def test_what_a_peer_writes_is_bounded(exporter: InMemorySpanExporter) -> None:
    """Whatever a server names its rounds and instructions, ids are valid and attributes are short."""
    pem = Authority.create(now=datetime.now(UTC)).certificate_pem
    traces = traces_of("meadow-agent", lambda: pem)
    for text in (
        "",
        "\x00" * 5000,
        "00-" + "f" * 32 + "-" + "f" * 16 + "-01",
        "\U0010ffff" * 3000,
        "a\r\nb: c",
    ):
        hostile = instruction(text, (1 << 64) - 1, text)
        hostile.envelope.metadata.message_type = text
        with traces.received(hostile, client=1) as span:
            span.set_outcome("failed")
    spans = exporter.get_finished_spans()
    assert len(spans) == 5
    for span in spans:
        assert span.context.is_valid and span.attributes is not None
        assert max(len(str(value)) for value in span.attributes.values()) <= TEXT_CHARS_MAX
        assert span.attributes["meadow.run"] == str((1 << 64) - 1)


AWAY = """
import sys
from datetime import UTC, datetime
from meadow.transport.authority import Authority
from meadow.transport.tracing import traces_of
pem = Authority.create(now=datetime.now(UTC)).certificate_pem
traces = traces_of("meadow-agent", lambda: pem)
traces.round(1, "1").end()
if "close" in sys.argv:
    traces.close()
print("done")
"""


@pytest.mark.parametrize("how", ["close", "exit"])
def test_a_collector_that_is_away_is_not_waited_for(how: str) -> None:
    """One that takes a connection and never answers would hold the process for a day."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environ = {
            "PATH": "/usr/bin",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "86400",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
        }
        ran = subprocess.run(
            [sys.executable, "-c", AWAY, how],
            check=False, capture_output=True, text=True, env=environ, timeout=300,
        )  # fmt: skip
    assert (ran.stdout, ran.returncode) == ("done\n", 0), ran.stderr
