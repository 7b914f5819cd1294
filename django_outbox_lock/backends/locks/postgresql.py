"""PostgreSQL's advisory locks, on a session of their own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from django_outbox_lock import dberrors, fence, keys, process
from django_outbox_lock.backends.locks.base import Live, ProbeResult
from django_outbox_lock.backends.locks.session import (
    CONNECT_TIMEOUT,
    ROW_WAIT,
    SessionLockBackend,
)
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.models import Lock
from django_outbox_lock.waits import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

    from django_outbox_lock.backends.locks.handle import LockHandle

# pg_locks shows the two halves of a key as unsigned numbers.
_KEY = "((l.classid::bigint << 32) | l.objid::bigint)"
_SCHEMA = (
    "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.oid = to_regclass(%s)"
)
_OURS = "l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.database = d.oid"


class PostgreSQLLock(SessionLockBackend):
    """``pg_try_advisory_lock`` with a 64-bit key; the key space is the database.

    Advisory locks live in the server's memory: a failover frees them, and the proof therefore
    asks for the lock itself and for a server that is not in recovery.
    """

    label = "postgresql"
    vendor = "postgresql"

    @property
    def namespace(self) -> str:
        """The given one, else the registry's schema: tenants by schema share a key space."""
        return self._given_namespace or self._schema

    @functools.cached_property
    def _schema(self) -> str:
        with self._naming() as connection, connection.cursor() as cursor:
            cursor.execute(_SCHEMA, [connection.ops.quote_name(Lock._meta.db_table)])
            row = cursor.fetchone()
        if row is None:
            raise LockUnavailable(f"The table {Lock._meta.db_table} is missing: run migrate.")
        return str(row[0])

    def store_key(self, resource: str) -> str:
        return str(keys.advisory_key(self.namespace, resource))

    def connection_options(self) -> dict[str, Any]:
        from django.db.backends.postgresql.psycopg_any import is_psycopg3  # needs a driver

        prepared = {"server_side_binding": True, "prepare_threshold": 2} if is_psycopg3 else {}
        return prepared | {
            "application_name": process.session_name(self.alias),
            "connect_timeout": CONNECT_TIMEOUT,
            "keepalives": 1,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": milliseconds(self.lease),
        }

    def prepare(self, cursor: CursorWrapper) -> None:
        """A setting that the server does not know is passed over (idle_session_timeout: 14+)."""
        lease = f"{milliseconds(self.lease)}"
        wanted = {
            "lock_timeout": f"{milliseconds(ROW_WAIT)}",
            "statement_timeout": lease,
            "idle_session_timeout": lease,
            "idle_in_transaction_session_timeout": lease,
        }
        cursor.execute(
            "SELECT set_config(name, wanted.value, false) FROM pg_settings "
            "JOIN unnest(%s::text[], %s::text[]) AS wanted(name, value) USING (name)",
            [list(wanted), list(wanted.values())],
        )

    def try_lock(self, cursor: CursorWrapper, key: str) -> bool:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [int(key)])
        return bool(cursor.fetchone()[0])

    def unlock(self, cursor: CursorWrapper, key: str) -> bool:
        cursor.execute("SELECT pg_advisory_unlock(%s)", [int(key)])
        return bool(cursor.fetchone()[0])

    def free_and_unlock(self, connection: BaseDatabaseWrapper, handle: LockHandle) -> bool:
        """Both in one statement: the count is there only when the row has been freed."""
        free, params = fence.freeing(connection, handle.ticket)
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    f"WITH freed AS ({free} RETURNING 1) SELECT row.freed, pg_advisory_unlock(%s) "
                    "FROM (SELECT count(*) AS freed FROM freed) AS row",
                    [*params, int(handle.store_key)],
                )
                freed, unlocked = cursor.fetchone()
        except DatabaseError as error:
            if not dberrors.is_transient(error):
                raise
            return super().free_and_unlock(connection, handle)  # the row is busy
        self._session.keys.discard(handle.store_key)
        return bool(freed and unlocked)

    def owns(self, cursor: CursorWrapper, key: str) -> bool:
        cursor.execute(
            "SELECT NOT pg_is_in_recovery() AND EXISTS ("
            "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.datname = current_database() "
            f"WHERE {_OURS} AND l.pid = pg_backend_pid() AND {_KEY} = %s)",
            [int(key)],
        )
        return bool(cursor.fetchone()[0])

    def session_id(self, cursor: CursorWrapper) -> str:
        cursor.execute("SELECT pg_backend_pid()")
        return str(cursor.fetchone()[0])

    def seen(self, cursor: CursorWrapper) -> Iterator[Live]:
        cursor.execute(
            f"SELECT {_KEY}, l.pid, host(a.client_addr), a.application_name "
            "FROM pg_locks l JOIN pg_database d ON d.datname = current_database() "
            f"LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE {_OURS}"
        )
        for key, pid, host, application in cursor.fetchall():
            yield Live(str(key), str(pid or ""), host or "", application or "", pid)

    def kill(self, cursor: CursorWrapper, session_id: str) -> None:
        cursor.execute("SELECT pg_terminate_backend(%s)", [int(session_id)])

    def _probe(self, one: BaseDatabaseWrapper, two: BaseDatabaseWrapper, key: str) -> ProbeResult:
        for session in (one, two):  # with several hosts not always the same server
            with session.cursor() as cursor:
                cursor.execute("SELECT pg_is_in_recovery()")
                if cursor.fetchone()[0]:
                    raise LockUnavailable(f"The server of {self.alias!r} is a standby at present.")
        return super()._probe(one, two, key)
