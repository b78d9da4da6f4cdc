"""A webhook's receiver for tests: it keeps what it gets, and answers as it is told."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebhookServer:
    """Listens on 127.0.0.1; `statuses` are the answers to come to an event, or to any if it is empty, and
    204 after them."""

    def __init__(self, event: str = "") -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        """Headers and body of each request, also of those that were not answered."""
        self.statuses: list[int | None] = []
        """None: no answer, until the other side has gone."""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.got.append((dict(self.headers), body))
                is_meant = event in ("", self.headers["Meadow-Event"])
                status = owner.statuses.pop(0) if owner.statuses and is_meant else 204
                if status is None:
                    self.rfile.read(1)
                    return
                self.send_response(status)
                self.send_header("Location", "file:///etc/passwd")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was sent, each as JSON."""
        return [json.loads(body) for _, body in self.got]

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
