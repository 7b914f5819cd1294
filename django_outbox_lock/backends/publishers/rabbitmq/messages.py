"""An envelope as an AMQP 0-9-1 message, and back."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pika
from django.utils import timezone

from django_outbox_lock.clock import to_datetime, to_microseconds
from django_outbox_lock.envelope import Envelope

if TYPE_CHECKING:
    from collections.abc import Mapping

# What has no property in AMQP, or one that is too narrow for it, travels as a header.
TOPIC = "outbox-topic"
KEY = "outbox-key"
CORRELATION_ID = "outbox-correlation-id"
CAUSATION_ID = "outbox-causation-id"
CREATED_AT = "outbox-created-at"
_OURS = frozenset({TOPIC, KEY, CORRELATION_ID, CAUSATION_ID, CREATED_AT})

_PERSISTENT = 2
_SHORT = 255  # bytes in a "shortstr": names, routing keys and most properties
_FIELD = 6  # bytes round the name and the value of a header
_OTHER_PROPERTIES = 1024  # bytes; more than they can take together


class Message(NamedTuple):
    """The arguments of ``basic_publish``."""

    exchange: str
    routing_key: str
    body: bytes
    properties: Any

    @property
    def header_size(self) -> int:
        """An upper bound of the bytes of the frame that carries the properties."""
        headers: Mapping[str, str] = self.properties.headers
        fields = (len(n.encode()) + len(v.encode()) + _FIELD for n, v in headers.items())
        return sum(fields) + _OTHER_PROPERTIES


class Received(Protocol):
    """What ``to_envelope`` reads of a client library's properties."""

    message_id: str
    content_type: str
    headers: Mapping[str, Any]


def to_message(envelope: Envelope, exchange: str, routing_key: str) -> Message:
    """The message, the same at every attempt.

    Raises ``ValueError`` for what AMQP cannot carry.
    """
    properties = pika.BasicProperties(
        message_id=str(envelope.message_id),
        content_type=check_short("the content type", envelope.content_type),
        correlation_id=_if_short(envelope.correlation_id),
        timestamp=int(_aware(envelope.created_at).timestamp()),
        delivery_mode=_PERSISTENT,
        headers=_headers(envelope),
    )
    return Message(exchange, check_short("the routing key", routing_key), envelope.body, properties)


def to_envelope(properties: Received, body: bytes) -> Envelope:
    """The envelope that a consumer has received, for ``process_once`` and its kin.

    Raises ``LookupError`` or ``ValueError`` when the message does not come from an outbox.
    """
    if not (properties.message_id and properties.headers):
        raise ValueError("The message has no id or no headers: it does not come from an outbox.")
    headers = dict(properties.headers)
    return Envelope(
        message_id=uuid.UUID(properties.message_id),
        topic=headers[TOPIC],
        key=headers.get(KEY),
        body=body,
        content_type=properties.content_type,
        # What brokers add on the way (x-death and its kin) is no text, and was not published.
        headers={n: v for n, v in headers.items() if n not in _OURS and isinstance(v, str)},
        correlation_id=headers[CORRELATION_ID],
        causation_id=headers[CAUSATION_ID],
        created_at=to_datetime(to_microseconds(dt.datetime.fromisoformat(headers[CREATED_AT]))),
    )


def check_short(what: str, text: str) -> str:
    """``text`` if it fits into a short string; raises ``ValueError`` that names ``what``."""
    size = len(text.encode())
    if size > _SHORT:
        raise ValueError(f"AMQP takes {_SHORT} bytes, but {what} has {size}.")
    return text


def _headers(envelope: Envelope) -> dict[str, str]:
    ours = {
        TOPIC: envelope.topic,
        CORRELATION_ID: envelope.correlation_id,
        CAUSATION_ID: envelope.causation_id,
        CREATED_AT: _aware(envelope.created_at).isoformat(),
    }
    if envelope.key is not None:
        ours[KEY] = envelope.key
    headers = {**envelope.headers, **ours}
    for name in headers:
        check_short(f"the header name {name!r}", name)
    return headers


def _aware(moment: dt.datetime) -> dt.datetime:
    """With its offset: a consumer elsewhere does not know this project's time zone."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def _if_short(text: str) -> str | None:
    return text if text and len(text.encode()) <= _SHORT else None
