"""The handler that the sweeper calls: POST a message to the service that wants it."""

from __future__ import annotations

import http.client
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django.conf import settings

from django_outbox_lock import Rejected, Retry

if TYPE_CHECKING:
    from django_outbox_lock import Envelope

_local = threading.local()
_TIMEOUT = 10.0


def post_order(envelope: Envelope) -> None:
    """Return when the consumer has committed; raise ``Retry`` or ``Rejected`` otherwise."""
    headers = {"Content-Type": envelope.content_type, "Message-Id": str(envelope.message_id)}
    try:
        connection = _connection()
        connection.request("POST", urlsplit(settings.CONSUMER_URL).path, envelope.body, headers)
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException) as error:
        _local.connection = None
        raise Retry(f"the consumer did not answer: {error}") from error
    if response.status >= http.client.INTERNAL_SERVER_ERROR:
        raise Retry(f"the consumer answered {response.status}")
    if response.status >= http.client.BAD_REQUEST:
        raise Rejected(f"the consumer answered {response.status}")


def _connection() -> http.client.HTTPConnection:
    connection: http.client.HTTPConnection | None = getattr(_local, "connection", None)
    if connection is None:
        address = urlsplit(settings.CONSUMER_URL).netloc
        connection = _local.connection = http.client.HTTPConnection(address, timeout=_TIMEOUT)
    return connection
