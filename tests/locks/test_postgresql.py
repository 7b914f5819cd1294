"""PostgreSQL's advisory locks, on a real server."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, close_old_connections, connection, connections, transaction

from django_outbox_lock import fence, keys, signals
from django_outbox_lock.backends.locks import postgresql as postgresql_room
from django_outbox_lock.backends.locks.postgresql import PostgreSQLLock
from django_outbox_lock.backends.locks.redis import RedisLock
from django_outbox_lock.exceptions import InvalidSettings, LockUnavailable
from django_outbox_lock.holder import LockState
from django_outbox_lock.testing.locks import LockContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.utils import CursorWrapper

    from django_outbox_lock.backends.locks.handle import LockHandle
    from tests.conftest import WaitUntil
    from tests.locks.conftest import AddAlias, Make
    from tests.servers import Server
    from tests.servers.postgresql import PostgreSQL

pytestmark = [
    pytest.mark.server("postgresql"),
    pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"]),
]

RESOURCE = "nightly-report"
# What a loaded machine may take on top of a lease, in seconds: less than any wait for a server.
MARGIN = 3.0


class TestContract(LockContract):
    backend_class = PostgreSQLLock

    def end_session(self, handle: LockHandle) -> None:
        end_session(handle.session_id)


@pytest.fixture
def backend(make: Make) -> PostgreSQLLock:
    return postgresql(make)


@pytest.fixture
def losses() -> Iterator[list[int]]:
    """The tokens whose loss was signalled."""
    told: list[int] = []

    def hear(*, token: int, **_: Any) -> None:
        told.append(token)

    signals.lock_lost.connect(hear)
    yield told
    signals.lock_lost.disconnect(hear)


def postgresql(
    make: Make, cls: type[PostgreSQLLock] = PostgreSQLLock, alias: str = "default", **options: Any
) -> PostgreSQLLock:
    backend = make(cls, alias, **options)
    assert isinstance(backend, PostgreSQLLock)
    return backend


def obtain(backend: PostgreSQLLock, resource: str = RESOURCE, timeout: float = 0) -> LockHandle:
    handle = backend.obtain(resource, timeout=timeout)
    assert handle is not None
    return handle


def query(sql: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall()) if cursor.description else []


def end_session(session_id: str) -> None:
    query("SELECT pg_terminate_backend(%s, 5000)", int(session_id))


def held_keys() -> list[int]:
    """The advisory locks of this database, whoever holds them."""
    sql = (
        "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks JOIN pg_database d "
        "ON d.oid = database AND datname = current_database() WHERE locktype = 'advisory'"
    )
    return [key for (key,) in query(sql)]


def our_sessions() -> int:
    ((count,),) = query(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'outboxlock:%%' "
        "AND datname = current_database()"
    )
    return int(count)


# What it costs


def test_three_statements(backend: PostgreSQLLock) -> None:
    """Obtain and release: try, bump, free and unlock together."""
    obtain(backend).release()
    said: list[str] = []

    def listen(execute: Any, sql: str, *rest: Any) -> Any:
        said.append(sql.split("(", maxsplit=1)[0])
        return execute(sql, *rest)

    with backend._session.use(1) as session, session.execute_wrapper(listen):
        obtain(backend).release()
    assert [words.split()[0] for words in said] == ["SELECT", "UPDATE", "WITH"]
    assert "pg_try_advisory_lock" in said[0]


def test_a_release_while_the_row_is_busy_unlocks_all_the_same(backend: PostgreSQLLock) -> None:
    """Somebody has the registry's row for longer than a release waits."""
    handle = obtain(backend)
    with transaction.atomic():
        fence.check(handle.ticket, using="default")
        assert handle.release()
        assert held_keys() == []
    assert obtain(backend).token == handle.token + 1


def test_one_session_for_all_locks(backend: PostgreSQLLock, wait_until: WaitUntil) -> None:
    """However many locks a process holds, or fails to get, it has one session for them."""
    handles = [obtain(backend, f"job-{number}") for number in range(50)]
    assert backend.obtain("job-7") is None
    assert our_sessions() == 1
    backend.close()
    assert [handle.ended for handle in handles] == [True] * 50
    wait_until(lambda: our_sessions() == 0, what="no session is left")
    assert held_keys() == []


def test_an_idle_session_is_closed(make: Make, wait_until: WaitUntil) -> None:
    """A third of a lease after the last lock there is no session, and the next obtain opens one."""
    backend = postgresql(make, lease=1.0)
    obtain(backend).release()
    wait_until(lambda: our_sessions() == 0, what="no session is left")
    assert obtain(backend).release()


# Its session


@pytest.mark.parametrize("step", ["try_lock", "bump"])
def test_the_session_ends_before_the_answer_of_obtain(
    make: Make, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that never came holds nothing; a session that was open already is opened again."""

    class Killed(PostgreSQLLock):
        def try_lock(self, cursor: CursorWrapper, key: str) -> bool:
            if step == "try_lock" and not kills:
                kills.append(self.session_id(cursor))
                end_session(kills[0])
            return super().try_lock(cursor, key)

    def bump(session: Any, claim: fence.Claim, expected: int | None = None) -> int | None:
        if step == "bump" and not kills:
            kills.append(claim.session_id)
            end_session(kills[0])
        return real(session, claim, expected)

    kills: list[str] = []
    real = fence.bump
    monkeypatch.setattr(fence, "bump", bump)
    backend = postgresql(make, Killed)
    handle = obtain(backend)
    assert kills
    assert handle.session_id != kills[0]
    assert held_keys() == [int(handle.store_key)]
    assert backend.prove(handle)
    assert handle.token == 1


def test_the_session_ended_while_nothing_was_held(backend: PostgreSQLLock) -> None:
    """Case 049: an idle session that a server or a firewall ended is opened again."""
    handle = obtain(backend)
    handle.release()
    end_session(handle.session_id)
    assert backend.prove(obtain(backend))


def test_the_session_ends_in_a_renewal(
    make: Make, losses: list[int], wait_until: WaitUntil
) -> None:
    """The heartbeat finds it out, tells it once and does not open another session."""

    class Killed(PostgreSQLLock):
        def owns(self, cursor: CursorWrapper, key: str) -> bool:
            end_session(self.session_id(cursor))
            connection.close()  # that of the thread that renews
            return super().owns(cursor, key)

    backend = postgresql(make, Killed, lease=1.0)
    handle = obtain(backend)
    assert handle.wait_lost(10)
    wait_until(lambda: not backend._session.is_open, what="the session is closed")
    wait_until(lambda: our_sessions() == 0, what="no session is left")
    assert losses in ([], [handle.token])  # told on a thread of its own


def test_the_session_ends_in_the_release(
    backend: PostgreSQLLock, losses: list[int], wait_until: WaitUntil
) -> None:
    """The release says that it was not held any more, and the loss is told."""
    handle = obtain(backend)
    end_session(handle.session_id)
    assert handle.release() is False
    assert handle.lost
    wait_until(lambda: losses == [handle.token], what="told")
    assert obtain(backend).release()


def test_a_grant_whose_answer_was_cancelled(make: Make, wait_until: WaitUntil) -> None:
    """Case 033: the server had granted when the statement's time ran out: nothing is left."""

    class Slow(PostgreSQLLock):
        def try_lock(self, cursor: CursorWrapper, key: str) -> bool:
            if not cancelled:
                cancelled.append(True)
                cursor.execute("SET statement_timeout = 100")
                sql = "SELECT pg_try_advisory_lock(%s), pg_sleep(20)"
                cursor.execute(sql, [int(key)])
            return super().try_lock(cursor, key)

    cancelled: list[bool] = []
    backend = postgresql(make, Slow)
    other = obtain(postgresql(make, PostgreSQLLock), "another")
    with pytest.raises(LockUnavailable):
        backend.obtain(RESOURCE)
    another = [keys.advisory_key(backend.namespace, "another")]
    wait_until(lambda: held_keys() == another, what="nothing is left")
    assert other.release()
    assert obtain(backend).release()


def test_a_pool_of_the_project_is_not_used(add_alias: AddAlias, make: Make) -> None:
    """The lock's session is no pooled one: returned to a pool, it would go on holding."""
    alias = add_alias("pooled", CONN_MAX_AGE=0, OPTIONS={"pool": {"min_size": 1, "max_size": 2}})
    backend = postgresql(make, alias=alias)
    handle = obtain(backend)
    for _ in range(3):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            assert str(cursor.fetchone()[0]) != handle.session_id
        close_old_connections()
        connections[alias].close()
    assert backend.prove(handle)
    assert postgresql(make).obtain(RESOURCE) is None
    assert handle.release()
    assert held_keys() == []


def test_inside_a_broken_transaction(backend: PostgreSQLLock) -> None:
    """Case 051: the caller's transaction may be aborted, but the lock is not a part of it."""
    with transaction.atomic():
        handle = obtain(backend)
        with pytest.raises(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT 1/0")
        assert handle.release()
        transaction.set_rollback(True)
    assert held_keys() == []


def test_a_heartbeat_behind_our_own_fence(backend: PostgreSQLLock, make: Make) -> None:
    """While a fenced transaction has the row, the lock itself is proof enough."""
    handle = obtain(backend)
    with transaction.atomic():
        handle.fence()
        assert backend.prove(handle)
        assert handle.release()  # the row is busy, and the next holder goes on all the same
    assert obtain(postgresql(make)).token == handle.token + 1


def test_the_server_restarts(
    private_server: Callable[..., PostgreSQL], add_alias: AddAlias, make: Make
) -> None:
    """A failover frees every lock: the holder learns it, and obtains anew when the server is up."""
    server = private_server("postgresql")
    backend = on_private(server, add_alias, make)
    handle = obtain(backend)
    server.kill()
    assert handle.wait_lost(10)
    with pytest.raises(LockUnavailable):
        backend.obtain(RESOURCE)
    server.start()
    assert obtain(backend, timeout=10).token > handle.token


def test_a_standby_is_no_pooler(
    private_server: Callable[..., PostgreSQL], add_alias: AddAlias, make: Make
) -> None:
    """In the middle of a failover nothing is found out: no lease table for the process's life."""
    server = private_server("postgresql")
    backend = on_private(server, add_alias, make)
    server.stop()
    (server.directory / "data" / "standby.signal").touch()
    server.start()
    assert server.execute("SELECT pg_is_in_recovery()") == [(True,)]
    with pytest.raises(LockUnavailable, match=r"The server of 'private' is a standby at present"):
        backend.probe()
    with pytest.raises(LockUnavailable, match="read-only"):
        backend.obtain(RESOURCE)
    server.execute("SELECT pg_promote()")
    assert backend.probe().usable
    assert obtain(backend, timeout=10).token == 1


def test_the_server_stands_still(
    private_server: Callable[..., PostgreSQL],
    add_alias: AddAlias,
    make: Make,
    wait_until: WaitUntil,
) -> None:
    """A proof that gets no answer: lost at the deadline, with nothing that waits for the server."""
    server = private_server("postgresql")
    backend = on_private(server, add_alias, make)
    handle = obtain(backend)
    begin = time.monotonic()
    server.pause()
    try:
        assert handle.wait_lost(10)
        assert time.monotonic() - begin < backend.lease + MARGIN
        wait_until(lambda: not backend._session.is_open, what="the session is closed")
        assert handle.release() is False
    finally:
        server.resume()
    assert obtain(backend, timeout=10).token > handle.token


def on_private(server: PostgreSQL, add_alias: AddAlias, make: Make) -> PostgreSQLLock:
    """A backend with a lease of two seconds on a server of its own."""
    alias = add_alias("private", NAME="outbox", PORT=server.port, USER="postgres")
    with connections[alias].schema_editor() as editor:
        from django_outbox_lock.models import Lock

        editor.create_model(Lock)
    connections[alias].close()
    return postgresql(make, alias=alias, lease=2.0)


# Whose database, whose names


def test_a_session_by_another_alias(add_alias: AddAlias, make: Make) -> None:
    """``session_using`` leads past a pooler, to the same database."""
    backend = postgresql(make, session_using=add_alias("direct"))
    assert backend.probe().usable
    handle = obtain(backend)
    assert postgresql(make).obtain(RESOURCE) is None
    with transaction.atomic():
        handle.fence()
    assert handle.release()


def test_a_session_to_another_database_is_refused(add_alias: AddAlias, make: Make) -> None:
    """A lock in one database and a fence in another protect nothing."""
    name = connection.settings_dict["NAME"] + "_elsewhere"
    query(f"DROP DATABASE IF EXISTS {name}")
    query(f"CREATE DATABASE {name} TEMPLATE template0")
    alias = add_alias("elsewhere", NAME=name)
    with pytest.raises(InvalidSettings, match="session_using"):
        postgresql(make, session_using=alias, namespace="given").probe()


def test_schemas_have_names_of_their_own(add_alias: AddAlias, make: Make) -> None:
    """Tenants by schema share the key space of a database, but not their locks."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA IF NOT EXISTS tenant")
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS tenant.django_outbox_lock_lock "
            "(LIKE public.django_outbox_lock_lock INCLUDING ALL)"
        )
    alias = add_alias("tenant", OPTIONS={"options": "-c search_path=tenant,public"})
    here, there = postgresql(make), postgresql(make, alias=alias)
    assert (here.namespace, there.namespace) == ("public", "tenant")
    obtain(here)
    obtain(there)
    assert len(held_keys()) == 2
    query("DROP SCHEMA tenant CASCADE")


def test_a_given_namespace(make: Make) -> None:
    backend = postgresql(make, namespace="shop")
    assert backend.store_key("x") == str(keys.advisory_key("shop", "x"))
    assert backend.store_key("x") != postgresql(make).store_key("x")


def test_a_missing_table(add_alias: AddAlias, make: Make) -> None:
    """The error says what to do, and nothing is held."""
    backend = postgresql(make, alias=add_alias("tableless", NAME="postgres"))
    with pytest.raises(LockUnavailable, match="migrate"):
        backend.obtain(RESOURCE)


# What can be seen


@pytest.mark.parametrize("key", [-1, 0, 1, 2**63 - 1, -(2**63), -(2**32), 2**32 - 1])
def test_foreign_locks_at_the_edges(backend: PostgreSQLLock, key: int) -> None:
    """The halves of a key are shown unsigned; their sum is the key again."""
    try:
        query("SELECT pg_advisory_lock(%s)", key)
        (row,) = backend.holders()
        assert (row.resource, row.state) == (str(key), LockState.FOREIGN)
        assert row.pid == int(row.session_id)
    finally:
        query("SELECT pg_advisory_unlock_all()")


def test_two_part_keys_are_not_ours(backend: PostgreSQLLock) -> None:
    """They are another key space of the server."""
    try:
        query("SELECT pg_advisory_lock(1, 2)")
        assert backend.holders() == []
    finally:
        query("SELECT pg_advisory_unlock_all()")


def test_a_released_row_whose_lock_is_still_held(backend: PostgreSQLLock) -> None:
    """A force release that could not end the session: the list says who is in the way."""
    handle = obtain(backend)
    assert fence.force(connection, RESOURCE, handle.token, "admin")
    free, foreign = sorted(backend.holders(), key=lambda row: row.state, reverse=True)
    assert (free.resource, free.state) == (RESOURCE, LockState.FREE)
    assert (foreign.state, foreign.session_id) == (LockState.FOREIGN, handle.session_id)
    assert foreign.application.startswith("outboxlock:")


@pytest.fixture
def low(add_alias: AddAlias) -> Iterator[str]:
    """An alias whose role may read the registry and nothing else."""
    query("CREATE ROLE low LOGIN")
    query("GRANT SELECT ON django_outbox_lock_lock TO low")
    yield add_alias("low", USER="low")
    connections["low"].close()
    query("DROP OWNED BY low")
    query("DROP ROLE low")


def test_a_role_without_privileges_sees_the_registry(
    low: str, make: Make, backend: PostgreSQLLock
) -> None:
    """pg_locks is for everybody; who may not see it gets "not verified", and no error."""
    obtain(backend)
    looking = postgresql(make, alias=low, namespace=backend.namespace)
    assert [row.state for row in looking.holders()] == [LockState.HELD]
    query("REVOKE SELECT ON pg_locks FROM PUBLIC")
    try:
        with transaction.atomic(using=low):
            assert [row.state for row in looking.holders()] == [LockState.UNVERIFIED]
            assert [row.state for row in looking.holders()] == [LockState.UNVERIFIED]
    finally:
        query("GRANT SELECT ON pg_locks TO PUBLIC")


def test_force_release_without_the_privilege_to_kill(
    low: str, make: Make, backend: PostgreSQLLock
) -> None:
    """The fence is enough: the holder writes nothing, even where nobody may end its session."""
    query("GRANT UPDATE ON django_outbox_lock_lock TO low")
    handle = obtain(backend)
    admin = postgresql(make, alias=low, namespace=backend.namespace)
    assert admin.force_release(RESOURCE, handle.token, by="admin")
    assert backend._session.is_open
    assert not backend.renew(handle)
    assert handle.lost
    assert held_keys() == []


def test_force_release_ends_no_innocent_session(backend: PostgreSQLLock, make: Make) -> None:
    """The number of a session that is gone may be somebody else's by now."""
    handle = obtain(backend)
    ((mine,),) = query("SELECT pg_backend_pid()")
    query("UPDATE django_outbox_lock_lock SET session_id = %s", str(mine))
    assert postgresql(make).force_release(RESOURCE, handle.token, by="admin")
    assert query("SELECT pg_backend_pid()") == [(mine,)]


@pytest.mark.server("redis")
@pytest.mark.parametrize("native", [True, False], ids=["the lock's", "the registry's"])
def test_a_session_that_began_read_only_is_given_up(
    make: Make, running_server: Callable[[str], Server], *, native: bool
) -> None:
    """It stays so for its whole life, and whoever waits would never let it die of idleness."""
    store = {"url": running_server("redis").url, "namespace": uuid.uuid4().hex}
    backend = make(PostgreSQLLock) if native else make(RedisLock, **store)
    name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
    query(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        with pytest.raises(LockUnavailable, match="read-only"):
            backend.obtain(RESOURCE)
    finally:
        query(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    handle = backend.obtain(RESOURCE)
    assert handle is not None
    assert handle.release()


def test_a_name_that_the_server_does_not_tell_in_time(
    make: Make, add_alias: AddAlias, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema is part of the key; whoever waits for the lock asks for it again."""
    # Everything else on this alias must be done within the limit, on a busy machine, too.
    hurried = add_alias("hurried", OPTIONS={"options": "-c statement_timeout=3000"})
    backend = postgresql(make, alias=hurried)
    with monkeypatch.context() as patched:
        patched.setattr(postgresql_room, "_SCHEMA", "SELECT %s FROM pg_sleep(10)")
        with pytest.raises(LockUnavailable, match="has a name yet"):
            backend.obtain(RESOURCE)
    assert obtain(backend).release()
