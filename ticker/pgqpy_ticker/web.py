"""/healthz and /metrics over HTTP.

Served from a thread: if the event loop hangs, the endpoint must still be able to report it.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from typing import Any

from pgqpy_ticker import metrics
from pgqpy_ticker.config import address
from pgqpy_ticker.served import Served

#: Connections at a time, and seconds that one may last. A further one ends the oldest.
MOST, LONGEST = 32, 10.0


class Endpoint(ThreadingHTTPServer):
    """The HTTP server, until :meth:`close`. Raises OSError if the port is taken."""

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, http: str, served: Callable[[], list[Served]]) -> None:
        """``served`` returns the databases that are served now."""
        where = address(http)
        if ":" in where[0]:
            self.address_family = socket.AF_INET6
        super().__init__(where, _Handler)
        self.served = served
        #: When each open connection began, the oldest first.
        self._open: dict[socket.socket, float] = {}
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.1,), name="http", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """The address on which it listens; the port is the real one even if 0 was given."""
        host, port = self.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        # The threads of those that were ended may still run: the next one waits for some to end.
        while len(open_now := list(self._open)) >= 2 * MOST:
            sleep(0.001)
        for each in open_now[: max(0, len(open_now) - MOST + 1)]:
            _end(each)
        self._open[request] = monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End what lasts too long; the server calls this every 0.1 s."""
        for each, began in list(self._open.items()):
            if monotonic() - began > LONGEST:
                _end(each)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A connection that was ended, here or there, is no news.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


def _end(connection: socket.socket) -> None:
    """Let the thread of a connection find its end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    timeout = LONGEST

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/healthz":
                reports = {each.name: each.report() for each in self.server.served()}
                well = all(report["healthy"] for report in reports.values())
                status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
                body = json.dumps({"healthy": well, "databases": reports})
                self._answer(status, "application/json", body)
            case "/metrics":
                self._answer(
                    HTTPStatus.OK, metrics.CONTENT_TYPE, metrics.page(self.server.served())
                )
            case _:
                body = "there are /healthz and /metrics\n"
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", body)

    do_HEAD = do_GET  # noqa: N815 (http.server finds methods by these names)

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "pgqpy"

    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape every few seconds is no news."""
