"""What every publisher has to do, as a test class to be subclassed (pytest)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
import uuid
from typing import TYPE_CHECKING, Any, ClassVar

from django_outbox_lock.clock import to_datetime, to_microseconds
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Sent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from django_outbox_lock.backends.publishers.base import BasePublisher

BODIES = {
    "empty": b"",
    "NUL": b"a\0b\0",
    "every byte": bytes(range(256)),
    "text": "Grüße, 世界 🐘".encode(),
    "one megabyte": b"x" * 1_000_000,
}
HEADERS = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Grüße": "世界 🐘",
    "empty": "",
    "long": "é" * 2000,
}
_CREATED_AT = to_microseconds(dt.datetime(2025, 2, 3, 4, 5, 6, 789012, tzinfo=dt.UTC))


class PublisherContract:
    """Subclass it, give a fixture ``publisher`` and the hooks below, and pytest does the rest.

    A test whose subject does not exist for the publisher is not collected: set ``refused_topic``
    to None when nothing can be refused, ``has_transport`` to False when there is no way to a
    broker that could break.
    """

    topic: ClassVar[str] = "contract.kept"
    """A topic whose messages the broker keeps; nothing is on it when a test starts."""

    refused_topic: ClassVar[str | None] = "contract.refused"
    """A topic whose messages the broker does not keep."""

    has_transport: ClassVar[bool] = True

    def received(self, count: int) -> Sequence[Envelope]:
        """All that has come in on ``topic`` since the test began, in the order of arrival.

        Waits, within a deadline, until there are at least ``count``.
        """
        raise NotImplementedError

    def cut(self) -> AbstractContextManager[Any]:
        """The broker cannot be reached inside the ``with`` block, by old connections or new."""
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for prefix, applies in (
            ("test_refused", cls.refused_topic is not None),
            ("test_cut", cls.has_transport),
        ):
            for name in dir(cls):
                if name.startswith(prefix) and not applies:
                    setattr(cls, name, None)

    # One outcome for each, in order

    def test_nothing_has_no_outcome(self, publisher: BasePublisher) -> None:
        assert list(publisher.publish_batch([])) == []

    def test_everything_kept_is_sent(self, publisher: BasePublisher) -> None:
        envelopes = [self.envelope(body=b"%d" % number) for number in range(50)]
        assert _publish(publisher, envelopes) == [Sent()] * 50
        assert _bodies(self.received(50)) == _bodies(envelopes)

    def test_order_of_a_key_is_kept(self, publisher: BasePublisher) -> None:
        envelopes = [self.envelope(key="order-1", body=b"%d" % n) for n in range(200)]
        _publish(publisher, envelopes)
        assert _bodies(self.received(200)) == _bodies(envelopes)

    def test_refused_is_not_sent(self, publisher: BasePublisher) -> None:
        outcomes = _publish(publisher, [self.refused()])
        assert not isinstance(outcomes[0], Sent), "a refused message counts as sent"

    def test_refused_holds_back_nobody(self, publisher: BasePublisher) -> None:
        envelopes = [self.refused() if n % 3 == 1 else self.envelope() for n in range(12)]
        outcomes = _publish(publisher, envelopes)
        for number, outcome in enumerate(outcomes):
            assert isinstance(outcome, Sent) is (number % 3 != 1), f"{number}: {outcome!r}"
        kept = [envelope for n, envelope in enumerate(envelopes) if n % 3 != 1]
        assert _ids(self.received(8)) == _ids(kept)

    # What arrives

    def test_bodies_arrive_unchanged(self, publisher: BasePublisher) -> None:
        envelopes = [self.envelope(body=body) for body in BODIES.values()]
        _publish(publisher, envelopes)
        arrived = {envelope.message_id: envelope.body for envelope in self.received(len(BODIES))}
        for name, envelope in zip(BODIES, envelopes, strict=True):
            assert arrived[envelope.message_id] == envelope.body, f"another body: {name}"

    def test_all_else_arrives_unchanged(self, publisher: BasePublisher) -> None:
        full = self.envelope(
            key="Schlüssel 🔑",
            headers=HEADERS,
            content_type="application/vnd.shop+json; charset=utf-8",
            correlation_id="ü" * 200,
            causation_id="c-1",
        )
        bare = self.envelope(key=None)
        _publish(publisher, [full, bare])
        arrived = self.received(2)
        assert arrived[0] == full
        assert arrived[1] == bare

    def test_every_attempt_is_the_same_message(self, publisher: BasePublisher) -> None:
        first = self.envelope(headers=HEADERS)
        _publish(publisher, [first])
        _publish(publisher, [dataclasses.replace(first, attempt=7)])
        one, other = (dataclasses.replace(each, attempt=1) for each in self.received(2))
        assert one == other == first

    # Its life

    def test_works_again_after_close(self, publisher: BasePublisher) -> None:
        publisher.close()
        for _ in range(2):
            assert _publish(publisher, [self.envelope()]) == [Sent()]
            publisher.close()
            publisher.close()
        assert len(self.received(2)) == 2

    def test_serves_another_thread(self, publisher: BasePublisher) -> None:
        outcomes = _publish(publisher, [self.envelope()])
        thread = threading.Thread(
            target=lambda: outcomes.extend(_publish(publisher, [self.envelope()]))
        )
        thread.start()
        thread.join(30)
        assert outcomes == [Sent(), Sent()]

    def test_caller_may_stop(self, publisher: BasePublisher) -> None:
        many = [self.envelope() for _ in range(20)][: publisher.max_batch]
        iterator = iter(publisher.publish_batch(many))
        assert next(iterator) == Sent()
        if hasattr(iterator, "close"):
            iterator.close()
        last = self.envelope()
        assert _publish(publisher, [last]) == [Sent()]
        assert last.message_id in _ids(self.received(2))

    def test_refused_after_a_stop_is_not_sent(self, publisher: BasePublisher) -> None:
        many = [self.envelope() for _ in range(20)][: publisher.max_batch]
        next(iter(publisher.publish_batch(many)))
        outcomes = _publish(publisher, [self.envelope(), self.refused()])
        assert [isinstance(outcome, Sent) for outcome in outcomes] == [True, False]

    # The way to the broker

    def test_cut_off_nothing_is_decided(self, publisher: BasePublisher) -> None:
        _publish(publisher, [self.envelope()])
        with self.cut():
            outcomes, failure = _until_down(publisher, [self.envelope() for _ in range(20)])
        assert isinstance(failure, TransportDown)
        assert outcomes == [], "decided without a way to the broker"

    def test_cut_in_the_middle_claims_only_what_arrived(self, publisher: BasePublisher) -> None:
        envelopes = [self.envelope() for _ in range(200)][: publisher.max_batch]
        iterator = iter(publisher.publish_batch(envelopes))
        outcomes = [next(iterator)]
        with self.cut():
            rest, _ = _collect(iterator)
        outcomes += rest
        sent = [e for e, o in zip(envelopes, outcomes, strict=False) if isinstance(o, Sent)]
        assert set(_ids(sent)) <= set(_ids(self.received(len(sent))))

    def test_cut_and_restored(self, publisher: BasePublisher) -> None:
        envelope = self.envelope()
        with self.cut():
            _until_down(publisher, [envelope])
        assert _publish(publisher, [envelope]) == [Sent()]
        assert _ids(self.received(1)) == [envelope.message_id]

    # What the tests send

    def envelope(self, **fields: Any) -> Envelope:
        """A message for ``topic``, with the given fields."""
        defaults: dict[str, Any] = {
            "message_id": uuid.uuid4(),
            "topic": self.topic,
            "key": None,
            "body": b'{"total": 12}',
            "content_type": "application/json",
            "headers": {},
            "correlation_id": "",
            "causation_id": "",
            "created_at": to_datetime(_CREATED_AT),
        }
        return Envelope(**defaults | fields)

    def refused(self) -> Envelope:
        """A message for ``refused_topic``."""
        return self.envelope(topic=self.refused_topic)


def _publish(publisher: BasePublisher, envelopes: Sequence[Envelope]) -> list[Outcome]:
    """The outcomes of all the envelopes, in calls of at most ``max_batch``."""
    size = publisher.max_batch or len(envelopes)
    outcomes: list[Outcome] = []
    for start in range(0, len(envelopes), size):
        part = envelopes[start : start + size]
        decided = list(publisher.publish_batch(part))
        assert len(decided) == len(part), f"{len(decided)} outcomes for {len(part)} messages"
        outcomes += decided
    return outcomes


def _until_down(
    publisher: BasePublisher, envelopes: Sequence[Envelope]
) -> tuple[list[Outcome], TransportDown | None]:
    try:
        return _collect(publisher.publish_batch(envelopes))
    except TransportDown as failure:
        return [], failure


def _collect(outcomes: Iterable[Outcome]) -> tuple[list[Outcome], TransportDown | None]:
    """The outcomes before the iteration ended, and the ``TransportDown`` that ended it."""
    decided: list[Outcome] = []
    try:
        for outcome in outcomes:
            decided.append(outcome)  # noqa: PERF402 (what came before the failure counts)
    except TransportDown as failure:
        return decided, failure
    return decided, None


def _ids(envelopes: Iterable[Envelope]) -> list[uuid.UUID]:
    return [envelope.message_id for envelope in envelopes]


def _bodies(envelopes: Iterable[Envelope]) -> list[bytes]:
    return [envelope.body for envelope in envelopes]
