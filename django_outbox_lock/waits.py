"""How long a statement may wait for somebody else's lock, by the server's own time-out.

Chosen by the vendor's name: the time-outs have nothing in common but their purpose. A vendor that
is not listed has none, and its waits end by its own settings.

=============  ===========================  =======================================================
vendor         time-out                     scope, resolution
=============  ===========================  =======================================================
postgresql     ``lock_timeout``             the transaction (``SET LOCAL``); milliseconds
cockroachdb    ``lock_timeout``             the transaction (``SET LOCAL``); milliseconds
mysql          ``innodb_lock_wait_timeout`` the session; whole seconds, rounded up, at least one
sqlite         ``busy_timeout``             the session; milliseconds; also the wait of ``BEGIN``
microsoft      ``LOCK_TIMEOUT``             the session; milliseconds
=============  ===========================  =======================================================
"""

from __future__ import annotations

import math
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import Error, connections, transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from django.db.backends.base.base import BaseDatabaseWrapper


# Seconds: about 24 days, as milliseconds the most that every server takes.
_LONGEST = 2_147_483


def milliseconds(seconds: float) -> int:
    """The seconds as a number that every server and driver takes for one of its time-outs."""
    # Not 0: that is "no limit" on PostgreSQL.
    return max(1, math.ceil(min(seconds, _LONGEST) * 1000))


def _whole_seconds(seconds: float) -> int:
    return max(1, math.ceil(min(seconds, _LONGEST)))


@dataclass(frozen=True)
class _Timeout:
    read: str
    write: str
    unit: Callable[[float], int]
    per_transaction: bool = False
    write_session: str = ""


_POSTGRESQL = _Timeout(
    "SELECT current_setting('lock_timeout')",
    "SELECT set_config('lock_timeout', '{}', true)",
    milliseconds,
    per_transaction=True,
    write_session="SELECT set_config('lock_timeout', '{}', false)",
)
_TIMEOUTS = {
    "postgresql": _POSTGRESQL,
    "cockroachdb": _POSTGRESQL,
    "mysql": _Timeout(
        "SELECT @@SESSION.innodb_lock_wait_timeout",
        "SET SESSION innodb_lock_wait_timeout = {}",
        _whole_seconds,
    ),
    "sqlite": _Timeout("PRAGMA busy_timeout", "PRAGMA busy_timeout = {}", milliseconds),
    "microsoft": _Timeout("SELECT @@LOCK_TIMEOUT", "SET LOCK_TIMEOUT {}", milliseconds),
}


@contextmanager
def bounded_wait(connection: BaseDatabaseWrapper, seconds: float | None) -> Iterator[None]:
    """Each statement inside waits at most ``seconds`` for a lock; None leaves the limit as it is.

    The statement that waited longer raises an error that ``dberrors.is_lock_timeout`` knows. The
    limit from before is in force again afterwards. Where the limit is the transaction's and none
    is open, the block becomes one, on the connection that Django has for the alias.
    """
    timeout = _TIMEOUTS.get(connection.vendor)
    if timeout is None or seconds is None:
        yield
    elif timeout.per_transaction and connection.get_autocommit():
        with _own_transaction(connection):  # at whose end its limit is gone
            _run(connection, timeout.write.format(timeout.unit(seconds)))
            yield
    else:
        with _limited(connection, seconds, timeout):
            yield


def limit_session(connection: BaseDatabaseWrapper, seconds: float) -> None:
    """From now on no statement on this connection waits longer than ``seconds`` for a lock.

    For connections that are nobody else's; nothing happens on a vendor that is not listed.
    """
    timeout = _TIMEOUTS.get(connection.vendor)
    if timeout is not None:
        write = timeout.write_session or timeout.write
        _run(connection, write.format(timeout.unit(seconds)))


def bounded_session(
    connection: BaseDatabaseWrapper, seconds: float | None
) -> AbstractContextManager[None]:
    """``bounded_wait`` where the limit is the session's: to be entered before ``atomic`` as well.

    SQLite waits for its lock when the transaction begins.
    """
    return _scoped(connection, seconds, per_transaction=False)


def bounded_transaction(
    connection: BaseDatabaseWrapper, seconds: float | None
) -> AbstractContextManager[None]:
    """``bounded_wait`` where the limit is the transaction's; nothing elsewhere.

    A limit for the session would outlive its transaction behind a pooler and reach strangers.
    """
    return _scoped(connection, seconds, per_transaction=True)


def _scoped(
    connection: BaseDatabaseWrapper, seconds: float | None, *, per_transaction: bool
) -> AbstractContextManager[None]:
    timeout = _TIMEOUTS.get(connection.vendor)
    if timeout is None or seconds is None or timeout.per_transaction != per_transaction:
        return nullcontext()
    return _limited(connection, seconds, timeout)


def _own_transaction(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    if connections[connection.alias] != connection:
        raise ValueError(f"Begin a transaction on this session of {connection.alias!r} first.")
    return transaction.atomic(using=connection.alias)


@contextmanager
def _limited(connection: BaseDatabaseWrapper, seconds: float, timeout: _Timeout) -> Iterator[None]:
    before = _run(connection, timeout.read)
    _run(connection, timeout.write.format(timeout.unit(seconds)))
    try:
        yield
    except BaseException:
        _restore_after_error(connection, timeout, before)
        raise
    _run(connection, timeout.write.format(before))


def _restore_after_error(connection: BaseDatabaseWrapper, timeout: _Timeout, before: Any) -> None:
    try:
        _run(connection, timeout.write.format(before))
    except Error:
        # A failed transaction takes its limit with it. A session that cannot be set back is dead
        # or unfit for the next user.
        if not timeout.per_transaction:
            connection.close()


def _run(connection: BaseDatabaseWrapper, sql: str) -> Any:
    # Through the driver: Django refuses statements once a block is marked for rollback, and
    # the session's limit outlives that block.
    connection.ensure_connection()
    with connection.wrap_database_errors, closing(connection.connection.cursor()) as cursor:
        cursor.execute(sql)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None
