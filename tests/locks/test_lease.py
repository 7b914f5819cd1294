"""The lease table, on every database."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest
from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.db.models import F
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox_lock import dberrors, fence
from django_outbox_lock.backends.locks.lease import ROW_WAIT, LeaseTableLock
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.models import Hold, Lock
from django_outbox_lock.testing.lock_items.base import in_threads
from django_outbox_lock.testing.locks import LockContract
from django_outbox_lock.waits import bounded_session
from tests.sessions import cut_session, on_each_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.handle import LockHandle
    from tests.conftest import WaitUntil
    from tests.locks.conftest import AddAlias, Make
    from tests.servers.postgresql import PostgreSQL

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])

RESOURCE = "nightly-report"
sqlite_only = pytest.mark.server("sqlite")


class TestContract(LockContract):
    backend_class = LeaseTableLock


@pytest.fixture
def backend(make: Make) -> LeaseTableLock:
    return lease_table(make)


def lease_table(make: Make, alias: str = "default", **options: object) -> LeaseTableLock:
    backend = make(LeaseTableLock, alias, **options)
    assert isinstance(backend, LeaseTableLock)
    return backend


def obtain(backend: LeaseTableLock, timeout: float = 0) -> LockHandle:
    handle = backend.obtain(RESOURCE, timeout=timeout)
    assert handle is not None
    return handle


@on_each_server
def test_a_connection_that_died_of_idleness(backend: LeaseTableLock, _database: str) -> None:
    """Nothing was asked of the row over it: taking, proving and freeing go on over a new one."""
    cut_session()
    handle = obtain(backend)
    cut_session()
    assert backend.renew(handle)
    cut_session()
    assert handle.release()
    assert obtain(backend).release()  # it was freed at once


def test_a_lease_that_is_left_to_expire(make: Make) -> None:
    """A release ends the renewal only, and says that the lock was held until then."""
    backend = lease_table(make, lease=3.0, leave_to_expire=True)
    begin = time.monotonic()
    assert obtain(backend).release() is True
    assert backend.obtain(RESOURCE) is None
    assert backend.obtain(RESOURCE, timeout=10) is not None
    assert time.monotonic() - begin >= 2.9


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Adak"])
@pytest.mark.parametrize("use_tz", [True, False])
@sqlite_only
def test_time_zones_have_no_say(make: Make, zone: str, *, use_tz: bool) -> None:
    """Case 055: a lease lasts its nominal time whatever Django's zone is."""
    with override_settings(USE_TZ=use_tz, TIME_ZONE=zone):
        backend = lease_table(make, lease=40)
        handle = obtain(backend)
        (row,) = backend.holders()
        assert row.expires_at is not None
        assert row.acquired_at is not None
        assert 39 <= (row.expires_at - row.acquired_at).total_seconds() <= 41
        assert handle.expires_at is not None
        assert abs((handle.expires_at - row.expires_at).total_seconds()) < 5


def test_the_clock_of_the_process_has_no_say(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 053: two processes whose clocks are an hour apart agree, by the server's clock."""
    real = time.time
    obtain(lease_table(make))
    for step in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        assert lease_table(make).obtain(RESOURCE) is None


def test_a_late_claimant_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 061: whoever slept before its UPDATE is judged at the UPDATE, not before."""
    real, rival = fence.bump, lease_table(make)

    def late(*args: object) -> int | None:
        monkeypatch.setattr(fence, "bump", real)
        in_threads([lambda: obtain(rival)])
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(fence, "bump", late)
    assert lease_table(make).obtain(RESOURCE) is None


def test_a_grant_that_came_too_late_is_given_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 057: the lease was over before its taker knew: others have it at once."""
    real = fence.bump

    def slow(*args: object) -> int | None:
        token = real(*args)  # type: ignore[arg-type]
        time.sleep(1.1)
        return token

    monkeypatch.setattr(fence, "bump", slow)
    assert lease_table(make, lease=1.0).obtain(RESOURCE) is None
    monkeypatch.setattr(fence, "bump", real)
    assert obtain(lease_table(make)).token == 2


def test_a_lease_far_ahead_has_expired(make: Make) -> None:
    """K24: the server's clock was set back by an hour: nobody waits for that hour."""
    obtain(lease_table(make)).release()
    Lock.objects.update(owner="f" * 32, expires_at=F("expires_at") + 3_600_000_000)
    assert [row.state for row in lease_table(make).holders()] == ["expired"]
    assert obtain(lease_table(make)).token == 2


def test_a_renewal_inside_a_transaction_is_refused(backend: LeaseTableLock) -> None:
    """It would be undone with the transaction, after the holder had counted on it."""
    handle = obtain(backend)
    with (
        transaction.atomic(),
        pytest.raises(transaction.TransactionManagementError, match="inside a transaction"),
    ):
        backend.renew(handle)
    assert not handle.lost


def test_a_release_inside_a_transaction_counts_from_its_commit(backend: LeaseTableLock) -> None:
    """The next holder sees what the transaction wrote (django-pglocks 15)."""
    handle = obtain(backend)
    with transaction.atomic():
        handle.fence()
        Hold.objects.create(order_key=1, head_id=1)
        assert handle.release()
    assert Hold.objects.exists()
    assert obtain(backend).token == handle.token + 1


def test_a_fence_too_early_in_a_long_transaction(make: Make) -> None:
    """E15: the renewal waits behind the holder's own fence; the lock is lost, nothing written."""
    backend = lease_table(make, lease=1.0)
    handle = obtain(backend)
    # PostgreSQL may end the session first: it was silent for a lease.
    with contextlib.suppress(DatabaseError, InterfaceError), transaction.atomic():
        handle.fence()
        handle.wait_lost(10)
    connection.close()
    assert handle.lost


def test_a_database_that_is_down(add_alias: AddAlias, make: Make) -> None:
    """No answer is an error, not "busy"; nothing else may tell a dead database from a holder."""
    if connection.vendor == "sqlite":
        alias = add_alias("away", NAME="/nowhere/db.sqlite3")
    else:
        alias = add_alias("away", PORT=1, HOST="127.0.0.1")
    with pytest.raises(LockUnavailable):
        lease_table(make, alias).obtain(RESOURCE)


@pytest.mark.server("postgresql")
def test_a_database_that_restarts_in_a_lease(
    private_server: Callable[..., PostgreSQL],
    add_alias: AddAlias,
    make: Make,
    wait_until: WaitUntil,
) -> None:
    """Case 069: renewals are tried on new connections, and the lock outlives a short outage."""
    server = private_server("postgresql")
    alias = add_alias("private", NAME="outbox", PORT=server.port, USER="postgres")
    with connections[alias].schema_editor() as editor:
        editor.create_model(Lock)
    backend = lease_table(make, alias, lease=20.0)
    handle = obtain(backend)
    assert backend.renew(handle)
    server.restart()
    before = handle.deadline
    wait_until(lambda: handle.deadline > before, timeout=20, what="a renewal")
    assert not handle.lost
    assert backend.obtain("another", timeout=10), "the caller's own dead connection was replaced"
    assert handle.release()


# SQLite


@sqlite_only
def test_a_long_writer_starves_the_renewals(make: Make, wait_until: WaitUntil) -> None:
    """K23: the lock is lost, but nobody else can take it before the writer ends."""
    backend, rival = lease_table(make, lease=1.0), lease_table(make)
    handle = obtain(backend)
    writing, done = threading.Event(), threading.Event()

    def write() -> None:
        with transaction.atomic():
            Hold.objects.create(order_key=1, head_id=1)
            writing.set()
            done.wait(30)
        connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert writing.wait(10)
        assert handle.wait_lost(10)
        begin = time.monotonic()
        assert rival.obtain(RESOURCE) is None
        assert time.monotonic() - begin < ROW_WAIT + 2, "the wait for the row is bounded"
    finally:
        done.set()
        writer.join(10)
    assert obtain(rival, timeout=10).token == handle.token + 1


@sqlite_only
def test_a_token_bumped_inside_a_users_transaction(
    add_alias: AddAlias, backend: LeaseTableLock
) -> None:
    """E18: a read, then a write: with IMMEDIATE it is the lock that waits, not the user."""
    alias = add_alias("immediate", OPTIONS={"transaction_mode": "IMMEDIATE", "timeout": 5})
    assert _read_then_write(alias, backend) is False
    assert Hold.objects.count() == 1


@sqlite_only
def test_a_token_bumped_inside_a_deferred_transaction(
    add_alias: AddAlias, backend: LeaseTableLock
) -> None:
    """E18, the control: without IMMEDIATE the user's transaction fails, whatever its time-out."""
    alias = add_alias("deferred", OPTIONS={"transaction_mode": "DEFERRED", "timeout": 5})
    with pytest.raises(OperationalError) as caught:
        _read_then_write(alias, backend)
    assert dberrors.is_lock_timeout(caught.value)


def _read_then_write(alias: str, backend: LeaseTableLock) -> bool:
    """A user's transaction in WAL mode; tells whether a lock could be had in the middle of it."""
    with transaction.atomic(using=alias):
        list(Hold.objects.using(alias).all())
        bumped = _bump_elsewhere(backend)
        Hold.objects.using(alias).create(order_key=1, head_id=1)
    return bumped


def _bump_elsewhere(backend: LeaseTableLock) -> bool:
    seen = []

    def bump() -> None:
        try:
            with bounded_session(connection, 0.2):
                seen.append(backend.obtain(f"{RESOURCE} {time.monotonic_ns()}"))
        finally:
            connections.close_all()

    thread = threading.Thread(target=bump)
    thread.start()
    thread.join(10)
    return seen[0] is not None


@sqlite_only
def test_what_it_costs_on_sqlite(backend: LeaseTableLock) -> None:
    """Read, set and reset the time-out round one UPDATE, for each half."""
    obtain(backend).release()
    with CaptureQueriesContext(connection) as captured:
        obtain(backend).release()
    assert len([query for query in captured.captured_queries if "UPDATE" in query["sql"]]) == 2
    assert len(captured) <= 2
