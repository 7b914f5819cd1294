"""Serve the consumer on loopback: ``python -m testproject.billing.serve PORT``."""

from __future__ import annotations

import sys

from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application


class QuietHandler(WSGIRequestHandler):
    """Answers at once: its many small writes would wait 40 ms for the other side's ACK."""

    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Keep no line for each request."""


def main(port: int) -> None:
    """Serve until the process is ended."""
    server = ThreadedWSGIServer(("127.0.0.1", port), QuietHandler)
    server.set_app(get_wsgi_application())
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
