"""What a pair costs on MariaDB and MySQL, and a release whose row is busy or somebody else's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.db.models import F

from django_outbox_lock.backends.locks.mysql import MySQLLock
from django_outbox_lock.models import Lock
from tests.locks.userlocks import UserLocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import WaitUntil

WAITING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE%' AND id = "


class Telling(MySQLLock):
    """Notes each answer to a RELEASE_LOCK that was asked for by itself."""

    def reset(self) -> None:
        super().reset()
        self.answers: list[bool] = []

    def unlock(self, cursor: Any, key: str) -> bool:
        self.answers.append(super().unlock(cursor, key))
        return self.answers[-1]


class ReleaseTests(UserLocks):
    """What holds for both servers."""

    @pytest.fixture
    def backend(self, make: Callable[..., Telling]) -> Telling:
        return make(cls=Telling)

    def test_a_pair_is_two_round_trips(self, backend: Telling) -> None:
        first = backend.obtain("nightly")
        assert first
        assert first.release()
        asked: list[str] = []

        def note(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            asked.append(sql)
            return execute(sql, *rest)

        with backend._session.use(1) as connection, connection.execute_wrapper(note):
            second = backend.obtain("nightly")
            assert second
            assert second.token == first.token + 1
            assert second.release()
        assert len(asked) == 2
        assert not backend.answers
        assert Lock.objects.get(resource="nightly").owner is None

    def test_a_release_that_finds_another_holder_gives_the_lock_back(
        self, backend: Telling, make: Callable[..., MySQLLock]
    ) -> None:
        """The UPDATE that finds no row has released nothing."""
        handle, other = backend.obtain("nightly"), backend.obtain("weekly")
        assert handle
        assert other
        Lock.objects.filter(resource="nightly").update(token=F("token") + 1)
        assert handle.release() is False
        assert backend.answers == [True]
        Lock.objects.filter(resource="nightly").update(owner=None)
        assert make().obtain("nightly")
        assert other.release()

    def test_a_release_without_the_lock_frees_the_row_and_tells(self, backend: Telling) -> None:
        handle = backend.obtain("nightly")
        assert handle
        with backend._session.use(1) as connection, connection.cursor() as cursor:
            assert backend.unlock(cursor, handle.store_key)
        assert handle.release() is False
        assert backend.answers == [True, False]
        assert Lock.objects.get(resource="nightly").owner is None

    def test_a_release_gives_the_lock_back_while_the_row_is_busy(
        self, backend: Telling, make: Callable[..., MySQLLock]
    ) -> None:
        handle = backend.obtain("nightly")
        assert handle
        with ThreadPoolExecutor(1) as pool, transaction.atomic():
            Lock.objects.select_for_update().get(resource="nightly")
            assert pool.submit(handle.release).result(20) is True
        assert backend.answers == [True]
        assert make().obtain("nightly")

    def test_a_release_that_is_interrupted_frees_the_lock_all_the_same(
        self, backend: Telling, make: Callable[..., MySQLLock], wait_until: WaitUntil
    ) -> None:
        handle, other = backend.obtain("nightly"), backend.obtain("weekly")
        assert handle
        assert other

        def ask(sql: str) -> Any:
            with connections["default"].cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchone()[0] if cursor.description else None

        with ThreadPoolExecutor(1) as pool, transaction.atomic():
            Lock.objects.select_for_update().get(resource="nightly")
            released = pool.submit(handle.release)
            wait_until(lambda: ask(WAITING + handle.session_id) == 1, what="it waits for the row")
            ask(f"KILL QUERY {int(handle.session_id)}")
            assert released.result(10) is False
        assert make().obtain("nightly", timeout=5)
        assert other.release()

    def test_who_is_refused_does_not_wait_for_the_row(
        self, backend: Telling, make: Callable[..., MySQLLock]
    ) -> None:
        """The holder may be in a fenced transaction: the row would be busy for two seconds."""
        rival = make(cls=Telling)
        assert rival.obtain("weekly")
        assert backend.obtain("nightly")
        with ThreadPoolExecutor(1) as pool, transaction.atomic():
            Lock.objects.select_for_update().get(resource="nightly")
            assert pool.submit(rival.obtain, "nightly").result(1.5) is None
        assert Lock.objects.get(resource="nightly").owner is not None


@pytest.mark.server("mariadb")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestMariaDB(ReleaseTests):
    pass


@pytest.mark.server("mysql")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestMySQL(ReleaseTests):
    pass
