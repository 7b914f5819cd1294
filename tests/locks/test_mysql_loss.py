"""How the user locks of MariaDB and MySQL are lost: killed, cut off, stopped, read-only."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock import fence
from django_outbox_lock.backends.locks.mysql import MySQLLock
from django_outbox_lock.exceptions import LockLost, LockUnavailable
from tests.locks.userlocks import LEASE, SLACK, UNHURRIED, UserLocks, end_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import ManageProcess, WaitUntil
    from tests.servers.mysqld import MysqldServer


class LossTests(UserLocks):
    """What holds for both servers."""

    def test_a_session_that_died_of_idleness_is_replaced(
        self, backend: MySQLLock, server: MysqldServer
    ) -> None:
        first = backend.obtain("nightly")
        assert first
        assert first.release()
        before = backend._session.session_id
        end_session(server, backend)
        second = backend.obtain("nightly")
        assert second
        assert second.token > first.token
        assert backend._session.session_id != before

    def test_a_session_killed_between_lock_and_token_leaves_nothing(
        self, make: Callable[..., MySQLLock], server: MysqldServer
    ) -> None:
        kills = iter([True, True])

        class Killed(MySQLLock):
            def claim(self, resource: str, lock_id: str, session_id: str = "") -> fence.Claim:
                if next(kills, False):
                    end_session(server, self)
                return super().claim(resource, lock_id, session_id)

        # An old session may have died of idleness, so one failure is repeated on a new one.
        with pytest.raises(LockUnavailable):
            make(cls=Killed).obtain("nightly")
        assert next(kills, None) is None
        assert make().obtain("nightly")

    def test_a_kill_while_held_is_noticed_within_a_heartbeat(
        self,
        make: Callable[..., MySQLLock],
        server: MysqldServer,
        losses: list[int],
        wait_until: WaitUntil,
    ) -> None:
        one, two = make(lease=3 * LEASE), make()  # a heartbeat comes long before the lease's end
        first = one.obtain("nightly")
        assert first
        end_session(server, one)
        assert first.wait_lost(LEASE + SLACK)
        wait_until(lambda: losses == [first.token])
        second = two.obtain("nightly", timeout=10)
        assert second
        assert second.token > first.token
        with pytest.raises(LockLost), fence.held(first.ticket, using="default"):
            pass
        assert first.release() is False
        assert losses == [first.token]

    def test_a_kill_before_the_release_is_told(
        self, backend: MySQLLock, server: MysqldServer, losses: list[int], wait_until: WaitUntil
    ) -> None:
        handle = backend.obtain("nightly")
        assert handle
        end_session(server, backend)
        assert handle.release() is False
        wait_until(lambda: losses == [handle.token])

    def test_a_kill_in_the_middle_of_a_proof_is_a_loss(
        self, make: Callable[..., MySQLLock], server: MysqldServer
    ) -> None:
        class Killed(MySQLLock):
            def owns(self, cursor: Any, key: str) -> bool:
                held = super().owns(cursor, key)
                end_session(server, self)
                return held

        handle = make(cls=Killed).obtain("nightly")
        assert handle
        assert handle.backend.renew(handle) is False
        assert handle.lost

    def test_the_server_frees_the_lock_of_a_stopped_process(
        self,
        make: Callable[..., MySQLLock],
        start_holder: Callable[[str, float], ManageProcess],
        wait_until: WaitUntil,
    ) -> None:
        """``wait_timeout``; and the stopped one finds itself fenced off when it goes on."""
        process = start_holder("nightly", 2.0)
        token = int(process.output.split()[1])
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        backend = make()
        assert backend.obtain("nightly") is None
        handle = backend.obtain("nightly", timeout=10)
        assert handle
        assert handle.token > token
        assert time.monotonic() - began < 2 + SLACK
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: "LockLost" in process.output)
        assert process.output.splitlines().count(f"lost {token}") == 1
        assert "still the holder" not in process.output
        assert backend.renew(handle)

    def test_a_lock_on_a_read_only_server_is_lost(
        self, make: Callable[..., MySQLLock], server: MysqldServer
    ) -> None:
        """After a failover the old server may still answer, and even keep its user locks."""
        backend = make(lease=UNHURRIED)
        handle = backend.obtain("nightly")
        assert handle
        server.execute("SET GLOBAL read_only = ON")
        try:
            assert backend.renew(handle) is False
            with pytest.raises(LockUnavailable, match="read-only"):
                make().probe()
        finally:
            server.execute("SET GLOBAL read_only = OFF")
        assert handle.lost
        assert make().obtain("nightly", timeout=10)

    def test_a_lock_that_the_session_has_no_more_is_lost(self, backend: MySQLLock) -> None:
        """The proof asks for the lock itself: a session that answers is none."""
        handle = backend.obtain("nightly")
        assert handle
        with backend._session.use(1) as connection, connection.cursor() as cursor:
            assert backend.unlock(cursor, handle.store_key)
            assert not backend.unlock(cursor, handle.store_key)
        assert not backend.renew(handle)
        assert handle.lost

    def test_a_server_that_is_cut_off_and_one_that_restarts(
        self, own_server: MysqldServer, make: Callable[..., MySQLLock]
    ) -> None:
        one, two = make(), make()
        first = one.obtain("nightly")
        assert first
        own_server.pause()
        began = time.monotonic()
        assert first.wait_lost(LEASE + SLACK)
        with pytest.raises(LockUnavailable):
            two.obtain("nightly")
        assert time.monotonic() - began < LEASE + 7 + SLACK
        own_server.resume()
        second = one.obtain("nightly", timeout=10)
        assert second
        own_server.restart()
        assert second.wait_lost(LEASE + SLACK)
        third = two.obtain("nightly", timeout=10)
        assert third
        assert first.token < second.token < third.token


@pytest.mark.server("mariadb")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestMariaDB(LossTests):
    pass


@pytest.mark.server("mysql")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestMySQL(LossTests):
    pass
