"""The user locks of MariaDB and MySQL, each on a real server: neither is a proof for the other."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

import MySQLdb
import pytest
from django.db import close_old_connections, connections, transaction

from django_outbox_lock import fence, signals
from django_outbox_lock.backends.locks.mysql import MySQLLock
from django_outbox_lock.exceptions import InvalidSettings, LockLost, LockUnavailable
from django_outbox_lock.holder import LockState
from django_outbox_lock.models import Lock
from django_outbox_lock.testing.locks import LockContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.backends.locks.handle import LockHandle
    from tests.conftest import ManageProcess, StartManage, WaitUntil
    from tests.servers import Server
    from tests.servers.mysqld import MysqldServer

LEASE = 3.0

HOLDER = """
import time
from django_outbox_lock import fence, signals
from django_outbox_lock.backends.locks.mysql import MySQLLock
from django.db import transaction
signals.lock_lost.connect(lambda **kw: print("lost", kw["token"], flush=True), weak=False)
backend = MySQLLock("default", lease={lease})
handle = backend.obtain({resource!r})
print("held", handle.token, handle.session_id, flush=True)
handle.wait_lost()
try:
    with fence.held(handle.ticket, using="default"):
        print("still the holder", flush=True)
except Exception as error:
    print(type(error).__name__, flush=True)
time.sleep(60)
"""


@pytest.fixture
def backend(make: Callable[..., MySQLLock]) -> MySQLLock:
    return make()


@pytest.fixture
def make() -> Iterator[Callable[..., MySQLLock]]:
    """Makes backends, each a process of its own as far as the server can see."""
    made: list[MySQLLock] = []

    def build(
        alias: str = "default", cls: type[MySQLLock] = MySQLLock, **options: Any
    ) -> MySQLLock:
        made.append(cls(alias, **{"lease": LEASE, **options}))
        return made[-1]

    yield build
    for backend in made:
        backend.close()


@pytest.fixture
def losses() -> Iterator[list[int]]:
    """Tokens whose loss was signalled."""
    told: list[int] = []

    def note(token: int, **kwargs: Any) -> None:
        told.append(token)

    signals.lock_lost.connect(note)
    yield told
    signals.lock_lost.disconnect(note)


@pytest.fixture
def start_holder(
    start_manage: StartManage, wait_until: WaitUntil
) -> Callable[[str, float], ManageProcess]:
    """Starts a process that holds the resource until it notices a loss."""

    def start(resource: str, lease: float) -> ManageProcess:
        code = HOLDER.format(resource=resource, lease=lease)
        process = start_manage("shell", "-v0", "-c", code)
        wait_until(lambda: "held" in process.output, 20, "the holder's lock")
        return process

    return start


@pytest.fixture
def limited(server: MysqldServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The application's user may do nothing beyond its own database."""
    settings = connections["default"].settings_dict
    server.execute("CREATE USER IF NOT EXISTS limited@'127.0.0.1' IDENTIFIED BY 'secret'")
    server.execute(f"GRANT ALL ON `{settings['NAME']}`.* TO limited@'127.0.0.1'")
    connections["default"].close()
    with monkeypatch.context() as patch:
        patch.setitem(settings, "USER", "limited")
        patch.setitem(settings, "PASSWORD", "secret")
        yield
    connections["default"].close()


@pytest.fixture
def lead_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[MysqldServer], None]]:
    """Leads the alias "default" to another server for the rest of the test."""
    settings = connections["default"].settings_dict
    with monkeypatch.context() as patch:

        def lead(server: MysqldServer) -> None:
            connections["default"].close()
            patch.setitem(settings, "PORT", server.port)
            patch.setitem(settings, "NAME", "outbox")

        yield lead
        connections["default"].close()


@pytest.fixture
def own_server(
    server: MysqldServer,
    private_server: Callable[..., MysqldServer],
    lead_to: Callable[[MysqldServer], None],
) -> MysqldServer:
    """A server of the same kind, with the registry alone, which the test may pause and restart."""
    own = private_server(server.name)
    lead_to(own)
    with connections["default"].schema_editor() as editor:
        editor.create_model(Lock)
    return own


def connect(server: Server) -> Any:
    return MySQLdb.connect(
        host="127.0.0.1", port=server.port, user="root", database="outbox", autocommit=True
    )


def ask(connection: Any, sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows = cursor.fetchall()
    return rows[0][0] if rows else None


def end_session(server: MysqldServer, backend: MySQLLock) -> None:
    server.execute(f"KILL {backend._session.session_id}")


class UserLockTests:
    """What holds for both servers."""

    interrupted: ClassVar[int | None]

    def let_locks_be_seen(self, server: MysqldServer) -> None:
        raise NotImplementedError

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

            def try_lock(self, cursor: Any, key: str) -> bool:
                if self.nulls:
                    self.nulls -= 1
                    return super().try_lock(answering(None), key)
                return super().try_lock(cursor, key)

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
        assert 0.5 <= time.monotonic() - began < 2
        held.release()
        taken = two.obtain("nightly", timeout=5)
        assert taken
        assert taken.token > held.token

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
        one, two = make(), make()
        first = one.obtain("nightly")
        assert first
        end_session(server, one)
        assert first.wait_lost(LEASE / 3 + 1)
        wait_until(lambda: losses == [first.token])
        second = two.obtain("nightly", timeout=2)
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

    def test_connection_housekeeping_does_not_touch_the_lock(self, backend: MySQLLock) -> None:
        handle = backend.obtain("nightly")
        assert handle
        close_old_connections()
        connections.close_all()
        assert backend.renew(handle)
        assert handle.release()

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
        assert time.monotonic() - began < 4
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: "LockLost" in process.output)
        assert process.output.splitlines().count(f"lost {token}") == 1
        assert "still the holder" not in process.output
        assert backend.renew(handle)

    def test_a_lock_on_a_read_only_server_is_lost(
        self, backend: MySQLLock, make: Callable[..., MySQLLock], server: MysqldServer
    ) -> None:
        """After a failover the old server may still answer, and even keep its user locks."""
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
        assert make().obtain("nightly", timeout=2)

    def test_the_probe_finds_real_locks_and_leaves_no_session(
        self, backend: MySQLLock, server: MysqldServer, wait_until: WaitUntil
    ) -> None:
        before = sessions(server)
        assert backend.probe().usable
        backend.close()
        wait_until(lambda: sessions(server) <= before)

    def test_a_lock_that_the_session_has_no_more_is_lost(self, backend: MySQLLock) -> None:
        """The proof asks for the lock itself: a session that answers is none."""
        handle = backend.obtain("nightly")
        assert handle
        with backend._session.use(1) as connection, connection.cursor() as cursor:
            assert backend.unlock(cursor, handle.store_key)
            assert not backend.unlock(cursor, handle.store_key)
        assert not backend.renew(handle)
        assert handle.lost

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
            assert 1.5 < time.monotonic() - began < 4
        assert two.obtain("nightly")

    def test_no_privilege_is_needed_beyond_the_database(
        self, limited: None, make: Callable[..., MySQLLock], server: MysqldServer
    ) -> None:
        """Of the registry's own resources IS_USED_LOCK tells everybody; a view only some."""
        one, stale, admin = make(), make(), make()
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
        assert admin.obtain("nightly", timeout=2)

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
        one, two = make(), make()
        handle = one.obtain("nightly")
        assert handle
        assert not two.force_release("nightly", handle.token - 1)
        assert two.force_release("nightly", handle.token, by="ann")
        successor = two.obtain("nightly", timeout=2)
        assert successor
        assert successor.token > handle.token + 1
        assert handle.wait_lost(LEASE)
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

    def test_a_server_that_is_cut_off_and_one_that_restarts(
        self, own_server: MysqldServer, make: Callable[..., MySQLLock]
    ) -> None:
        one, two = make(), make()
        first = one.obtain("nightly")
        assert first
        own_server.pause()
        began = time.monotonic()
        assert first.wait_lost(LEASE + 1)
        assert time.monotonic() - began < LEASE + 0.5
        with pytest.raises(LockUnavailable):
            two.obtain("nightly")
        assert time.monotonic() - began < LEASE + 7
        own_server.resume()
        second = one.obtain("nightly", timeout=10)
        assert second
        own_server.restart()
        assert second.wait_lost(LEASE + 1)
        third = two.obtain("nightly", timeout=10)
        assert third
        assert first.token < second.token < third.token


def waits(server: MysqldServer, session: int) -> bool:
    sql = f"SELECT state FROM information_schema.processlist WHERE id = {session}"
    return "user" in str(server.execute(sql)[0][0]).lower()


def sessions(server: MysqldServer) -> int:
    sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'root'"
    return int(server.execute(sql)[0][0])


def answering(value: Any) -> Any:
    return Answer(value)


class Answer:
    """A cursor whose every answer is one value: stands in for an answer that cannot be provoked."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def execute(self, sql: str, params: Any = None) -> None:
        pass

    def fetchone(self) -> tuple[Any]:
        return (self.value,)


@pytest.mark.server("mariadb")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestMariaDB(UserLockTests):
    interrupted = None

    def let_locks_be_seen(self, server: MysqldServer) -> None:
        server.execute("INSTALL SONAME 'metadata_lock_info'")

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
class TestMySQL(UserLockTests):
    interrupted = 1317

    def let_locks_be_seen(self, server: MysqldServer) -> None:
        """Nothing to do: MySQL has its performance schema on."""


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
