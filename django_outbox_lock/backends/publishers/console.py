"""Messages are printed: for development."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, TextIO

from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Sent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_outbox_lock.envelope import Envelope

_LINE = "-" * 72


class ConsolePublisher(BasePublisher):
    """Prints a block for each message to ``stream``, by default the standard output."""

    one_by_one = True

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream = stream

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        """``Sent`` for each message once it is printed."""
        stream = self._stream or sys.stdout
        for envelope in envelopes:
            try:
                stream.write(_writable(_block(envelope), stream))
                stream.flush()
            except OSError as error:
                raise TransportDown(f"The output cannot be written: {error}") from error
            yield Sent()


def _writable(text: str, stream: TextIO) -> str:
    """What the stream's encoding cannot carry becomes an escape: it is no message's fault."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _block(envelope: Envelope) -> str:
    facts = {
        "Topic": envelope.topic,
        "Key": envelope.key,
        "Message id": envelope.message_id,
        "Correlation id": envelope.correlation_id,
        "Causation id": envelope.causation_id,
        "Created at": envelope.created_at.isoformat(),
        "Attempt": envelope.attempt,
        "Content type": envelope.content_type,
        **envelope.headers,
    }
    lines = [f"{name}: {value}" for name, value in facts.items() if value not in {None, ""}]
    return "\n".join([*lines, "", _readable(envelope), _LINE, ""])


def _readable(envelope: Envelope) -> str:
    """The body as indented JSON or text, or its length and first bytes where it is neither."""
    try:
        return json.dumps(envelope.json(), indent=2, ensure_ascii=False)
    except ValueError:
        return _text(envelope.body)


def _text(body: bytes) -> str:
    with contextlib.suppress(UnicodeDecodeError):
        text = body.decode()
        if "".join(text.split()).isprintable():
            return text
    return f"{len(body)} bytes: {body[:32].hex(' ')} …"
