"""An outbox as on a working day, for the browser tests and the pictures in the documentation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django_outbox_lock import keys
from django_outbox_lock.clock import SECOND
from django_outbox_lock.querysets.parking import behind_key, behind_topic
from tests.factories import (
    ArchivedMessageFactory,
    HoldFactory,
    LockFactory,
    OutboxMessageFactory,
    ProcessingLogFactory,
    TopicStateFactory,
    now,
)

if TYPE_CHECKING:
    from django_outbox_lock.models import OutboxMessage

MINUTE = 60 * SECOND
ORDER = {
    "order": "S-10482",
    "customer": {"id": 9007199254740993, "name": "Zoë Müller"},
    "lines": [
        {"sku": "TEA-250", "quantity": 2, "price": "12.90"},
        {"sku": "CUP-01", "quantity": 1, "price": "24.00"},
    ],
    "total": "49.80",
    "placed_at": "2026-11-30T10:15:42.001200+00:00",
}
REFUSED = "422 from billing: the customer S-10471 has no billing address"


def fill() -> OutboxMessage:
    """Messages in every state, holds, topics, an archive and a log; returns a dead message."""
    for number in range(10440, 10445):
        OutboxMessageFactory.create(topic="order.created", key=f"S-{number}", dispatched=True)
    dead = OutboxMessageFactory.create(
        topic="order.paid",
        key="S-10471",
        dead=True,
        attempts=10,
        last_error=REFUSED,
        dead_reason="10 attempts failed",
        body=json.dumps(ORDER, ensure_ascii=False, separators=(",", ":")).encode(),
        headers='{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",'
        '"x-tenant":"north"}',
    )
    HoldFactory.create(order_key=dead.order_key, head_id=dead.pk, reason="10 attempts failed")
    parked = keys.order_key("order.paid", "S-10471")
    OutboxMessageFactory.create(topic="order.paid", key="S-10471", due_at=behind_key(parked))
    OutboxMessageFactory.create(
        topic="order.paid",
        key="S-10477",
        attempts=3,
        due_at=now() + 4 * MINUTE,
        last_error="timed out after 30 s",
    )
    for number in range(2):
        OutboxMessageFactory.create(
            topic="stock.moved", key=f"TEA-{number}", due_at=behind_topic("stock")
        )
    OutboxMessageFactory.create(topic="newsletter", due_at=now() + 26 * 60 * MINUTE)
    OutboxMessageFactory.create_batch(3, topic="order.created")
    TopicStateFactory.create(topic="stock.moved", open=True, failures=7)
    TopicStateFactory.create(topic="order.created")
    ArchivedMessageFactory.create_batch(8, key="S-10380")
    ProcessingLogFactory.create_batch(6)
    ProcessingLogFactory.create(status="failed", last_error="no such customer", attempts=2)
    return dead  # type: ignore[no-any-return]  # factory-boy


def fill_registry() -> None:
    """Resources that nobody holds now, and one whose lease ran out."""
    past = now() - 7 * MINUTE
    last = {"host": "web-1", "pid": 812, "application": "runarchiver", "backend": "lease"}
    times = {"acquired_at": past, "last_seen_at": past + 9 * SECOND, "lease": MINUTE}
    LockFactory.create(resource="Archiver", token=118, **last, **times)
    LockFactory.create(
        resource="nightly-report",
        held=True,
        token=31,
        host="worker-7",
        application="runlocked nightly-report",
        acquired_at=past,
        last_seen_at=past + 20 * SECOND,
    )


def fill_with_long_texts() -> list[Any]:
    """A row of each table, with texts as long as they can be, without a blank, and in HTML."""
    topic = "<script>fail()</script>".ljust(200, "t")
    key = "<b>k</b>".ljust(255, "k")
    error = "<img src=x onerror=fail()>".ljust(2000, "e")
    body = b'{"a":"' + b"<script>" * 20_000 + b'"}'
    headers = json.dumps({"h" * 100: "<script>".ljust(900, "v")})
    dead = OutboxMessageFactory.create(
        topic=topic, key=key, dead=True, last_error=error, body=body, headers=headers
    )
    return [
        dead,
        HoldFactory.create(order_key=dead.order_key, head_id=dead.pk, reason="r" * 200),
        TopicStateFactory.create(topic=topic, open=True, last_error=error),
        ArchivedMessageFactory.create(topic=topic, key=key, body=body),
        ProcessingLogFactory.create(
            key=key,
            correlation_id="",
            consumer="c" * 100,
            status="failed",
            last_error=error,
            result=b"\xff\x00" * 900,
        ),
        LockFactory.create(
            resource="<script>".ljust(255, "r"),
            held=True,
            host="h" * 255,
            application="a" * 200,
            token=10**15,
        ),
    ]
