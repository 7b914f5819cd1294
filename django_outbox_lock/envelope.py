"""The immutable value that publishers, archives and consumers get of a message."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datetime as dt
    import uuid
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message as it leaves the outbox; the same at every attempt except for ``attempt``.

    ``attempt`` counts from 1. ``created_at`` is the time of the call of ``publish``.
    """

    message_id: uuid.UUID
    topic: str
    key: str | None
    body: bytes
    content_type: str
    headers: Mapping[str, str]
    correlation_id: str
    causation_id: str
    created_at: dt.datetime
    attempt: int = 1

    def json(self) -> Any:
        """The body parsed as JSON. Raises ``ValueError`` when it is something else."""
        return json.loads(self.body)
