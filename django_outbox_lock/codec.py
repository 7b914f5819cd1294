"""Payloads and headers become the bytes and the text that every database gives back unchanged."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from django_outbox_lock.exceptions import PublishError

JSON = "application/json"
BINARY = "application/octet-stream"
CONTENT_TYPE_LIMIT = 100
HEADER_NAME_LIMIT = 200
_CONTROL = frozenset(map(chr, range(32))) | {"\x7f"}
_SHOWN = 100


class ExactEncoder(DjangoJSONEncoder):
    """Django's encoder, but times keep all six digits of their microseconds and their offset."""

    def default(self, o: Any) -> Any:
        if isinstance(o, dt.datetime | dt.time):
            return o.isoformat(timespec="microseconds")
        return super().default(o)


def encode_body(
    payload: object, content_type: str | None = None, *, name: str = "payload"
) -> tuple[bytes, str]:
    """The body and its content type: bytes stay as they are, everything else becomes JSON.

    ``content_type`` names the format of bytes (default ``application/octet-stream``); for JSON it
    may be any media type of JSON (``application/vnd.shop.order+json``). Errors call it ``name``.

    Raises ``PublishError`` for what JSON or UTF-8 cannot carry (NaN, lone surrogates, unknown
    types, circular structures) and for a content type that the body would not have.
    """
    if content_type is not None:
        content_type = check_text("content_type", content_type, limit=CONTENT_TYPE_LIMIT)
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), content_type or BINARY
    if content_type is not None and not _is_json(content_type):
        raise PublishError(
            f"content_type {content_type!r} goes with a payload of bytes: "
            f"this one ({type(payload).__name__}) is written as JSON."
        )
    return _json(payload, name), content_type or JSON


def check_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of the headers in their order, if they are text; raises ``PublishError``."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise PublishError(f"headers must be a mapping, not {type(headers).__name__}.")
    checked = {}
    for name, value in headers.items():
        plain = check_text(f"headers: the name {name!r:.{_SHOWN}}", name, limit=HEADER_NAME_LIMIT)
        checked[plain] = check_text(f"headers[{name!r}]", value)
    return checked


def encode_headers(headers: Mapping[str, str] | None) -> str:
    """The headers as a JSON object of strings in the order given; raises ``PublishError``."""
    return json.dumps(check_headers(headers), ensure_ascii=False, separators=(",", ":"))


def decode_headers(text: str) -> dict[str, str]:
    """The headers of a stored row. Raises ``ValueError`` when the row was damaged."""
    headers = json.loads(text)
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise ValueError("headers are not a JSON object of strings")
    return headers


def check_text(field: str, value: object, *, limit: int | None = None) -> str:
    """``value`` if it is text that every database and broker can carry, else ``PublishError``.

    Of a subclass of ``str``, or of a lazy object that stands for a text, the plain text.
    ``limit`` counts UTF-16 code units, as SQL Server's columns do: the others count characters,
    of which there are never more.
    """
    if not isinstance(value, str):
        raise PublishError(f"{field} must be a str, not {type(value).__name__}.")
    try:
        size = len(value.encode("utf-16-le")) // 2
    except UnicodeEncodeError as error:
        raise PublishError(f"{field} has half of a surrogate pair: {_shown(value)}.") from error
    if limit is not None and not 1 <= size <= limit:
        raise PublishError(f"{field} must have 1 to {limit} characters, not {size}.")
    if not _CONTROL.isdisjoint(value):
        raise PublishError(f"{field} has a control character: {_shown(value)}.")
    return value[:]


def _json(payload: object, name: str) -> bytes:
    try:
        text = json.dumps(
            payload, cls=ExactEncoder, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
        return text.encode()
    except UnicodeEncodeError as error:
        raise PublishError(f"{name} has half of a surrogate pair in a string.") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise PublishError(f"{name} cannot be written as JSON: {error}.") from error


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON or media_type.endswith("+json")


def _shown(value: str) -> str:
    return f"{value!r:.{_SHOWN}}"
