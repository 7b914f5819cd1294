"""The first bytes that servers say to any client: a readiness check and a version, no driver."""

from __future__ import annotations

import re
import socket
import struct

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
