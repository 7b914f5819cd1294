"""Where and how to connect, from a URL and a few options."""

from __future__ import annotations

import os
import socket
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pika

# What pika would read from the URL's query and these options decide.
_NOT_IN_URL = frozenset(
    {
        "blocked_connection_timeout",
        "connection_attempts",
        "heartbeat",
        "retry_delay",
        "socket_timeout",
        "stack_timeout",
    }
)


def parameters(
    url: object, *, connect_timeout: float, confirm_timeout: float, heartbeat: int
) -> pika.URLParameters:
    """One attempt to connect, with every wait bounded. Raises ``ValueError`` or ``TypeError``."""
    if not isinstance(url, str) or not url:
        raise ValueError(f"url must be amqp:// or amqps://, not {url!r}.")
    if heartbeat < 1:
        # Without it, a connection that gets no answer would never end.
        raise ValueError(f"heartbeat must be 1 second or more, not {heartbeat!r}.")
    _check_query(url)
    result = pika.URLParameters(url)
    result.socket_timeout = result.stack_timeout = connect_timeout
    result.blocked_connection_timeout = confirm_timeout
    result.heartbeat = heartbeat
    result.client_properties = {**(result.client_properties or {}), **_about_us()}
    return result


def _check_query(url: str) -> None:
    misplaced = _NOT_IN_URL.intersection(parse_qs(urlsplit(url).query))
    if misplaced:
        names = ", ".join(sorted(misplaced))
        raise ValueError(f"url has {names}: timeouts and heartbeat are options of their own.")


def _about_us() -> dict[str, Any]:
    return {"connection_name": f"django-outbox-lock {socket.gethostname()} {os.getpid()}"}
