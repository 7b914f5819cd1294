"""An outbox whose publisher does what the test says, and a sweeper for it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_outbox_lock.engines.sweeper import Sweeper
from django_outbox_lock.models import Hold, OutboxMessage, TopicState
from django_outbox_lock.outbox import publish
from django_outbox_lock.outcomes import Sent
from django_outbox_lock.querysets import PARKED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from django_outbox_lock.envelope import Envelope

SCRIPTED = "tests.engines.publishers.Scripted"


@dataclass
class Outbox:
    """What a test writes into the outbox, and what it finds there."""

    settings: Any
    stack: ExitStack
    calls: list[list[Any]] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)
    behave: Callable[[Envelope], Any] | None = None

    def configure(self, backend: str = SCRIPTED, *, options: Any = None, **sections: Any) -> None:
        """Set OUTBOX_LOCK with one publisher, whose options are ours unless given."""
        given = {"behave": self._ask, "calls": self.calls} if options is None else options
        publishers = {"default": {"BACKEND": backend, "OPTIONS": given}}
        self.settings.OUTBOX_LOCK = {"default": {"PUBLISHERS": publishers, **sections}}

    def _ask(self, envelope: Envelope) -> Any:
        self.seen.append(envelope.json())
        outcome = (self.behave(envelope) if self.behave else None) or Sent()
        if isinstance(outcome, Sent):
            self.sent.append(envelope.json())
        return outcome

    def write(self, *payloads: Any, key: str | None = None, topic: str = "t", **more: Any) -> None:
        """One transaction with a message for each payload."""
        with transaction.atomic():
            for payload in payloads:
                publish(topic, payload, key=key, **more)

    def sweeper(self, **options: Any) -> Sweeper:
        """A sweeper that is closed at the end of the test."""
        sweeper = Sweeper.from_settings("default", **{"backoff_jitter": 0.0, **options})
        self.stack.callback(sweeper.close)
        return sweeper

    def row(self, payload: Any) -> OutboxMessage:
        """The row of the message with this payload."""
        rows: Iterable[OutboxMessage] = OutboxMessage.objects.all()
        return next(row for row in rows if row_payload(row) == payload)

    def states(self) -> dict[Any, int]:
        """The state of each message by payload."""
        return {row_payload(row): row.state for row in OutboxMessage.objects.order_by("id")}

    def parked(self) -> list[Any]:
        """The payloads of the parked messages, in their order."""
        rows = OutboxMessage.objects.filter(due_at__gte=PARKED).order_by("id")
        return [row_payload(row) for row in rows]

    def hold(self) -> Hold:
        """The only hold."""
        return Hold.objects.get()

    def topic(self, topic: str = "t") -> TopicState:
        """The state of a topic."""
        return TopicState.objects.get(topic=topic)

    def make_due(self, **which: Any) -> None:
        """Let the time of the waiting (not the parked) messages come."""
        waiting = OutboxMessage.objects.filter(due_at__lt=PARKED, **which)
        waiting.update(due_at=1)

    def pass_cooldown(self) -> None:
        """Let the time of every open topic come."""
        TopicState.objects.filter(open_until__gt=0).update(open_until=1)


def row_payload(row: OutboxMessage) -> Any:
    return json.loads(bytes(row.body))


@pytest.fixture
def outbox(settings: Any, transactional_db: None) -> Iterator[Outbox]:
    with ExitStack() as stack:
        outbox = Outbox(settings, stack)
        outbox.configure()
        yield outbox
