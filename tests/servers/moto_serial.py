"""The program of tests.servers.moto: moto's server, one request at a time, on the port given."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


def serial(application: WSGIApplication) -> WSGIApplication:
    """The application behind one lock, answers included."""
    lock = threading.Lock()

    def serve(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        with lock:
            return list(application(environment, start))

    return serve


if __name__ == "__main__":
    moto = serial(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), moto, threaded=True)
