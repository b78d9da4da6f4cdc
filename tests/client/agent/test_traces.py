"""An agent whose owner collects traces: spans of what it does, whatever its server names things."""

from __future__ import annotations

import asyncio

import pytest

from meadow.transport import fleet_pb2 as pb

from ..conftest import Client

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meadow.transport import trace_export

GARBAGE = ("00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\x00\x01\n" * 300, "\U0010ffff" * 1000)


def test_a_hostile_server_names_things(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds and instructions with garbage as names are traced like others, within bounds; the agent
    answers what follows, and its spans have outcomes and no text of an error."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(id_generator=trace_export._Ids())
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace_export, "_provider", lambda service: (provider, lambda: None))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")

    async def scenario() -> None:
        async with client.connected():
            for number, text in enumerate(GARBAGE):
                hostile = client.instruction(f"h{number}", values=10)
                hostile.envelope.metadata.group_id = text
                client.fleet.send(hostile)
                await client.fleet.reply(hostile.id)
            client.fleet.send(client.instruction("f", values=10, run_config={"raise": True}))
            await client.fleet.reply("f")
            refused = client.instruction("r", values=10)
            refused.app.name = "another"
            client.fleet.send(refused)
            await client.fleet.reply("r")
            cancelled = pb.ServerMessage(cancel=pb.Cancel(instruction_id="never was"))
            client.fleet.say(cancelled)
            client.fleet.send(client.instruction("a"))
            assert client.count_of(await client.fleet.reply("a")) > 0
            await client.hear("sent", len([r for r in client.fleet.replies if _good(r)]))

    asyncio.run(scenario())
    spans = kept.get_finished_spans()
    done = [span for span in spans if span.name == "meadow.client.instruction"]
    assert len(done) == len(GARBAGE) + 3 and len({_trace(span) for span in done}) >= 3
    outcomes = {_about(span, "instruction"): _about(span, "outcome") for span in done}
    assert outcomes["a"] == "answered" and outcomes["f"] == "failed" and outcomes["r"] == "refused"
    assert all(_about(span, "client") == "1" for span in done)
    for span in spans:
        assert span.context.is_valid and span.parent is not None
        assert not span.events and not span.status.description
        assert all(len(str(value)) <= 200 for value in (span.attributes or {}).values())
    (last,) = [span for span in done if _about(span, "instruction") == "a"]
    parts = [s.name for s in spans if s.parent and s.parent.span_id == last.context.span_id]
    assert parts == [f"meadow.client.{part}" for part in ("fetch", "train", "upload")]


def _good(reply: pb.Reply) -> bool:
    return not reply.refused and not reply.envelope.HasField("error")


def _trace(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def _about(span: ReadableSpan, key: str) -> str:
    assert span.attributes is not None
    return str(span.attributes[f"meadow.{key}"])
