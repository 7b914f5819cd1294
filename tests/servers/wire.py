"""The first bytes that servers say to any client: a readiness check and a version, no driver."""

from __future__ import annotations

import re
import socket
import struct
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from email.message import Message

_TIMEOUT = 5.0


def postgresql(port: int) -> dict[str, str]:
    """The parameters that PostgreSQL reports to the user postgres, trusted, at start-up."""
    body = struct.pack("!I", 196608) + b"user\0postgres\0database\0postgres\0\0"
    parameters: dict[str, str] = {}
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT) as connection:
        connection.sendall(struct.pack("!I", len(body) + 4) + body)
        with connection.makefile("rb") as stream:
            while (kind := stream.read(1)) not in b"Z":
                text = stream.read(struct.unpack("!I", stream.read(4))[0] - 4)
                if kind == b"E":
                    raise ConnectionError(text.replace(b"\0", b" ").decode(errors="replace"))
                if kind == b"S":
                    key, value, _ = text.decode().split("\0")
                    parameters[key] = value
    return parameters


def mysql(port: int) -> str:
    """The version in the greeting of MySQL or MariaDB."""
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT) as connection:
        greeting = connection.recv(512)[4:]
    if greeting[:1] != b"\x0a":
        raise ConnectionError(f"no greeting of protocol version 10: {greeting!r}")
    return greeting[1:].split(b"\0")[0].decode().removeprefix("5.5.5-")


def amqp(port: int) -> str:
    """The version in the Connection.Start frame of an AMQP 0-9-1 broker."""
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT) as connection:
        connection.sendall(b"AMQP\0\0\x09\x01")
        frame = connection.recv(4096)
    found = re.search(rb"\x07versionS\0\0\0(.)", frame, re.DOTALL)
    if not found:
        raise ConnectionError(f"no Connection.Start frame with a version: {frame[:80]!r}")
    return frame[found.end() : found.end() + found[1][0]].decode()


def redis(port: int, command: str) -> list[str]:
    """The parts of Redis's answer to a command without spaces in its arguments."""
    with (
        socket.create_connection(("127.0.0.1", port), _TIMEOUT) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(f"{command}\r\n".encode())
        return _redis_parts(stream)


def _redis_parts(stream: IO[bytes]) -> list[str]:
    kind, text = stream.read(1), stream.readline().decode().rstrip()
    if kind == b"*":
        return [part for _ in range(int(text)) for part in _redis_parts(stream)]
    if kind == b"$":
        return [stream.read(int(text) + 2)[:-2].decode()]
    if kind == b"+":
        return [text]
    raise ConnectionError(f"Redis answered {kind + text.encode()!r}")


def http(port: int, path: str = "/", body: str | None = None) -> tuple[Message, str]:
    """The headers and the text of an HTTP server's answer, whatever its status."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.headers, answer.read().decode(errors="replace")
    finally:
        connection.close()


def http_date(port: int) -> float:
    """What an HTTP server takes for the time, in whole seconds since 1970."""
    headers, _ = http(port)
    return parsedate_to_datetime(headers["Date"]).timestamp()
