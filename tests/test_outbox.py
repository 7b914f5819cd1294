"""``publish``: the message and the business change are one."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, transaction
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox_lock.clock import SECOND, to_microseconds
from django_outbox_lock.exceptions import (
    InvalidAlias,
    InvalidSettings,
    NotInTransaction,
    PublishError,
)
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.outbox import Draft, publish, publish_many
from testproject.shop.models import Order
from tests.sessions import binding_on_the_server
from tests.test_clock import server_time

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from tests.conftest import WaitUntil

BOTH = pytest.mark.django_db(databases=["default", "other"])
TWO_OUTBOXES = override_settings(OUTBOX_LOCK={"default": {}, "other": {}})


class ToOther:
    """A router that sends our tables to the second database."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model is OutboxMessage else None


def topics() -> list[str]:
    return list(OutboxMessage.objects.order_by("id").values_list("topic", flat=True))


def body_of(message_id: uuid.UUID) -> bytes:
    return bytes(OutboxMessage.objects.get(message_id=message_id).body)


def test_the_front_door_opens_without_settings() -> None:
    """An app that is listed before ours may import ``publish`` at the top of its models."""
    code = "from django_outbox_lock.outbox import publish, publish_many, Draft"
    env = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=30)


@pytest.mark.django_db
def test_one_row_with_all_that_was_given() -> None:
    """Case 111: the id is known at the call and is the one of the row."""
    noon = dt.datetime(2126, 1, 1, 12, tzinfo=dt.UTC)
    with transaction.atomic():
        message_id = publish(
            "order.created",
            b"<order/>",
            key="42",
            headers={"b": "1", "a": "é"},
            content_type="application/xml",
            correlation_id="flow",
            causation_id="cause",
            available_at=noon,
            expires_at=noon + dt.timedelta(days=1),
        )
    row = OutboxMessage.objects.get()
    assert row.message_id == message_id
    assert (row.topic, row.key, row.headers) == ("order.created", "42", '{"b":"1","a":"é"}')
    assert (bytes(row.body), row.content_type) == (b"<order/>", "application/xml")
    assert (row.correlation_id, row.causation_id) == ("flow", "cause")
    assert row.due_at == to_microseconds(noon)
    assert row.expires_at == to_microseconds(noon) + 86_400 * SECOND
    assert (row.state, row.attempts, row.settled_at) == (OutboxMessage.State.OUTSTANDING, 0, None)
    assert (row.last_error, row.dead_reason) == ("", "")
    assert abs(timezone.now() - row.created_at) < dt.timedelta(seconds=10)


@pytest.mark.django_db
def test_one_statement_and_nothing_after_the_commit() -> None:
    """Case 113: in a TestCase the message is there, and nothing waits for a commit."""
    with transaction.atomic():
        connection.savepoint()
        with CaptureQueriesContext(connection) as statements:
            publish("order.created", {"a": 1}, key="42")
            publish("order.created", {"a": 1}, available_at=timezone.now())
    assert [s["sql"].split()[0] for s in statements] == ["INSERT", "INSERT"]
    assert connection.run_on_commit == []
    assert len(topics()) == 2


@BOTH
def test_outside_a_transaction_it_refuses_and_names_those_that_are() -> None:
    with pytest.raises(NotInTransaction, match=r"publish\(\) .* on 'default'.* now: none\."):
        publish("order.created", {})
    with (
        transaction.atomic(using="other"),
        pytest.raises(NotInTransaction, match=r"publish_many\(\) .* on 'default'.* now: 'other'"),
    ):
        publish_many([Draft("order.created", {})])
    assert topics() == []


@pytest.mark.django_db(transaction=True)
def test_without_autocommit_the_connection_is_inside_one() -> None:
    connection.set_autocommit(False)
    try:
        publish("rolled back", {})
        connection.rollback()
        publish_many([Draft("committed", {})])
        connection.commit()
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert topics() == ["committed"]


@transaction.atomic
def change_and_fail(*changes: Callable[[], object]) -> None:
    for change in changes:
        change()
    raise LookupError


def inner_block_rolls_back() -> None:
    with transaction.atomic():
        publish("outer", {})
        with pytest.raises(LookupError):
            change_and_fail(lambda: publish("inner", {}))
    assert topics() == ["outer"]


class InnerBlockInTestCase(TestCase):
    def test_a_rolled_back_block_leaves_nothing(self) -> None:
        """Case 109, inside a TestCase."""
        inner_block_rolls_back()


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_block_leaves_nothing() -> None:
    """Case 109, in real transactions; case 015: gaps in the ids hold nothing up."""
    for _ in range(3):
        with pytest.raises(LookupError):
            change_and_fail(lambda: publish("gap", {}))
    inner_block_rolls_back()
    assert OutboxMessage.objects.filter(due_at__lte=server_time()).count() == 1


@pytest.mark.django_db(transaction=True)
def test_message_and_business_change_are_one() -> None:
    with pytest.raises(LookupError):
        change_and_fail(
            lambda: Order.objects.create(number="1", total=1),
            lambda: publish("order.created", {"number": "1"}),
        )
    with transaction.atomic():
        Order.objects.create(number="2", total=1)
        message_id = publish("order.created", {"number": "2"})
    assert list(Order.objects.values_list("number", flat=True)) == ["2"]
    assert body_of(message_id) == b'{"number":"2"}'


@pytest.mark.django_db
def test_due_is_the_servers_clock_at_the_statement(wait_until: WaitUntil) -> None:
    with transaction.atomic():
        publish("first", {})
        started = server_time()
        wait_until(lambda: server_time() > started + 20_000, what="20 ms by the server's clock")
        publish("second", {}, available_at=dt.datetime(1999, 1, 1, tzinfo=dt.UTC))
        publish("third", {})
    first, second, third = [row.due_at or 0 for row in OutboxMessage.objects.order_by("id")]
    assert 0 < first <= started
    assert started + 20_000 <= second <= third <= server_time()


@pytest.mark.django_db(transaction=True)
def test_delayed_message_is_late_where_the_server_binds_parameters() -> None:
    """A moment that Django takes for a small integer is cut to 32 bits on its way (psycopg)."""
    tomorrow = timezone.now() + dt.timedelta(days=1)
    with binding_on_the_server():
        with transaction.atomic():
            publish("order.created", {}, available_at=tomorrow)
        assert OutboxMessage.objects.get().due_at == to_microseconds(tomorrow)


@pytest.mark.django_db(transaction=True)
def test_in_an_event_loop_it_says_what_to_do() -> None:
    @transaction.atomic
    def change() -> None:
        publish("order.created", {})

    async def view() -> None:
        for function in (lambda: publish("x", {}), lambda: publish_many([])):
            with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
                function()
        await sync_to_async(change)()

    async_to_sync(view)()
    assert topics() == ["order.created"]


@BOTH
@TWO_OUTBOXES
def test_the_second_database_has_its_own_outbox() -> None:
    with transaction.atomic(using="other"):
        message_id = publish("order.created", {}, using="other")
    assert topics() == []
    assert OutboxMessage.objects.using("other").get().message_id == message_id


@BOTH
@TWO_OUTBOXES
def test_routers_choose_when_nobody_else_does() -> None:
    with override_settings(DATABASE_ROUTERS=["tests.test_outbox.ToOther"]):
        with transaction.atomic(using="other"):
            publish("routed", {})
        with transaction.atomic(using="default"):
            publish("asked for", {}, using="default")
            with pytest.raises(NotInTransaction, match=r"on 'other'.* now: 'default'"):
                publish("refused", {})
    assert OutboxMessage.objects.using("default").get().topic == "asked for"
    assert OutboxMessage.objects.using("other").get().topic == "routed"


@BOTH
def test_an_alias_without_an_outbox_is_refused() -> None:
    """Nobody would ever sweep it, wherever the alias comes from."""
    with transaction.atomic(using="other"):
        with pytest.raises(InvalidAlias, match="'other' has no outbox"):
            publish("lost", {}, using="other")
        with (
            override_settings(DATABASE_ROUTERS=["tests.test_outbox.ToOther"]),
            pytest.raises(InvalidAlias, match="'other' has no outbox"),
        ):
            publish("lost", {})
    with pytest.raises(InvalidAlias, match="'nowhere' has no outbox"):
        publish("lost", {}, using="nowhere")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_byte": 1}, r"\['max_byte'\] is not known. Did you mean 'max_bytes'\?"),
        ({"max_bytes": 0}, ": max_bytes must be a whole number of at least 1, not 0"),
        ({"max_bytes": "5M"}, ": max_bytes must be a whole number of at least 1, not '5M'"),
    ],
)
@pytest.mark.django_db
def test_a_wrong_setting_is_named(options: dict[str, Any], words: str) -> None:
    with (
        override_settings(OUTBOX_LOCK={"default": {"PUBLISH": options}}),
        transaction.atomic(),
        pytest.raises(InvalidSettings, match=rf"^OUTBOX_LOCK\['default'\]\['PUBLISH'\]{words}"),
    ):
        publish("order.created", {})


@pytest.mark.django_db
def test_the_size_limit_is_a_setting() -> None:
    limit = {"default": {"PUBLISH": {"max_bytes": 10}}}
    with override_settings(OUTBOX_LOCK=limit), transaction.atomic():
        publish("fits", b"x" * 10)
        with pytest.raises(PublishError, match="payload has 11 bytes"):
            publish("too large", b"x" * 11)
    assert topics() == ["fits"]


@pytest.mark.django_db
def test_many_come_back_in_the_order_of_the_list() -> None:
    """Case 097: the ids are known on every database."""
    with transaction.atomic():
        ids = publish_many(Draft("order.created", number) for number in range(100))
    rows = OutboxMessage.objects.order_by("id").values_list("message_id", "body")
    assert [row[0] for row in rows] == ids
    assert [bytes(row[1]) for row in rows] == [b"%d" % number for number in range(100)]


@pytest.mark.django_db
def test_of_many_none_is_written_when_one_is_refused() -> None:
    drafts: list[Any] = [Draft("a", {}), Draft("b", {}, key="")]
    with transaction.atomic():
        with pytest.raises(PublishError, match=r"^drafts\[1\]: key must have 1 to 255"):
            publish_many(drafts)
        with pytest.raises(PublishError, match=r"^drafts\[1\] must be a Draft, not dict"):
            publish_many([drafts[0], {"topic": "b"}])  # type: ignore[list-item]
        assert publish_many([]) == []
    assert topics() == []


@pytest.mark.django_db
@pytest.mark.parametrize("batch_size", [0, -1, 1.5, "10", None])
def test_a_batch_size_that_is_none_is_refused(batch_size: Any) -> None:
    with transaction.atomic(), pytest.raises(ValueError, match="batch_size must be a whole"):
        publish_many([], batch_size=batch_size)


@pytest.mark.django_db(transaction=True)
def test_twenty_writers_at_once() -> None:
    """Each with a connection of its own; each one's messages stand in its order."""
    barrier = threading.Barrier(20)

    def write(writer: int) -> list[uuid.UUID]:
        try:
            barrier.wait(30)
            ids = []
            for number in range(5):
                with transaction.atomic():
                    ids.append(publish("order.created", number, key=f"writer {writer}"))
            return ids
        finally:
            connections.close_all()

    with ThreadPoolExecutor(20) as pool:
        written = dict(enumerate(pool.map(write, range(20))))
    for writer, ids in written.items():
        rows = OutboxMessage.objects.filter(key=f"writer {writer}").order_by("id")
        assert list(rows.values_list("message_id", flat=True)) == ids
    assert OutboxMessage.objects.count() == 100
