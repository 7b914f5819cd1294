"""Who holds a user lock of MariaDB or MySQL, as far as one may see; and its end by force."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_outbox_lock.holder import LockState
from django_outbox_lock.models import Lock
from tests.locks.userlocks import UNHURRIED, UserLocks, ask, connect, end_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.mysql import MySQLLock
    from tests.conftest import WaitUntil
    from tests.servers.mysqld import MysqldServer


class ViewTests(UserLocks):
    """What holds for both servers."""

    def let_locks_be_seen(self, server: MysqldServer) -> None:
        raise NotImplementedError

    def test_no_privilege_is_needed_beyond_the_database(
        self, limited: None, make: Callable[..., MySQLLock], server: MysqldServer
    ) -> None:
        """Of the registry's own resources IS_USED_LOCK tells everybody; a view only some."""
        one, stale, admin = make(lease=UNHURRIED), make(), make()
        assert one.probe().usable
        held, gone = one.obtain("nightly"), stale.obtain("weekly")
        assert held
        assert gone
        end_session(server, stale)
        found = {row.resource: row for row in admin.holders()}
        assert found["nightly"].state is LockState.HELD
        assert found["nightly"].session_id == held.session_id
        assert found["weekly"].state is LockState.STALE
        assert set(found) == {"nightly", "weekly"}
        assert admin.force_release("nightly", held.token)
        assert admin.obtain("nightly", timeout=10)

    def test_a_registry_of_thousands_is_verified_in_pieces(self, backend: MySQLLock) -> None:
        Lock.objects.bulk_create(
            Lock(id=f"{number:064}", resource=f"job-{number}") for number in range(5000)
        )
        assert backend.obtain("nightly")
        held = [row.resource for row in backend.holders() if row.state is LockState.HELD]
        assert held == ["nightly"]

    def test_those_who_may_see_everything_see_foreign_locks(
        self, backend: MySQLLock, server: MysqldServer
    ) -> None:
        self.let_locks_be_seen(server)
        stranger = connect(server)
        assert ask(stranger, "SELECT GET_LOCK('outbox:elsewhere', 0), GET_LOCK('not ours', 0)")
        handle = backend.obtain("nightly")
        assert handle
        nightly, foreign = sorted(backend.holders(), key=lambda row: row.state is LockState.FOREIGN)
        assert (nightly.resource, nightly.state) == ("nightly", LockState.HELD)
        assert foreign.resource == "outbox:elsewhere"
        assert foreign.state is LockState.FOREIGN
        assert foreign.session_id == str(stranger.thread_id())
        assert foreign.host == "127.0.0.1"
        stranger.close()

    def test_force_ends_the_session(
        self, make: Callable[..., MySQLLock], losses: list[int], wait_until: WaitUntil
    ) -> None:
        one, two = make(lease=UNHURRIED), make()
        handle = one.obtain("nightly")
        assert handle
        assert not two.force_release("nightly", handle.token - 1)
        assert two.force_release("nightly", handle.token, by="ann")
        successor = two.obtain("nightly", timeout=10)
        assert successor
        assert successor.token > handle.token + 1
        assert not one.renew(handle)
        wait_until(lambda: losses == [handle.token])

    def test_force_spares_a_session_that_only_has_the_number(
        self, backend: MySQLLock, server: MysqldServer
    ) -> None:
        """Numbers begin anew with the server, so the registry's may be somebody else's."""
        handle = backend.obtain("nightly")
        assert handle
        stranger = connect(server)
        Lock.objects.update(session_id=str(stranger.thread_id()))
        assert backend.force_release("nightly", handle.token)
        assert ask(stranger, "SELECT 1") == 1
        stranger.close()


@pytest.mark.server("mariadb")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestMariaDB(ViewTests):
    def let_locks_be_seen(self, server: MysqldServer) -> None:
        server.execute("INSTALL SONAME 'metadata_lock_info'")


@pytest.mark.server("mysql")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestMySQL(ViewTests):
    def let_locks_be_seen(self, server: MysqldServer) -> None:
        """Nothing to do: MySQL has its performance schema on."""
