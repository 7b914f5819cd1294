"""A server that remembers what reached it, and what a client of it asks and reads."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

QUIET = 0.15


class Echo:
    """A server that remembers what reached it, and answers each piece with ``<piece>``."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.heard: list[bytes] = []
        self.ends: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(65536):
                    self.heard.append(piece)
                    connection.sendall(b"<" + piece + b">")
                self.ends.append("FIN")
            except OSError:
                self.ends.append("RST")

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def ask(connection: socket.socket, question: bytes = b"hello") -> bytes:
    connection.sendall(question)
    return connection.recv(65536)


def read_until_reset(connection: socket.socket) -> bytes:
    got = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(99):
            got += piece
        pytest.fail("the connection was closed, not reset")
    return got


def is_silent(connection: socket.socket) -> bool:
    """Whether the connection is open and nothing comes for a moment."""
    connection.settimeout(QUIET)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)
