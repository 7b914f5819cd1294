"""``drain``: what is due is sent on the test's thread, to nobody real."""
# mypy: allow-untyped-calls

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from django_outbox_lock import Envelope, LockNotObtained, Rejected, Retry, publish
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.backends.publishers.console import ConsolePublisher
from django_outbox_lock.backends.publishers.memory import MemoryPublisher
from django_outbox_lock.exceptions import InvalidSettings
from django_outbox_lock.models import Lock, OutboxMessage
from django_outbox_lock.testing import capture_messages, drain, override_outbox
from testproject.shop.models import Order
from tests.factories import OutboxMessageFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

CALLABLE = "django_outbox_lock.backends.publishers.callables.CallablePublisher"
RABBIT = "django_outbox_lock.backends.publishers.rabbitmq.RabbitMQPublisher"
State = OutboxMessage.State

handled: list[Envelope] = []
threads: set[int] = set()


def handle(envelope: Envelope) -> None:
    handled.append(envelope)
    threads.add(threading.get_ident())


def create_order(envelope: Envelope) -> None:
    with transaction.atomic():
        Order.objects.create(number=envelope.json(), total=1)
        publish("invoice.wanted", envelope.json())


def busy(envelope: Envelope) -> None:
    raise Retry("busy")


def refuse(envelope: Envelope) -> None:
    raise Rejected("never")


def functions(**by_topic: Any) -> dict[str, Any]:
    return {"default": {"BACKEND": CALLABLE, "OPTIONS": {"handlers": by_topic}}}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    handled.clear()
    threads.clear()
    MemoryPublisher.reset()


class AnyTestCase:
    """The same inside a ``TestCase`` and outside a transaction."""

    @override_outbox(PUBLISHERS=functions(**{"*": handle}))
    def test_case_113_handlers_run_on_this_thread(self) -> None:
        with transaction.atomic():
            publish("order.placed", {"number": 1}, key="1")
            publish("order.placed", {"number": 2}, key="1")
        sent = drain()
        assert [envelope.json() for envelope in sent] == [{"number": 1}, {"number": 2}]
        assert (handled, threads) == (sent, {threading.get_ident()})
        assert {row.state for row in OutboxMessage.objects.all()} == {State.DISPATCHED}
        assert drain() == []

    @override_outbox(PUBLISHERS=functions(**{"*": handle}))
    def test_case_109_what_was_rolled_back_is_not_sent(self) -> None:
        with transaction.atomic():
            publish("kept", None)
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                _ = publish("rolled back", None).int / 0
        assert [envelope.topic for envelope in drain()] == ["kept"]

    @override_outbox(PUBLISHERS=functions(**{"order.*": create_order, "*": handle}))
    def test_it_goes_on_until_nothing_is_due(self) -> None:
        with transaction.atomic():
            message_id = publish("order.placed", "A-1")
        with capture_messages() as caused:
            assert [envelope.topic for envelope in drain()] == ["order.placed", "invoice.wanted"]
        assert [envelope.causation_id for envelope in caused] == [str(message_id)]
        assert Order.objects.get().number == "A-1"


class InsideATestCase(AnyTestCase, TestCase):
    pass


class OutsideATransaction(AnyTestCase, TransactionTestCase):
    pass


@pytest.mark.django_db
def test_nothing_leaves_the_process() -> None:
    rabbit = {"BACKEND": RABBIT, "OPTIONS": {"url": "amqp://127.0.0.1:1/"}}
    OutboxMessageFactory()
    with override_outbox(PUBLISHERS={"rabbit": rabbit}, ROUTES={"*": "rabbit"}):
        assert drain() == MemoryPublisher.outbox != []


@pytest.mark.django_db
def test_no_publisher_needs_to_be_set(settings: Settings) -> None:
    settings.OUTBOX_LOCK = {}
    OutboxMessageFactory()
    assert len(drain()) == 1


@pytest.mark.django_db
@override_outbox(PUBLISHERS=functions(**{"busy": busy, "refused": refuse, "*": handle}))
def test_only_what_was_sent_is_returned() -> None:
    for topic in ("busy", "refused", "fine"):
        OutboxMessageFactory(topic=topic)
    assert [envelope.topic for envelope in drain()] == ["fine"]
    rows = {row.topic: row for row in OutboxMessage.objects.all()}
    assert {topic: row.state for topic, row in rows.items()} == {
        "busy": State.OUTSTANDING,
        "refused": State.DEAD,
        "fine": State.DISPATCHED,
    }
    assert (rows["busy"].attempts, rows["busy"].last_error) == (1, "busy")


@pytest.mark.django_db
@override_outbox(PUBLISHERS=functions(**{"*": handle}))
def test_what_becomes_of_a_message_can_be_scripted() -> None:
    OutboxMessageFactory()
    MemoryPublisher.script(Rejected("no such account"))
    assert drain(publisher=MemoryPublisher()) == handled == []
    assert OutboxMessage.objects.get().last_error == "no such account"


@pytest.mark.django_db
def test_a_given_publisher_gets_all_topics(capsys: pytest.CaptureFixture[str]) -> None:
    OutboxMessageFactory(topic="to.the.console")
    assert len(drain(publisher=ConsolePublisher())) == 1
    assert "Topic: to.the.console" in capsys.readouterr().out


@pytest.mark.django_db(databases=["default", "other"])
def test_using_names_the_database() -> None:
    with override_outbox("other"):
        OutboxMessageFactory()
        other = OutboxMessageFactory.create(topic="on other")
        other.pk, other.id = None, None
        other.save(using="other", force_insert=True)
        assert [envelope.topic for envelope in drain(using="other")] == ["on other"]


@pytest.mark.django_db
def test_a_message_that_is_not_due_yet_waits() -> None:
    OutboxMessageFactory(due_at=2**60)
    assert drain() == []


@pytest.mark.django_db
def test_somebody_else_who_sweeps_is_named() -> None:
    elsewhere = MemoryLock("default", namespace="another process")
    handle = elsewhere.obtain("OutboxSweeper")
    assert handle is not None
    OutboxMessageFactory()
    with pytest.raises(LockNotObtained, match=r"OutboxSweeper is held by .*pid"):
        drain()
    assert handle.release()
    assert len(drain()) == 1
    assert Lock.objects.get().owner is None


@pytest.mark.django_db
@override_outbox(SWEEPER={"batch_sise": 3})
def test_wrong_settings_are_named() -> None:
    with pytest.raises(InvalidSettings, match=r"\['SWEEPER'\]\['batch_sise'\].*'batch_size'"):
        drain()
