"""A release on PostgreSQL that fails while its session lives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction

from django_outbox_lock.backends.locks.postgresql import PostgreSQLLock
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    from tests.conftest import WaitUntil

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s"


@pytest.mark.server("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_release_that_is_cancelled_frees_the_lock_all_the_same(wait_until: WaitUntil) -> None:
    """Else the session keeps it, kept alive by the heartbeat of another lock of the process."""
    backend, rival = PostgreSQLLock("default"), PostgreSQLLock("default")
    handle, other = backend.obtain("nightly-report"), backend.obtain("weekly-report")
    assert handle is not None
    assert other is not None

    def ask(sql: str) -> int:
        with connections["default"].cursor() as cursor:
            cursor.execute(sql, [int(handle.session_id)])
            return int(cursor.fetchone()[0])

    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        Lock.objects.select_for_update().get(resource="nightly-report")
        released = pool.submit(handle.release)
        wait_until(lambda: ask(WAITING), what="the release waits for the row")
        ask("SELECT pg_cancel_backend(%s)::int")
        assert released.result(10) is False
    try:
        assert rival.obtain("nightly-report", timeout=5) is not None
        assert other.release()
    finally:
        backend.close()
        rival.close()
