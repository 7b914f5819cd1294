"""A bounded wait ends by the server's time-out and leaves no trace."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connection, connections, transaction

from django_outbox_lock import dberrors, waits
from django_outbox_lock.models import Hold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stranger() -> Iterator[BaseDatabaseWrapper]:
    """A second session on the same database."""
    with contextlib.closing(connections.create_connection("default")) as other:
        yield other


@contextlib.contextmanager
def row_locked_by(other: BaseDatabaseWrapper) -> Iterator[None]:
    Hold.objects.create(order_key=1, head_id=1)
    other.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    with other.cursor() as cursor:
        cursor.execute("UPDATE django_outbox_lock_hold SET head_id = 2")
        yield
    other.rollback()
    other.set_autocommit(True)


def limit() -> Any:
    timeout = waits._TIMEOUTS[connection.vendor]
    return waits._run(connection, timeout.read)


END_SESSION = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%s)"),
    "mysql": ("SELECT CONNECTION_ID()", "KILL %s"),
}


def end_session(other: BaseDatabaseWrapper) -> None:
    """End the session in use from outside; SQLite's can only be closed from within."""
    if connection.vendor not in END_SESSION:
        connection.connection.close()
        return
    ask, end = END_SESSION[connection.vendor]
    session = waits._run(connection, ask)
    with other.cursor() as cursor:
        cursor.execute(end, [session])


def test_the_wait_ends_with_a_lock_timeout(stranger: BaseDatabaseWrapper) -> None:
    """Bounded by the server, told by its code, and the old limit is in force again."""
    before = limit()
    with row_locked_by(stranger):
        start = time.monotonic()
        with (
            pytest.raises(DatabaseError) as caught,
            waits.bounded_session(connection, 0.2),
            transaction.atomic(),
            waits.bounded_transaction(connection, 0.2),
        ):
            Hold.objects.update(head_id=3)
        waited = time.monotonic() - start
    assert dberrors.is_lock_timeout(caught.value)
    assert 0.1 < waited < 3
    assert limit() == before


def test_the_limit_is_back_for_the_rest_of_the_transaction() -> None:
    with transaction.atomic():
        before = limit()
        with waits.bounded_wait(connection, 7):
            inside = limit()
            with waits.bounded_wait(connection, 3):
                assert limit() not in {before, inside}
            assert limit() == inside
        assert limit() == before
        with waits.bounded_wait(connection, None):
            assert limit() == before


def test_the_limit_is_back_after_an_error_of_the_block() -> None:
    """Also when Django refuses further statements, and when only a savepoint is undone."""
    with transaction.atomic():
        before = limit()
        with contextlib.suppress(ZeroDivisionError), waits.bounded_wait(connection, 7):
            raise ZeroDivisionError
        assert limit() == before
        with contextlib.suppress(DatabaseError), waits.bounded_wait(connection, 7):  # noqa: SIM117
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT nonsense FROM nowhere")
        assert limit() == before
        with contextlib.suppress(ZeroDivisionError), waits.bounded_wait(connection, 7):
            transaction.set_rollback(True)
            raise ZeroDivisionError
        assert limit() == before


def test_outside_a_transaction_the_block_is_bounded_too(stranger: BaseDatabaseWrapper) -> None:
    """Where the limit is the transaction's (PostgreSQL), the block becomes a transaction."""
    before = limit()
    with (
        row_locked_by(stranger),
        pytest.raises(DatabaseError) as caught,
        waits.bounded_wait(connection, 0.2),
    ):
        Hold.objects.update(head_id=3)
    assert dberrors.is_lock_timeout(caught.value)
    assert limit() == before
    assert not connection.in_atomic_block


def test_a_lost_session_does_not_hide_the_error(stranger: BaseDatabaseWrapper) -> None:
    """A session that cannot be set back is closed, and Django opens the next one."""
    with contextlib.suppress(ZeroDivisionError), waits.bounded_wait(connection, 7):
        end_session(stranger)
        raise ZeroDivisionError
    assert Hold.objects.count() == 0


@pytest.mark.parametrize("seconds", [float("inf"), 1e9])
def test_for_ever_is_as_long_as_the_server_can_count(seconds: float) -> None:
    before = limit()
    with waits.bounded_wait(connection, seconds):
        Hold.objects.create(order_key=1, head_id=1)
        assert limit() != before
    assert limit() == before
