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
_CONTROL = frozenset(map(chr, range(32))) | {"\x7f"}


class ExactEncoder(DjangoJSONEncoder):
    """Django's encoder, but times keep their microseconds and their offset as they are."""

    def default(self, o: Any) -> Any:
        if isinstance(o, dt.datetime | dt.date | dt.time):
            return o.isoformat()
        return super().default(o)


def encode_body(payload: object) -> tuple[bytes, str]:
    """The body and its content type: bytes stay as they are, everything else becomes JSON.

    Raises ``PublishError`` for what JSON or UTF-8 cannot carry (NaN, lone surrogates, unknown
    types, circular structures).
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), BINARY
    try:
        text = json.dumps(
            payload, cls=ExactEncoder, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
        return text.encode(), JSON
    except UnicodeEncodeError as error:
        raise PublishError(f"payload has half of a surrogate pair: {error.reason}.") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise PublishError(f"payload cannot be written as JSON: {error}.") from error


def encode_headers(headers: Mapping[str, str] | None) -> str:
    """The headers as a JSON object of strings in the order given; raises ``PublishError``."""
    checked = {}
    for name, value in (headers or {}).items():
        checked[check_text(f"headers name {name!r}", name)] = check_text(
            f"headers[{name!r}]", value
        )
    return json.dumps(checked, ensure_ascii=False)


def decode_headers(text: str) -> dict[str, str]:
    """The headers of a stored row. Raises ``ValueError`` when the row was damaged."""
    headers = json.loads(text)
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise ValueError("headers are not a JSON object of strings")
    return headers


def check_text(field: str, value: object, *, limit: int | None = None) -> str:
    """``value`` if it is text that every database and broker can carry, else ``PublishError``."""
    if not isinstance(value, str):
        raise PublishError(f"{field} must be a str, not {type(value).__name__}.")
    if limit is not None and not 1 <= len(value) <= limit:
        raise PublishError(f"{field} must have 1 to {limit} characters, not {len(value)}.")
    if not _CONTROL.isdisjoint(value):
        raise PublishError(f"{field} has a control character: {value!r}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PublishError(f"{field} has half of a surrogate pair: {value!r}.") from error
    return value
