"""PostgreSQL behind a pooler in transaction mode, and behind functions that only pretend.

Case 029, cockroach 13546, yugabyte 3642: found by two sessions that try, not by a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connection, connections, transaction

from django_outbox_lock import locking
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.backends.locks.postgresql import PostgreSQLLock
from django_outbox_lock.conf import BackendSettings
from django_outbox_lock.exceptions import InvalidSettings, LockUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from tests.locks.conftest import AddAlias
    from tests.servers import Server

pytestmark = [
    pytest.mark.server("postgresql"),
    pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"]),
]

PATH = "OUTBOX_LOCK['pooled']['LOCK']"
POSTGRESQL = "django_outbox_lock.backends.locks.postgresql.PostgreSQLLock"
SETTINGS = ("idle_session_timeout", "statement_timeout", "lock_timeout")


@pytest.fixture
def choose() -> Iterator[Callable[..., BaseLockBackend]]:
    """Chooses the backend of an alias as the settings would have it."""
    chosen: list[BaseLockBackend] = []

    def by_settings(
        alias: str, backend: str | None = None, session_using: str | None = None
    ) -> BaseLockBackend:
        settings = BackendSettings(PATH, backend, {"session_using": session_using})
        chosen.append(locking.choose(alias, settings))
        return chosen[-1]

    yield by_settings
    for backend in chosen:
        backend.close()


@pytest.fixture
def pooled(add_alias: AddAlias, running_server: Callable[[str], Server]) -> Iterator[str]:
    """An alias that leads through PgBouncer in transaction mode."""
    port = running_server("pgbouncer").port
    yield add_alias("pooled", PORT=port, DISABLE_SERVER_SIDE_CURSORS=True)
    with connection.cursor() as cursor:  # the pooler keeps its sessions, under our names
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'outboxlock:%%'"
        )


def advisory_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        return int(cursor.fetchone()[0])


@pytest.mark.server("pgbouncer")
def test_a_pooler_is_found_out(
    pooled: str, choose: Callable[..., BaseLockBackend], caplog: pytest.LogCaptureFixture
) -> None:
    """Chosen by the vendor: the lease table, with a warning; and it works there."""
    backend = choose(pooled)
    assert type(backend) is LeaseTableLock
    assert "lease table, because a pooler" in caplog.text
    handle = backend.obtain("nightly-report")
    assert handle is not None
    assert LeaseTableLock("default").obtain("nightly-report") is None
    with transaction.atomic(using=pooled):
        handle.fence()
    assert backend.renew(handle)
    assert handle.release()


@pytest.mark.server("pgbouncer")
def test_a_pooler_under_a_lock_that_was_chosen_by_hand(
    pooled: str, choose: Callable[..., BaseLockBackend]
) -> None:
    with pytest.raises(InvalidSettings, match="cannot be used: a pooler"):
        choose(pooled, POSTGRESQL)


@pytest.mark.server("pgbouncer")
def test_past_the_pooler(
    pooled: str, add_alias: AddAlias, choose: Callable[..., BaseLockBackend]
) -> None:
    """``session_using`` names an alias that leads to the server itself."""
    backend = choose(pooled, session_using=add_alias("direct"))
    assert type(backend) is PostgreSQLLock
    handle = backend.obtain("nightly-report")
    assert handle is not None
    with transaction.atomic(using=pooled):
        handle.fence()
    assert [holder.state for holder in backend.holders()] == ["held"]
    assert handle.release()


@pytest.mark.server("pgbouncer")
def test_the_probe_leaves_no_trace_behind_a_pooler(
    pooled: str, choose: Callable[..., BaseLockBackend]
) -> None:
    """Neither a lock nor a setting on a session that strangers are given next."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [[*SETTINGS]])
        before = sorted(cursor.fetchall())
    choose(pooled)
    assert advisory_locks() == 0
    with connections[pooled].cursor() as cursor:
        cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [[*SETTINGS]])
        assert sorted(cursor.fetchall()) == before


@pytest.fixture
def stub(add_alias: AddAlias) -> Iterator[Callable[[str], str]]:
    """An alias whose server has the function in a version of its own."""

    def with_body(body: str) -> str:
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE OR REPLACE FUNCTION stub.pg_try_advisory_lock(bigint) RETURNS boolean "
                f"LANGUAGE sql AS $$ {body} $$"
            )
        return add_alias("stubbed", OPTIONS={"options": "-c search_path=stub,pg_catalog,public"})

    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA stub")
        yield with_body
        cursor.execute("DROP SCHEMA stub CASCADE")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("SELECT true", "two sessions were given the same lock"),
        ("SELECT false", "a lock that nobody else holds was refused"),
        ("SELECT 1/0 = 1", None),
    ],
)
def test_a_stub_is_found_out(
    stub: Callable[[str], str],
    choose: Callable[..., BaseLockBackend],
    caplog: pytest.LogCaptureFixture,
    body: str,
    reason: str | None,
) -> None:
    """A function that always says yes, one that always says no; an error proves nothing."""
    alias = stub(body)
    if reason is None:
        with pytest.raises(LockUnavailable, match="not probed"):
            choose(alias)
        return
    assert type(choose(alias)) is LeaseTableLock
    assert reason in caplog.text
    with pytest.raises(InvalidSettings, match=reason):
        choose(alias, POSTGRESQL)


def test_a_function_that_may_not_be_called(
    add_alias: AddAlias, choose: Callable[..., BaseLockBackend], caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal is an answer: the lease table serves."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE modest LOGIN")
        cursor.execute("REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock(bigint) FROM PUBLIC")
        try:
            assert type(choose(add_alias("modest", USER="modest"))) is LeaseTableLock
        finally:
            cursor.execute("GRANT EXECUTE ON FUNCTION pg_try_advisory_lock(bigint) TO PUBLIC")
            cursor.execute("DROP ROLE modest")
    assert "the server refuses them" in caplog.text


def test_a_server_that_cannot_be_reached(
    add_alias: AddAlias, choose: Callable[..., BaseLockBackend]
) -> None:
    """Nothing was found out: an error, and no fall-back to another kind of lock."""
    with pytest.raises(LockUnavailable):
        choose(add_alias("away", PORT=1))
