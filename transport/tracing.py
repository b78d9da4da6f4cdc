"""OpenTelemetry's traces of a round: of its worker, the daemon, and every agent.

They are recorded where the standard variables OTEL_* ask for them, in the environment of each process,
and exported by OTLP over HTTP to whom that process's owner names; nothing of them is sent to the
other side. Without the variables opentelemetry is not imported.

No context is sent either. A round's trace id and an instruction's span id are digests of what both
sides know: the server's authority, the run, the round, the instruction's id. So the spans of two
organisations fit together where their owners collect them together, a restarted process continues the same
trace, and a peer can neither write a context nor learn from one what its instructions do not say.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Final

from .identity import fingerprint_of
from .spans import NO_TRACES, Traces

__all__ = ["asked_for", "traces_of"]

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def asked_for(environ: Mapping[str, str]) -> bool:
    """Return whether the standard variables ask for traces: an exporter or an endpoint is named."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    named = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if named:
        return named != "none"
    return any(environ.get(each) for each in ENDPOINTS)


def traces_of(service: str, authority_pem: Callable[[], bytes]) -> Traces:
    """Return the traces of this process, as its environment asks for them.

    `authority_pem` returns the certificate of the server's authority, whose fingerprint tells apart
    rounds of two servers. A process that cannot record logs why, and goes on without.
    """
    if not asked_for(os.environ):
        return NO_TRACES
    log, authority = logging.getLogger(__name__), fingerprint_of(authority_pem())
    try:
        from .trace_export import ExportedTraces

        return ExportedTraces.of_environment(service, authority)
    except ImportError as error:
        log.warning("no traces: %s; they need pip install 'meadow-fl[tracing]'", error)
    except (ValueError, OSError) as error:  # what a variable says
        log.warning("no traces: one of the OTEL_* variables is wrong: %s", error)
    return NO_TRACES
