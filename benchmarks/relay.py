"""A relay before a server that counts what it is asked: how often a client waits for an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HOST = "127.0.0.1"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEAD = 9
_HEADERS = 1


class Relay:
    """Forwards a port of its own to ``target``, a port of this machine.

    ``requests`` grows when a client speaks after the server has, and on HTTP/2 with each stream.
    """

    def __init__(self, target: int) -> None:
        self.requests = 0
        self._target = target
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        _in_background(self._accept)
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def through(self, address: str) -> str:
        """A URL or connection string of the server, changed to lead through the relay."""
        return address.replace(f"{_HOST}:{self._target}", f"{_HOST}:{self.port}")

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((_HOST, self._target))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _Line(self, client, server)


class _Line:
    """One connection; each half has a thread."""

    def __init__(self, relay: Relay, client: socket.socket, server: socket.socket) -> None:
        self._relay, self._client, self._server = relay, client, server
        self._answered = True
        self._streams: _Streams | None = None
        _in_background(self._up)
        _in_background(self._down)

    def _up(self) -> None:
        with _ending(self._server), contextlib.suppress(OSError):
            while piece := self._client.recv(65536):
                self._relay.requests += self._asked(piece)
                self._server.sendall(piece)

    def _down(self) -> None:
        with _ending(self._client), contextlib.suppress(OSError):
            while piece := self._server.recv(65536):
                self._answered = True
                self._client.sendall(piece)

    def _asked(self, piece: bytes) -> int:
        if piece.startswith(_PREFACE):
            self._streams, piece = _Streams(), piece.removeprefix(_PREFACE)
        if self._streams is not None:  # its clients also speak unasked, of pings and windows
            return self._streams.begun(piece)
        before, self._answered = self._answered, False
        return int(before)


class _Streams:
    """The client's half of an HTTP/2 connection: a request begins with a frame of headers."""

    def __init__(self) -> None:
        self._rest = b""

    def begun(self, piece: bytes) -> int:
        self._rest += piece
        count = 0
        while len(self._rest) >= _FRAME_HEAD:
            size = _FRAME_HEAD + int.from_bytes(self._rest[:3])
            if len(self._rest) < size:
                break
            count += self._rest[3] == _HEADERS
            self._rest = self._rest[size:]
        return count


@contextlib.contextmanager
def _ending(end: socket.socket) -> Iterator[None]:
    """Pass the end of one half on to the other side."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_WR)


def _in_background(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()
