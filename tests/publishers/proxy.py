"""A way to a server that can be cut, restored and frozen."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

from tests.servers import ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Proxy:
    """Forwards a port of its own to ``target``, a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._reservation = ports.reserve()
        self.port = ports.number(self._reservation)
        self._flowing = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self._flowing.set()
        self.restore()
        return self

    def __exit__(self, *_error: object) -> None:
        self._flowing.set()
        self.break_off()
        for thread in self._threads:
            thread.join(10)
        self._reservation.close()

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Connections are closed and new ones refused inside the block."""
        self.break_off()
        try:
            yield
        finally:
            self.restore()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections stay open and nothing is forwarded inside the block."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    def break_off(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
            self._listener.close()
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets.clear()

    def restore(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        self._listener = listener
        self._start(self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets |= {near, far}
                self._start(self._forward, near, far)
                self._start(self._forward, far, near)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
