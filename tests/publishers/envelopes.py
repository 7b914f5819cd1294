"""Envelopes for the tests of publishers."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django_outbox_lock.envelope import Envelope


def make_envelope(**fields: Any) -> Envelope:
    defaults: dict[str, Any] = {
        "message_id": uuid.uuid4(),
        "topic": "order.paid",
        "key": None,
        "body": b'{"total": 12}',
        "content_type": "application/json",
        "headers": {},
        "correlation_id": "",
        "causation_id": "",
        "created_at": dt.datetime(2025, 2, 3, 4, 5, 6, 789012, tzinfo=dt.UTC),
    }
    return Envelope(**defaults | fields)


def make_envelopes(count: int, **fields: Any) -> list[Envelope]:
    return [make_envelope(**fields) for _ in range(count)]
