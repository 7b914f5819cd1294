"""An HTTP server before DynamoDB's: it loses an answer, or says something else in its place."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

LOST = "lost"  # applied, but the connection ends before the answer
UNSENT = "unsent"  # the connection ends before the server has heard of it
THROTTLED = "ProvisionedThroughputExceededException"
EXPIRED = "ExpiredTokenException"


class LossyHTTP:
    """Forwards to ``port``. What is put in ``faults`` befalls the next ``UpdateItem`` requests.

    ``on_lost`` is called when an answer is lost, before the client can know it.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.faults: list[str] = []
        self.seen: list[str] = []
        self.authorization = ""
        self.on_lost: Callable[[], object] = lambda: None
        outer = self

        class Handler(_Handler):
            way = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    way: LossyHTTP
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        verb = self.headers["X-Amz-Target"].rpartition(".")[2]
        self.way.seen.append(verb)
        self.way.authorization = self.headers["Authorization"]
        fault = self.way.faults.pop(0) if verb == "UpdateItem" and self.way.faults else ""
        if fault == UNSENT:
            self.close_connection = True
            return
        if fault in {THROTTLED, EXPIRED}:
            self._answer(400, json.dumps({"__type": fault, "message": "refused"}).encode())
            return
        status, answer = self._forward(body)
        if fault == LOST:
            self.way.on_lost()
            self.close_connection = True
            return
        self._answer(status, answer)

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.way.target, timeout=10)
        try:
            connection.request("POST", "/", body, dict(self.headers.items()))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name there)
        """Say nothing."""
