"""Which message a consumer was given: its identity in the processing log."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_outbox_lock import keys
from django_outbox_lock.context import handling
from django_outbox_lock.envelope import Envelope

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

CONSUMER_LIMIT = 200
KEY_LIMIT = 255
CORRELATION_LIMIT = 200
STRIPES = 1024


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message to a consumer; ``body_digest`` is empty without an envelope."""

    consumer: str
    key: str
    entry_hash: str
    body_digest: str
    correlation_id: str
    envelope: Envelope | None

    @classmethod
    def of(cls, consumer: str, message: Envelope | str, correlation_id: str | None) -> Delivery:
        """Raises ``TypeError`` or ``ValueError``, which name the argument."""
        envelope = message if isinstance(message, Envelope) else None
        key = check("message", str(envelope.message_id) if envelope else message, KEY_LIMIT)
        consumer = check("consumer", consumer, CONSUMER_LIMIT)
        if correlation_id is None:
            correlation_id = envelope.correlation_id if envelope else ""
        return cls(
            consumer=consumer,
            key=key,
            entry_hash=keys.entry_hash(consumer, key),
            body_digest=hashlib.sha256(envelope.body).hexdigest() if envelope else "",
            correlation_id=correlation_id
            and check("correlation_id", correlation_id, CORRELATION_LIMIT),
            envelope=envelope,
        )

    def __str__(self) -> str:
        return f"message {self.key!r} of consumer {self.consumer!r}"

    @property
    def lock_name(self) -> str:
        """One of 1,024 names, so that the registry of locks does not grow with the messages."""
        return f"idempotency-{int(self.entry_hash[:8], 16) % STRIPES}"

    def context(self) -> AbstractContextManager[None]:
        """What is published inside was caused by this message."""
        return handling(self.envelope) if self.envelope else nullcontext()


def check(argument: str, value: object, limit: int) -> str:
    """``value`` if it is text that every database keeps as it is; of a lazy object, its text.

    ``limit`` counts UTF-16 code units, as SQL Server's columns do.
    """
    if not isinstance(value, str):
        kinds = "an Envelope or a str" if argument == "message" else "a str"
        raise TypeError(f"{argument} must be {kinds}, not {type(value).__name__}.")
    try:
        size = len(value.encode("utf-16-le")) // 2
    except UnicodeEncodeError as error:
        raise ValueError(f"{argument} {value!r} has half of a surrogate pair.") from error
    if not 1 <= size <= limit:
        raise ValueError(f"{argument} must have 1 to {limit} characters, not {size}.")
    if "\0" in value:
        raise ValueError(f"{argument} {value!r} has a NUL character.")
    return value[:]
