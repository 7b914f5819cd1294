"""The user locks of MariaDB and MySQL, each on a real server: neither is a proof for the other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

import MySQLdb
import pytest
from django.db import close_old_connections, connections, transaction

from django_outbox_lock.backends.locks.mysql import MySQLLock
from django_outbox_lock.exceptions import InvalidSettings, LockUnavailable
from django_outbox_lock.models import Lock
from django_outbox_lock.testing.locks import LockContract
from tests.locks.userlocks import SLACK, UserLocks, answering, ask, connect, sessions, waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.handle import LockHandle
    from tests.conftest import WaitUntil
    from tests.servers.mysqld import MysqldServer


class UseTests(UserLocks):
    """What holds for both servers."""

    interrupted: ClassVar[int | None]

    def test_names_fit_and_differ_where_the_spelling_differs_case_039(
        self, make: Callable[..., MySQLLock]
    ) -> None:
        """MySQL takes 'X' and 'x' for one lock and MariaDB for two; ours are two on both."""
        one, two = make(), make()
        names = ["Orders", "orders", "orders ", "Bestellung/für " + "ä" * 100]
        keys = [one.store_key(name) for name in names]
        assert all(key == key.lower() and key.isascii() and len(key) <= 64 for key in keys)
        handles = [(one, two)[i % 2].obtain(name) for i, name in enumerate(names)]
        assert all(handles)
        assert two.obtain("Orders") is None
        assert one.obtain("orders") is None

    def test_two_databases_of_one_server_do_not_collide(
        self, make: Callable[..., MySQLLock]
    ) -> None:
        for namespace in ("", "shop"):
            one, two = make(namespace=namespace), make("other", namespace=namespace)
            mine, theirs = one.obtain("sweeper"), two.obtain("sweeper")
            assert mine
            assert theirs
            assert mine.store_key != theirs.store_key
            mine.release()
            theirs.release()

    def test_the_session_ends_when_silent_and_waits_for_rows_two_seconds(
        self, backend: MySQLLock
    ) -> None:
        assert backend.obtain("nightly")
        with backend._session.use(1) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT @@SESSION.wait_timeout, @@SESSION.interactive_timeout, "
                "@@SESSION.innodb_lock_wait_timeout, @@SESSION.lock_wait_timeout, @@autocommit"
            )
            assert cursor.fetchone() == (3, 3, 2, 2, 1)

    def test_a_null_answer_is_neither_success_nor_busy_case_041(
        self, make: Callable[..., MySQLLock]
    ) -> None:
        """Only 1 is success; NULL is tried again while the time lasts, and else raised."""

        class Interrupted(MySQLLock):
            nulls = 1

            def lock_and_bump(self, connection: Any, claim: Any, key: str) -> int | None:
                with connection.execute_wrapper(self.interrupt):
                    return super().lock_and_bump(connection, claim, key)

            def interrupt(self, execute: Any, sql: str, *rest: Any) -> Any:
                if self.nulls and "GET_LOCK(%s, 0)" in sql:
                    self.nulls -= 1
                    sql = sql.replace("GET_LOCK(%s, 0)", "IF(%s IS NULL, 1, NULL)")
                return execute(sql, *rest)

        backend = make(cls=Interrupted)
        with pytest.raises(LockUnavailable, match="GET_LOCK"):
            backend.obtain("nightly")
        Interrupted.nulls = 2
        handle = make(cls=Interrupted).obtain("nightly", timeout=5)
        assert handle
        assert handle.release()

    def test_a_killed_wait_is_no_success_case_041(self, server: MysqldServer) -> None:
        """What the servers answer when KILL QUERY hits a GET_LOCK: the reason for the rule."""
        holder, waiter = connect(server), connect(server)
        assert ask(holder, "SELECT GET_LOCK('facts', 0)") == 1
        number = ask(waiter, "SELECT CONNECTION_ID()")
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(ask, waiter, "SELECT GET_LOCK('facts', 30)")
            while not waits(server, number):
                time.sleep(0.01)
            server.execute(f"KILL QUERY {number}")
            if self.interrupted is None:
                assert answer.result(10) is None
            else:
                with pytest.raises(MySQLdb.OperationalError) as raised:
                    answer.result(10)
                assert raised.value.args[0] == self.interrupted
        holder.close()
        waiter.close()

    def test_a_try_without_waiting_ends_no_deadlock(self, server: MysqldServer) -> None:
        """3058 and 1213 (user locks in a circle) come from waiting: a try is told "busy"."""
        one, two = connect(server), connect(server)
        number = one.thread_id()
        assert ask(one, "SELECT GET_LOCK('left', 0)") == 1
        assert ask(two, "SELECT GET_LOCK('right', 0)") == 1
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(ask, one, "SELECT GET_LOCK('right', 30)")
            while not waits(server, number):
                time.sleep(0.01)
            assert ask(two, "SELECT GET_LOCK('left', 0)") == 0
            two.close()
            assert waiting.result(10) == 1
        one.close()

    def test_waiting_is_polling_on_both_servers_case_043(
        self, make: Callable[..., MySQLLock], wait_until: WaitUntil
    ) -> None:
        """A negative time-out waits for ever on MySQL and fails at once on MariaDB: not used."""
        one, two = make(), make()
        held = one.obtain("nightly")
        assert held
        began = time.monotonic()
        assert two.obtain("nightly", timeout=0.5) is None
        assert 0.5 <= time.monotonic() - began < 0.5 + SLACK
        held.release()
        taken = two.obtain("nightly", timeout=5)
        assert taken
        assert taken.token > held.token

    def test_connection_housekeeping_does_not_touch_the_lock(self, backend: MySQLLock) -> None:
        handle = backend.obtain("nightly")
        assert handle
        close_old_connections()
        connections.close_all()
        assert backend.renew(handle)
        assert handle.release()

    def test_the_probe_finds_real_locks_and_leaves_no_session(
        self, backend: MySQLLock, server: MysqldServer, wait_until: WaitUntil
    ) -> None:
        before = sessions(server)
        assert backend.probe().usable
        backend.close()
        wait_until(lambda: sessions(server) <= before)

    def test_group_replication_with_several_primaries_is_not_used_case_045(
        self, make: Callable[..., MySQLLock]
    ) -> None:
        """The server's answer is pretended: a group of servers cannot be had here."""

        class Member(MySQLLock):
            def _cluster(self, cursor: Any) -> str | None:
                return super()._cluster(answering("group_replication_single_primary_mode"))

        result = make(cls=Member).probe()
        assert not result.usable
        assert "group_replication" in result.reason

    def test_a_thousand_refusals_leak_no_session(
        self, make: Callable[..., MySQLLock], server: MysqldServer
    ) -> None:
        one, two = make(), make()
        assert one.obtain("nightly")
        assert two.obtain("nightly") is None
        before = sessions(server)
        assert not any(two.obtain("nightly") for _ in range(1000))
        assert sessions(server) == before

    def test_a_busy_row_gives_the_lock_back_after_two_seconds(
        self, make: Callable[..., MySQLLock]
    ) -> None:
        one, two = make(), make()
        held = one.obtain("nightly")
        assert held
        with transaction.atomic():
            assert held.release()
            Lock.objects.select_for_update().get(resource="nightly")
            began = time.monotonic()
            assert one.obtain("nightly") is None
            assert 1.5 < time.monotonic() - began < 2 + SLACK
        assert two.obtain("nightly")

    def test_the_lock_session_leads_to_the_same_database(
        self, limited: None, make: Callable[..., MySQLLock], server: MysqldServer
    ) -> None:
        """Told without any privilege: another database of one server has the same user locks."""
        settings = connections["default"].settings_dict
        connections.settings["direct"] = {**settings, "OPTIONS": {"charset": "utf8mb4"}}
        try:
            assert make(session_using="direct").probe().usable
            server.execute("CREATE DATABASE IF NOT EXISTS elsewhere")
            server.execute("GRANT ALL ON elsewhere.* TO limited@'127.0.0.1'")
            connections.settings["direct"]["NAME"] = "elsewhere"
            with pytest.raises(InvalidSettings, match="session_using"):
                make(session_using="direct").probe()
        finally:
            del connections.settings["direct"]


@pytest.mark.server("mariadb")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestMariaDB(UseTests):
    interrupted = None

    def test_a_node_of_galera_is_not_used_case_045(
        self,
        private_server: Callable[..., MysqldServer],
        lead_to: Callable[[MysqldServer], None],
        make: Callable[..., MySQLLock],
    ) -> None:
        """Its user locks are its own. This one runs without a provider, hence without peers."""
        node = private_server("mariadb", settings={"wsrep-on": "ON", "binlog-format": "ROW"})
        lead_to(node)
        result = make().probe()
        assert not result.usable
        assert "wsrep_on" in result.reason


@pytest.mark.server("mysql")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestMySQL(UseTests):
    interrupted = 1317


class UserLockContract(LockContract):
    backend_class = MySQLLock

    def end_session(self, handle: LockHandle) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute("KILL %s", [int(handle.session_id)])


@pytest.mark.server("mariadb")
class TestContractOnMariaDB(UserLockContract):
    pass


@pytest.mark.server("mysql")
class TestContractOnMySQL(UserLockContract):
    pass
