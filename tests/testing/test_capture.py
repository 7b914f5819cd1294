"""``capture_messages``: what was published in a block, and nothing that was rolled back."""
# mypy: allow-untyped-calls

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connection, transaction
from django.test import TestCase, override_settings

from django_outbox_lock import publish
from django_outbox_lock.testing import capture_messages, drain
from tests.factories import OutboxMessageFactory

TWO_OUTBOXES = override_settings(OUTBOX_LOCK={"default": {}, "other": {}})


class InsideATestCase(TestCase):
    def test_case_113_messages_are_visible_in_a_test_case(self) -> None:
        with self.captureOnCommitCallbacks(execute=True), capture_messages() as messages:
            with transaction.atomic():
                message_id = publish("order.placed", {"number": 1}, key="1", headers={"a": "b"})
            assert messages == []
        (message,) = messages
        assert (message.message_id, message.correlation_id) == (message_id, str(message_id))
        assert (message.topic, message.key, message.attempt) == ("order.placed", "1", 1)
        assert (message.json(), message.headers) == ({"number": 1}, {"a": "b"})

    def test_case_109_what_an_inner_block_rolled_back_is_not_among_them(self) -> None:
        with capture_messages() as messages:
            publish_two_and_roll_back_one()
        assert [message.topic for message in messages] == ["kept"]


class InAnAsynchronousTest(TestCase):
    async def test_messages_are_captured_and_drained(self) -> None:
        async with capture_messages() as messages:
            await sync_to_async(publish_two_and_roll_back_one)()
            assert messages == []
        assert [message.topic for message in messages] == ["kept"]
        assert await sync_to_async(drain)() == messages

    async def test_an_exception_in_the_block_does_not_hide_them(self) -> None:
        with pytest.raises(ZeroDivisionError):
            async with capture_messages() as messages:
                await sync_to_async(publish_and_fail)("committed")
        assert [message.topic for message in messages] == ["committed"]

    async def test_a_plain_with_says_what_to_do(self) -> None:
        with pytest.raises(SynchronousOnlyOperation, match="async with"):
            capture_messages().__enter__()


@pytest.mark.django_db(transaction=True)
def test_case_109_outside_a_test_case() -> None:
    with capture_messages() as messages:
        publish_two_and_roll_back_one()
    assert [message.topic for message in messages] == ["kept"]


def publish_two_and_roll_back_one() -> None:
    with transaction.atomic():
        publish("kept", 1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            publish_and_fail("rolled back")


def publish_and_fail(topic: str) -> None:
    with transaction.atomic():
        publish(topic, None)
    raise ZeroDivisionError


@pytest.mark.django_db
def test_only_the_block_counts() -> None:
    OutboxMessageFactory(topic="before")
    with capture_messages() as messages, transaction.atomic():
        for topic in ("first", "second"):
            publish(topic, None)
    OutboxMessageFactory(topic="after")
    assert [message.topic for message in messages] == ["first", "second"]


@pytest.mark.django_db(databases=["default", "other"])
@TWO_OUTBOXES
def test_using_names_the_database() -> None:
    with capture_messages(using="other") as messages:
        for alias in ("default", "other"):
            with transaction.atomic(using=alias):
                publish(f"on {alias}", None, using=alias)
    assert [message.topic for message in messages] == ["on other"]


@pytest.mark.django_db
def test_an_exception_in_the_block_does_not_hide_the_messages() -> None:
    with pytest.raises(ZeroDivisionError), capture_messages() as messages:
        publish_and_fail("committed")
    assert [message.topic for message in messages] == ["committed"]


@pytest.mark.django_db
def test_a_transaction_that_must_be_rolled_back_has_published_nothing() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic(), capture_messages() as messages:
        fail_for_good()
    assert messages == []


def fail_for_good() -> None:
    publish("gone", None)
    transaction.set_rollback(True)
    raise ZeroDivisionError


@pytest.mark.django_db(transaction=True)
def test_an_error_of_the_database_stays_the_one_that_is_raised() -> None:
    with pytest.raises(DatabaseError, match="no_such_table"), transaction.atomic():  # noqa: SIM117
        with capture_messages() as messages, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM no_such_table")
    assert messages == []
