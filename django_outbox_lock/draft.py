"""From the arguments of ``publish`` to the values of a row: everything is checked here."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import BigIntegerField, Value
from django.db.models.functions import Greatest
from django.utils import timezone

from django_outbox_lock import codec, context, keys
from django_outbox_lock.clock import SECOND, ServerTime, to_microseconds
from django_outbox_lock.exceptions import PublishError
from django_outbox_lock.ids import uuid7

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC_LIMIT = 200
KEY_LIMIT = 255
ID_LIMIT = 200
HEADERS_LIMIT = 64 * 1024
# Two days off both ends of the calendar: a moment that no time zone can show breaks the pages.
_MARGIN = 2 * 86_400 * SECOND
_EARLIEST = to_microseconds(dt.datetime.min.replace(tzinfo=dt.UTC)) + _MARGIN
_LATEST = to_microseconds(dt.datetime.max.replace(tzinfo=dt.UTC)) - _MARGIN


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be; the fields mean what the arguments of ``publish`` mean."""

    topic: str
    payload: object
    _: KW_ONLY
    key: str | None = None
    headers: Mapping[str, str] | None = None
    content_type: str | None = None
    correlation_id: str | uuid.UUID | None = None
    causation_id: str | uuid.UUID | None = None
    available_at: dt.datetime | None = None
    expires_at: dt.datetime | None = None


def values(draft: Draft, max_bytes: int) -> dict[str, Any]:
    """The columns of the row, with a new message id. Raises ``PublishError``.

    ``max_bytes`` is the largest body that is accepted.
    """
    message_id = uuid7()
    topic = codec.check_text("topic", draft.topic, limit=TOPIC_LIMIT)
    key = None if draft.key is None else codec.check_text("key", draft.key, limit=KEY_LIMIT)
    order_key = None if key is None else keys.order_key(topic, key)
    body, content_type = codec.encode_body(draft.payload, draft.content_type)
    if len(body) > max_bytes:
        raise PublishError(
            f"payload has {len(body)} bytes; the setting PUBLISH max_bytes allows {max_bytes}."
        )
    return {
        "message_id": message_id,
        "topic": topic,
        "key": key,
        "order_key": order_key,
        "slot": keys.slot(order_key, message_id),
        "body": body,
        "content_type": content_type,
        "headers": _headers(draft.headers),
        "created_at": timezone.now(),
        **_flow(draft, message_id),
        **_times(draft),
    }


def _headers(given: Mapping[str, str] | None) -> str:
    headers = codec.check_headers(given)
    text = codec.encode_headers(headers)
    if (size := len(text.encode())) > HEADERS_LIMIT:
        raise PublishError(f"headers have {size} bytes as JSON, more than {HEADERS_LIMIT}.")
    return text if "traceparent" in headers else _traced(headers) or text


def _traced(headers: dict[str, str]) -> str | None:
    """With the headers of the trace; None without one, or with one that cannot be carried."""
    traced = context.trace_headers()
    try:
        text = codec.encode_headers(headers | {k: v for k, v in traced.items() if k not in headers})
    except PublishError:  # the caller did not write it, and its change must not fail over it
        return None
    return text if len(text.encode()) <= HEADERS_LIMIT else None


def _flow(draft: Draft, message_id: uuid.UUID) -> dict[str, str]:
    """Correlation and causation id: given, else of the message being handled, else its own."""
    correlation_id = _id("correlation_id", draft.correlation_id)
    causation_id = _id("causation_id", draft.causation_id)
    if cause := context.current_message():
        correlation_id = correlation_id or cause.correlation_id
        causation_id = causation_id or str(cause.message_id)
    return {"correlation_id": correlation_id or str(message_id), "causation_id": causation_id}


def _id(field: str, value: str | uuid.UUID | None) -> str:
    if value is None:
        return ""
    text = str(value) if isinstance(value, uuid.UUID) else value
    return codec.check_text(field, text, limit=ID_LIMIT)


def _times(draft: Draft) -> dict[str, Any]:
    available_at = _moment("available_at", draft.available_at)
    expires_at = _moment("expires_at", draft.expires_at)
    if available_at is None:
        return {"due_at": ServerTime(), "expires_at": expires_at}
    if expires_at is not None and expires_at <= available_at:
        raise PublishError("expires_at must be later than available_at.")
    # Never before now: a row due in the past would stand before the earlier rows of its key.
    moment = Value(available_at, BigIntegerField())  # else psycopg may bind 32 bits of it
    due_at = Greatest(ServerTime(), moment, output_field=BigIntegerField())
    return {"due_at": due_at, "expires_at": expires_at}


def _moment(field: str, value: dt.datetime | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, dt.datetime):
        raise PublishError(f"{field} must be a datetime, not {type(value).__name__}.")
    return min(max(to_microseconds(value), _EARLIEST), _LATEST)
