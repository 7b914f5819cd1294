"""Rows of every table; what a test does not say is what a fresh row of its kind has."""
# mypy: allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.utils import timezone
from factory.declarations import LazyAttribute, LazyFunction, SelfAttribute, Sequence, Trait
from factory.django import DjangoModelFactory

from django_outbox_lock import keys, models
from django_outbox_lock.clock import SECOND, to_microseconds
from django_outbox_lock.ids import uuid7

if TYPE_CHECKING:
    from typing import TypeAlias

    Row: TypeAlias = Any

    class Factory(DjangoModelFactory[Row]):
        """The stubs' generic base; at run time the class takes no parameter."""
else:
    Factory = DjangoModelFactory


def now() -> int:
    """This host's clock, which the test servers share, in microseconds since 1970 UTC.

    In whole milliseconds, like SQLite's clock, which would else say that this is yet to come.
    """
    return to_microseconds(timezone.now()) // 1000 * 1000


class ImmutableFactory(Factory):
    class Meta:
        abstract = True

    message_id = LazyFunction(uuid7)
    topic = "order.created"
    key = None
    order_key = LazyAttribute(
        lambda row: None if row.key is None else keys.order_key(row.topic, row.key)
    )
    slot = LazyAttribute(lambda row: keys.slot(row.order_key, row.message_id))
    body = b'{"number":1}'
    content_type = "application/json"
    headers = "{}"
    correlation_id = LazyAttribute(lambda row: str(row.message_id))
    causation_id = ""


class OutboxMessageFactory(ImmutableFactory):
    """Outstanding and due now; with ``dispatched=True`` or ``dead=True`` settled now."""

    class Meta:
        model = models.OutboxMessage

    class Params:
        dispatched = Trait(
            state=models.OutboxMessage.State.DISPATCHED,
            due_at=None,
            settled_at=LazyFunction(now),
            attempts=1,
        )
        dead = Trait(
            state=models.OutboxMessage.State.DEAD,
            due_at=None,
            settled_at=LazyFunction(now),
            attempts=1,
            dead_reason="rejected",
            last_error="the broker refuses it",
        )

    due_at = LazyFunction(now)


class ArchivedMessageFactory(ImmutableFactory):
    class Meta:
        model = models.ArchivedMessage

    settled_at = LazyFunction(now)
    attempts = 1


class ProcessingLogFactory(Factory):
    class Meta:
        model = models.ProcessingLog

    consumer = "billing"
    key = LazyFunction(lambda: str(uuid7()))
    entry_hash = LazyAttribute(lambda row: keys.entry_hash(row.consumer, row.key))
    status = models.ProcessingLog.Status.DONE
    correlation_id = SelfAttribute("key")


class LockFactory(Factory):
    """Free and never held; with ``held=True`` under a lease of a minute that began now."""

    class Meta:
        model = models.Lock

    class Params:
        held = Trait(
            token=1,
            owner=LazyFunction(lambda: uuid7().hex),
            backend="lease",
            host="host-1",
            pid=4711,
            application="runsweeper",
            lease=60 * SECOND,
            acquired_at=LazyFunction(now),
            last_seen_at=LazyFunction(now),
            expires_at=LazyAttribute(lambda row: row.acquired_at + row.lease),
        )

    resource = Sequence("resource-{}".format)
    id = LazyAttribute(lambda row: keys.resource_id(row.resource))
    token = 0


class HoldFactory(Factory):
    class Meta:
        model = models.Hold

    order_key = Sequence(lambda number: keys.order_key("order.created", str(number)))
    head_id = Sequence(lambda number: number + 1)
    reason = "the head failed"


class TopicStateFactory(Factory):
    """Closed; with ``open=True`` open for a minute from now."""

    class Meta:
        model = models.TopicState

    class Params:
        open = Trait(
            breaker=models.TopicState.Breaker.OPEN,
            openings=1,
            open_until=LazyFunction(lambda: now() + 60 * SECOND),
            last_error="the broker is away",
        )

    topic = Sequence("topic-{}".format)
    id = LazyAttribute(lambda row: keys.topic_id(row.topic))
