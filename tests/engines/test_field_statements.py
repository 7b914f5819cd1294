"""What servers make of statements that are long, and of tables that have grown."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox_lock.engines.archiver import Archiver
from django_outbox_lock.models import ArchivedMessage, Hold, OutboxMessage
from django_outbox_lock.outbox import Draft, publish_many
from django_outbox_lock.querysets import page
from tests.engines.test_field_faults import mysql, session_options
from tests.factories import OutboxMessageFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.conftest import Outbox

__all__ = ["mysql"]

pytestmark = pytest.mark.django_db(transaction=True)

MEGABYTE = 1024 * 1024


def write_keys(number: int) -> None:
    with transaction.atomic():
        publish_many([Draft("t", place, key=str(place)) for place in range(number)])


def due_rows() -> list[page.PageRow]:
    return page.whole(
        page.select_page(OutboxMessage.objects.all(), Hold.objects.all(), 100), 10_000
    )


def chosen_index(sql: str) -> str:
    words = "EXPLAIN" if connection.mysql_is_mariadb else "EXPLAIN FORMAT=TRADITIONAL"  # type: ignore[attr-defined]
    with connection.cursor() as cursor:
        cursor.execute(f"{words} {sql}")
        names = [column[0] for column in cursor.description]
        return str(dict(zip(names, cursor.fetchone(), strict=True))["key"])


@pytest.mark.usefixtures("mysql")
@pytest.mark.parametrize("keys", [300, 999])
def test_earlier_messages_of_a_pages_keys_are_searched_in_the_index(keys: int) -> None:
    """MySQL read the whole table for a page of several hundred keys: a second of 30,000 rows."""
    write_keys(10_000)
    OutboxMessage.objects.update(state=20, due_at=None, settled_at=1)
    write_keys(keys)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE TABLE {OutboxMessage._meta.db_table}")
        cursor.fetchall()
    rows = due_rows()
    with CaptureQueriesContext(connection) as asked:
        page.with_earlier(rows, OutboxMessage.objects.all())
    assert [chosen_index(query["sql"]) for query in asked] == ["outboxlock_order"]


def test_many_keys_are_asked_for_in_several_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL and MariaDB search no index for 10,000 ranges in one: a page took a minute."""
    for _ in range(3):
        write_keys(7)
    rows = due_rows()[7:]
    whole = page.with_earlier(rows, OutboxMessage.objects.all())
    monkeypatch.setattr(page, "RANGES", 3)
    with CaptureQueriesContext(connection) as asked:
        assert page.with_earlier(rows, OutboxMessage.objects.all()) == whole
    assert len(asked) == 3
    assert {row.earlier for row in whole} == {row.id for row in due_rows()[:7]}


@contextlib.contextmanager
def longest_packet(size: int) -> Iterator[None]:
    """The server takes no longer statement."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        before = cursor.fetchone()[0]
        cursor.execute(f"SET GLOBAL max_allowed_packet = {size}")
    try:
        with session_options():
            yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL max_allowed_packet = {before}")


@pytest.mark.usefixtures("mysql")
def test_a_server_that_takes_the_messages_takes_them_into_the_archive(outbox: Outbox) -> None:
    """The archiver's own longest statement was lost with its session, at each look."""
    outbox.configure(PUBLISH={"max_bytes": 200_000})
    body: Any = bytes(range(1, 256)) * 700
    with longest_packet(MEGABYTE):
        for _ in range(10):
            OutboxMessageFactory.create(dispatched=True, body=body)
        Archiver.from_settings("default", minimum_age=0).tick()
        assert (OutboxMessage.objects.count(), ArchivedMessage.objects.count()) == (0, 10)
