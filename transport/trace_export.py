"""Spans that are recorded and exported: the half of `tracing` that needs opentelemetry."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from .fleet_pb2 import Instruction
from .spans import FAILURES, NO_TRACES, PRESENT, Span, Traces, attributes_of, digest

__all__ = ["ExportedTraces"]

FLUSH_S_MAX: Final = 2.0
_NEXT: Final[ContextVar[tuple[int, int]]] = ContextVar("_NEXT", default=(0, 0))
"""The trace and span id that the next span gets; 0 is a random one."""


class _Ids(IdGenerator):
    """Derived ids where two processes know them, and otherwise random ones of the operating system: the
    generator of the module `random`, which an app may seed, is not used."""

    def generate_trace_id(self) -> int:
        return _NEXT.get()[0] or int.from_bytes(secrets.token_bytes(16), "big") or 1

    def generate_span_id(self) -> int:
        return _NEXT.get()[1] or int.from_bytes(secrets.token_bytes(8), "big") or 1


class _Recorded(Span):
    """A span that is exported once it has ended."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer, self._span = tracer, span

    def child(self, name: str) -> Span:
        context = trace.set_span_in_context(self._span)
        return _Recorded(self._tracer, self._tracer.start_span(name, context))

    def set_outcome(self, outcome: str) -> None:
        if self._span.is_recording():
            self._span.set_attribute("meadow.outcome", outcome)
            if outcome in FAILURES:
                self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()

    @contextmanager
    def present(self) -> Iterator[None]:
        before = PRESENT.set(self)
        try:
            yield
        finally:
            PRESENT.reset(before)


class ExportedTraces(Traces):
    """Begins spans that are exported by OTLP over HTTP."""

    def __init__(
        self, tracer: trace.Tracer, authority: str, finish: Callable[[], object] = lambda: None
    ) -> None:
        self._tracer, self._authority = tracer, authority
        self._finish = finish

    @classmethod
    def of_environment(cls, service: str, authority: str) -> Traces:
        """Return the traces that the standard variables describe."""
        named = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
        if named not in ("", "otlp"):
            logging.getLogger(__name__).warning(
                "no traces: OTEL_TRACES_EXPORTER is %r, and only otlp (over HTTP) and none are here",
                named[:50],
            )
            return NO_TRACES
        provider, finish = _provider(service)
        return cls(provider.get_tracer("meadow"), authority, finish)

    def close(self) -> None:
        self._finish()

    def round(self, run_id: int, group_id: str) -> Span:
        ids = self._trace_id(run_id, group_id), self._round_id(run_id, group_id)
        about = attributes_of(run_id, group_id)
        return self._begin("meadow.round", about, ids=ids, parent=0)

    def sent(self, instruction: Instruction, *, client: int) -> Span:
        run_id, group_id = instruction.run_id, instruction.envelope.metadata.group_id
        ids = self._trace_id(run_id, group_id), self._instruction_id(instruction)
        about = attributes_of(run_id, group_id, instruction.id, instruction.envelope)
        about["meadow.client"] = str(client)
        parent = self._round_id(run_id, group_id)
        return self._begin("meadow.instruction", about, ids=ids, parent=parent)

    def received(self, instruction: Instruction, *, client: int) -> Span:
        run_id, group_id = instruction.run_id, instruction.envelope.metadata.group_id
        about = attributes_of(run_id, group_id, instruction.id, instruction.envelope)
        about["meadow.client"] = str(client)
        ids = self._trace_id(run_id, group_id), 0
        parent = self._instruction_id(instruction)
        return self._begin("meadow.client.instruction", about, ids=ids, parent=parent)

    def _begin(
        self, name: str, about: dict[str, str], *, ids: tuple[int, int], parent: int
    ) -> Span:
        trace_id, _ = ids
        context = None
        if parent:
            known = SpanContext(trace_id, parent, is_remote=True, trace_flags=TraceFlags(1))
            context = trace.set_span_in_context(NonRecordingSpan(known))
        before = _NEXT.set(ids)
        try:
            return _Recorded(self._tracer, self._tracer.start_span(name, context, attributes=about))
        finally:
            _NEXT.reset(before)

    def _trace_id(self, run_id: int, group_id: str) -> int:
        return digest(16, "trace", self._authority, run_id, group_id)

    def _round_id(self, run_id: int, group_id: str) -> int:
        return digest(8, "round", self._authority, run_id, group_id)

    def _instruction_id(self, instruction: Instruction) -> int:
        return digest(8, "instruction", self._authority, instruction.id)


@cache
def _provider(service: str) -> tuple[TracerProvider, Callable[[], object]]:
    """Return the process's provider, and what ends it: it exports what is left, within `FLUSH_S_MAX`.

    The variables OTEL_BSP_* bound how many spans wait; more are dropped.
    """
    said = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    named = {} if said else {"service.name": service}
    provider = TracerProvider(
        resource=Resource.create(named), id_generator=_Ids(), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider, _ended_at_exit(provider)


def _ended_at_exit(provider: TracerProvider) -> Callable[[], object]:
    """Return what ends a provider, and have it called at the end of the process: in a thread, as a
    collector that is away must not delay that."""
    ending, flushed = threading.Event(), threading.Event()

    def flush() -> None:
        ending.wait()
        provider.shutdown()
        flushed.set()

    threading.Thread(target=flush, name="traces", daemon=True).start()

    def finish() -> None:
        ending.set()
        flushed.wait(FLUSH_S_MAX)

    atexit.register(finish)
    return finish
