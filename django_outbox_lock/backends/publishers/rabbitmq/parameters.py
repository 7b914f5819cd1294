"""Where and how to connect, from a URL and a few options."""

from __future__ import annotations

import os
import socket
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pika

from django_outbox_lock.checked import count, positive

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

_DAY = 86_400
# Two bytes of the protocol.
_LONGEST_HEARTBEAT = 65_535


def parameters(
    url: str, *, connect_timeout: float, confirm_timeout: float, heartbeat: int
) -> pika.URLParameters:
    """One attempt to connect, with every wait bounded. Raises ``ValueError``.

    That includes files of certificates that cannot be read now.
    """
    _check_url(url)
    positive("connect_timeout", connect_timeout, most=_DAY)
    positive("confirm_timeout", confirm_timeout, most=_DAY)
    # Without a heartbeat, a connection that gets no answer would never end.
    count("heartbeat", heartbeat, most=_LONGEST_HEARTBEAT)
    result = _read(url)
    result.socket_timeout = result.stack_timeout = connect_timeout
    result.blocked_connection_timeout = confirm_timeout
    result.heartbeat = heartbeat
    result.client_properties = {**(result.client_properties or {}), **_about_us()}
    return result


def _read(url: str) -> pika.URLParameters:
    try:
        result = pika.URLParameters(url)
    except SyntaxError as error:
        raise ValueError(f"url: ssl_options or another one is no Python value: {error}") from error
    except (OSError, TypeError, AttributeError) as error:
        raise ValueError(f"url: the options behind the question mark: {error}") from error
    # pika cuts it at a slash, and has none for the two slashes that are Celery's default.
    result.virtual_host = unquote(urlsplit(url).path[1:]) or "/"
    return result


def _check_url(url: object) -> None:
    if not isinstance(url, str) or not url:
        raise ValueError(f"url must be amqp:// or amqps://, not {url!r}.")
    try:
        parts = urlsplit(url)
        readable = parts.scheme in {"amqp", "amqps"} and parts.port != 0
    except ValueError:
        readable = False
    if not readable:
        # Not shown, nor what the parser says of it: that may be a part of the password.
        raise ValueError(
            "url must be amqp:// or amqps://, with the special characters of the user and the "
            "password percent-encoded."
        ) from None
    misplaced = _NOT_IN_URL.intersection(parse_qs(parts.query))
    if misplaced:
        names = ", ".join(sorted(misplaced))
        raise ValueError(f"url has {names}: timeouts and heartbeat are options of their own.")


def _about_us() -> dict[str, Any]:
    return {"connection_name": f"django-outbox-lock {socket.gethostname()} {os.getpid()}"}
