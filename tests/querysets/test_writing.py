"""Rows go out in statements that the database takes, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.utils import load_backend
from django.test.utils import CaptureQueriesContext

from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.querysets import writing
from tests.factories import OutboxMessageFactory

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = ["message_id", "topic", "key", "order_key", "slot", "body", "content_type"]
COLUMNS += ["headers", "created_at", "due_at"]


def build(number: int, **fields: Any) -> list[Any]:
    return OutboxMessageFactory.build_batch(number, **fields)


def statements(rows: Sequence[Any], batch_size: int, batch_bytes: int = 1 << 30) -> int:
    with CaptureQueriesContext(connection) as captured:
        writing.insert(rows, COLUMNS, "default", batch_size=batch_size, batch_bytes=batch_bytes)
    assert all(query["sql"].startswith("INSERT") for query in captured)
    return len(captured)


def most_rows(rows: Sequence[Any]) -> int:
    fields = [OutboxMessage._meta.get_field(name) for name in COLUMNS]
    return min(connection.ops.bulk_batch_size(fields, rows), writing.MAX_PARAMETERS // len(COLUMNS))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("batch_size", "number"), [(1, 20), (999, 1000), (1000, 1000), (2101, 2102), (10_000, 7_000)]
)
def test_every_batch_size_works_on_every_database(batch_size: int, number: int) -> None:
    """Case 123: split inside where the database takes fewer."""
    rows = build(number)
    assert statements(rows, batch_size) == -(-number // min(batch_size, most_rows(rows)))
    written = OutboxMessage.objects.order_by("id").values_list("message_id", flat=True)
    assert list(written) == [row.message_id for row in rows]


@pytest.mark.django_db
def test_a_statement_carries_no_more_bytes_than_asked() -> None:
    rows = build(7, body=b"x" * 2000, headers='{"a":"%s"}' % ("é" * 500))
    weight = 2000 + 1008 + writing.ROW_BYTES
    assert statements(rows, 1000, batch_bytes=3 * weight) == 3
    assert statements(build(3, body=b"x" * 2000), 1000, batch_bytes=10) == 3
    assert OutboxMessage.objects.count() == 10


@pytest.mark.django_db
def test_an_error_makes_the_callers_block_roll_back() -> None:
    """A caller that catches the error must not commit the change without its messages."""
    first, second = build(2)
    second.message_id = first.message_id
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            statements([first, second], batch_size=1)
        with pytest.raises(transaction.TransactionManagementError):
            OutboxMessage.objects.count()
    assert OutboxMessage.objects.count() == 0


def test_sql_server_takes_no_statement_above_2100_parameters() -> None:
    """Arithmetic of its Django backend, without a server."""
    operations = load_backend("mssql").DatabaseWrapper.ops_class(None)
    fields = [OutboxMessage._meta.get_field(name) for name in COLUMNS]
    assert 50 * len(COLUMNS) < operations.bulk_batch_size(fields, build(2)) * len(COLUMNS) <= 2100
