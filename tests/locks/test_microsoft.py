"""SQL Server's application locks: what is asked, and how the answers are read.

No SQL Server can be had here: these tests run against ``tests.locks.sqlserver``, a stand-in at the
driver's seam. ``test_microsoft_server`` runs on the server of ``MSSQL_URL``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyodbc
import pytest
from django.db import connections
from mssql.base import DatabaseWrapper

from django_outbox_lock import keys, signals
from django_outbox_lock.backends.locks.microsoft import SQLServerLock
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.holder import LockState
from tests.locks.sqlserver import Row, SQLServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest_django

RESOURCE = "nightly"
NAME = keys.applock_name("dbo", RESOURCE)
LOCK_TIMEOUT = pyodbc.OperationalError(
    "42000", "[42000] Lock request time out period exceeded. (1222) (SQLExecDirectW)"
)


@pytest.fixture
def server(
    monkeypatch: pytest.MonkeyPatch, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[SQLServer]:
    """The stand-in, behind the alias "sqlserver"."""
    server = SQLServer()
    monkeypatch.setattr(pyodbc, "connect", server.connect)
    monkeypatch.setattr(DatabaseWrapper, "_known_versions", {})
    monkeypatch.setattr(DatabaseWrapper, "_known_azures", {})
    settings = {
        **connections["default"].settings_dict,
        "ENGINE": "mssql",
        "NAME": "shop",
        "HOST": "db",
        "USER": "app",
        "PASSWORD": "secret",
        "OPTIONS": {"extra_params": "Encrypt=yes;connectretrycount=3;TrustServerCertificate=no"},
    }
    monkeypatch.setitem(connections.settings, "sqlserver", settings)
    with django_db_blocker.unblock():
        yield server
    connections["sqlserver"].close()
    del connections["sqlserver"]


@pytest.fixture
def make(server: SQLServer) -> Iterator[Callable[..., SQLServerLock]]:
    made: list[SQLServerLock] = []

    def build(**options: Any) -> SQLServerLock:
        made.append(SQLServerLock("sqlserver", **options))
        return made[-1]

    yield build
    for backend in made:
        backend.close()


@pytest.fixture
def backend(make: Callable[..., SQLServerLock]) -> SQLServerLock:
    return make()


@pytest.fixture
def forced() -> Iterator[list[tuple[int, str]]]:
    told: list[tuple[int, str]] = []

    def note(token: int, forced_by: str, **kwargs: Any) -> None:
        told.append((token, forced_by))

    signals.lock_forced.connect(note)
    yield told
    signals.lock_forced.disconnect(note)


def test_the_vendor_chooses_this_backend(server: SQLServer) -> None:
    from django_outbox_lock.locking import backend_by_vendor

    assert backend_by_vendor("sqlserver").endswith("microsoft.SQLServerLock")


def test_obtain_and_release(make: Callable[..., SQLServerLock], server: SQLServer) -> None:
    one, two = make(), make()
    handle = one.obtain(RESOURCE)
    assert handle
    assert server.locks == {NAME: int(handle.session_id)}
    assert two.obtain(RESOURCE) is None
    assert one.renew(handle)
    assert handle.release()
    assert server.locks == {}
    successor = two.obtain(RESOURCE)
    assert successor
    assert successor.token > handle.token


def test_the_lock_is_the_sessions_and_open_to_every_user_case_051(
    backend: SQLServerLock, server: SQLServer
) -> None:
    """A lock of the transaction would end with it; one of a principal shuts out that one only."""
    assert backend.obtain(RESOURCE)
    asked = next(sql for sql, params in server.asked if "sp_getapplock" in sql)
    for part in ("@LockOwner = 'Session'", "@LockTimeout = 0", "@DbPrincipal = 'public'"):
        assert part in asked
    assert asked.startswith("SET NOCOUNT ON")
    assert asked.endswith("SELECT @code")


@pytest.mark.parametrize("code", [0, 1])
def test_a_return_code_from_zero_up_is_success(
    backend: SQLServerLock, server: SQLServer, code: int
) -> None:
    server.code = code
    assert backend.obtain(RESOURCE)


def test_minus_one_is_busy(backend: SQLServerLock, server: SQLServer) -> None:
    server.code = -1
    assert backend.obtain(RESOURCE) is None


@pytest.mark.parametrize("code", [-2, -3, -999, -1000])
def test_every_other_return_code_is_an_error(
    backend: SQLServerLock, server: SQLServer, code: int
) -> None:
    server.code = code
    with pytest.raises(LockUnavailable, match=str(code)):
        backend.obtain(RESOURCE)
    assert server.row is None


def test_the_name_is_found_in_the_characters_that_the_views_show() -> None:
    assert len(NAME.partition("]")[0][:32]) == 32
    assert NAME[:32] != keys.applock_name("dbo", "weekly")[:32]
    assert len(keys.applock_name("n" * 200, "ä" * 127)) <= 255


def test_the_session_is_not_replaced_and_does_not_wait_for_ever(
    backend: SQLServerLock, server: SQLServer
) -> None:
    assert backend.obtain(RESOURCE)
    parameters, options = server.connected[0]
    assert "ConnectRetryCount=0" in parameters
    assert "connectretrycount=3" not in parameters
    assert "Encrypt=yes;TrustServerCertificate=no" in parameters
    assert options["timeout"] == 5
    with backend._session.use(1) as connection:
        assert connection.connection.timeout == 20
    assert ("SET NOCOUNT OFF; SET LOCK_TIMEOUT 2000", ()) in server.asked


def test_a_session_that_the_server_ended_is_a_loss_case_049(
    backend: SQLServerLock, server: SQLServer
) -> None:
    """As a hosted server does after half an hour of silence; the heartbeat keeps it from that."""
    handle = backend.obtain(RESOURCE)
    assert handle
    server.end(int(handle.session_id))
    assert not backend.renew(handle)
    assert handle.lost
    assert len(server.connected) == 1


def test_a_lock_on_a_secondary_is_lost(backend: SQLServerLock, server: SQLServer) -> None:
    handle = backend.obtain(RESOURCE)
    assert handle
    server.updateability = "READ_ONLY"
    assert not backend.renew(handle)
    assert handle.lost


def test_the_probe_passes(backend: SQLServerLock, server: SQLServer) -> None:
    assert backend.probe().usable
    assert server.locks == {}


def test_a_secondary_is_no_reason_for_another_backend(
    backend: SQLServerLock, server: SQLServer
) -> None:
    """In the middle of a failover: an error to be tried again, not a stub or a pooler."""
    server.updateability = "READ_ONLY"
    with pytest.raises(LockUnavailable, match="read-only"):
        backend.probe()


def test_a_missing_table_is_told(backend: SQLServerLock, server: SQLServer) -> None:
    server.schema = None
    with pytest.raises(LockUnavailable, match="migrate"):
        backend.obtain(RESOURCE)


def test_a_busy_row_gives_the_lock_back(backend: SQLServerLock, server: SQLServer) -> None:
    server.fail_next["[token] = [token] + 1"] = LOCK_TIMEOUT
    assert backend.obtain(RESOURCE) is None
    assert server.locks == {}


def test_a_pooling_driver_gets_no_session_that_still_holds(
    backend: SQLServerLock, server: SQLServer
) -> None:
    """Such a driver keeps a session that was closed, and the server its locks."""
    server.pooled = True
    error = pyodbc.ProgrammingError("42000", "[42000] (229) (SQLExecDirectW)")
    server.fail_next["[token] = [token] + 1"] = error
    with pytest.raises(LockUnavailable):
        backend.obtain(RESOURCE)
    assert server.locks == {}


def test_holders_are_told_apart(backend: SQLServerLock, server: SQLServer) -> None:
    handle = backend.obtain(RESOURCE)
    assert handle
    server.locks["ol:0123456789abcdef0123456789ab:elsewhere"] = 99
    server.locks["somebody's own"] = 98
    held, foreign = backend.holders()
    assert (held.resource, held.state) == (RESOURCE, LockState.HELD)
    assert (foreign.resource, foreign.state) == (
        "ol:0123456789abcdef0123456789ab:",
        LockState.FOREIGN,
    )
    assert (foreign.host, foreign.application, foreign.pid) == ("web1", "shop", 4711)
    server.end(int(handle.session_id))
    assert backend.holders()[0].state is LockState.STALE


def test_who_may_not_look_gets_the_registry(backend: SQLServerLock, server: SQLServer) -> None:
    assert backend.obtain(RESOURCE)
    server.may_look = False
    assert [row.state for row in backend.holders()] == [LockState.UNVERIFIED]


def test_a_silent_holder_is_fenced_off_and_ended(
    make: Callable[..., SQLServerLock], server: SQLServer, forced: list[tuple[int, str]]
) -> None:
    """The server has no dead man's switch, so the contender is it."""
    one, two = make(), make()
    handle = one.obtain(RESOURCE)
    assert handle
    assert two.obtain(RESOURCE) is None
    assert not forced
    assert isinstance(server.row, Row)
    server.row.silent = True
    assert two.obtain(RESOURCE) is None
    assert [token for token, by in forced] == [handle.token]
    assert (f"KILL {handle.session_id}", ()) in server.asked
    successor = two.obtain(RESOURCE)
    assert successor
    assert successor.token > handle.token + 1
    assert not one.renew(handle)


def test_silence_is_judged_by_the_holders_own_lease_and_the_servers_clock(
    make: Callable[..., SQLServerLock], server: SQLServer
) -> None:
    assert make().obtain(RESOURCE)
    assert make().obtain(RESOURCE) is None
    asked = next(sql for sql, params in server.asked if "[owner] IS NOT NULL" in sql)
    assert "<= (DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME())" in asked
    assert "[lease]" in asked


def test_who_may_not_kill_still_fences_off(
    make: Callable[..., SQLServerLock], server: SQLServer, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = make(), make()
    handle = one.obtain(RESOURCE)
    assert handle
    assert isinstance(server.row, Row)
    server.row.silent = True
    server.may_look = False
    assert two.obtain(RESOURCE) is None
    assert server.row.owner is None
    assert "may still have the lock" in caplog.text
    assert not one.renew(handle)


def test_force_spares_a_session_that_only_has_the_number(
    make: Callable[..., SQLServerLock], server: SQLServer
) -> None:
    one, two = make(), make()
    handle = one.obtain(RESOURCE)
    assert handle
    server.locks.clear()
    assert two.force_release(RESOURCE, handle.token)
    assert not any(sql.startswith("KILL") for sql, params in server.asked)
