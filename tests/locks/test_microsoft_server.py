"""SQL Server's application locks on a real server, that of ``MSSQL_URL``; never run without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connections

from django_outbox_lock.backends.locks.microsoft import SQLServerLock
from django_outbox_lock.testing.locks import LockContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.backends.locks.handle import LockHandle


@pytest.mark.server("mssql")
class TestContract(LockContract):
    backend_class = SQLServerLock

    def end_session(self, handle: LockHandle) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute(f"KILL {int(handle.session_id)}")


@pytest.mark.server("mssql")
@pytest.mark.django_db(transaction=True)
class TestServer:
    """What the stand-in only claims."""

    @pytest.fixture
    def real(self) -> Iterator[SQLServerLock]:
        backend = SQLServerLock("default", lease=10)
        yield backend
        backend.close()

    def test_the_views_show_the_hash_of_the_name(self, real: SQLServerLock) -> None:
        handle = real.obtain("nightly")
        assert handle
        with connections["default"].cursor() as cursor:
            (live,) = [lock for lock in real.seen(cursor) if lock.session_id == handle.session_id]
        assert live.store_key == handle.store_key

    def test_a_release_of_what_is_not_held_is_no_error(self, real: SQLServerLock) -> None:
        with real._session.use(1) as connection, connection.cursor() as cursor:
            assert real.try_lock(cursor, "free")
            assert real.unlock(cursor, "free")
            assert not real.unlock(cursor, "free")

    def test_the_session_keeps_its_settings(self, real: SQLServerLock) -> None:
        with real._session.use(1) as connection, connection.cursor() as cursor:
            assert not real.owns(cursor, "free")
            cursor.execute("SELECT @@LOCK_TIMEOUT, @@TRANCOUNT")
            assert tuple(cursor.fetchone()) == (2000, 0)

    def test_a_rollback_does_not_end_the_lock_case_051(self, real: SQLServerLock) -> None:
        with real._session.use(1) as connection, connection.cursor() as cursor:
            assert real.try_lock(cursor, "kept")
            cursor.execute("BEGIN TRANSACTION; ROLLBACK TRANSACTION")
            assert real.owns(cursor, "kept")
            assert real.unlock(cursor, "kept")

    def test_the_probe_passes(self, real: SQLServerLock) -> None:
        assert real.probe().usable
