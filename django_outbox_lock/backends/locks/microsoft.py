"""The application locks of SQL Server (``sp_getapplock``), on a session of their own."""

from __future__ import annotations

import functools
import logging
import math
import re
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DatabaseError, InterfaceError, connections
from django.db.models import F

from django_outbox_lock import fence, keys, process, registry, signals
from django_outbox_lock.backends.locks.base import Grant, Live, ProbeResult
from django_outbox_lock.backends.locks.session import (
    CONNECT_TIMEOUT,
    ROW_WAIT,
    SessionLockBackend,
)
from django_outbox_lock.clock import ServerTime
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

    from django_outbox_lock.holder import Holder

logger = logging.getLogger("django_outbox_lock.locks")

# A refusal is a return code, not an error: what is not read is taken for a success.
_GET = (
    "SET NOCOUNT ON; DECLARE @name nvarchar(255) = %s, @code int; "
    "EXEC @code = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', "
    "@LockOwner = 'Session', @LockTimeout = 0, @DbPrincipal = 'public'; SELECT @code"
)
# To release what this session does not hold is an error (1223), hence the question before it.
_RELEASE = (
    "SET NOCOUNT ON; DECLARE @name nvarchar(255) = %s, @code int = -999; "
    "IF APPLOCK_MODE('public', @name, 'Session') <> 'NoLock' "
    "EXEC @code = sp_releaseapplock @Resource = @name, @LockOwner = 'Session', "
    "@DbPrincipal = 'public'; SELECT @code"
)
_UPDATEABILITY = "CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(20))"
_OWNS = (
    "SELECT CASE WHEN APPLOCK_MODE('public', %s, 'Session') = 'Exclusive' "
    f"AND {_UPDATEABILITY} = 'READ_WRITE' THEN 1 ELSE 0 END"
)
_GRANTABLE = "SELECT APPLOCK_TEST('public', %s, 'Exclusive', 'Session')"
_SEEN = (
    "SELECT l.resource_description, l.request_session_id, s.host_name, s.program_name, "
    "s.host_process_id FROM sys.dm_tran_locks l "
    "LEFT JOIN sys.dm_exec_sessions s ON s.session_id = l.request_session_id "
    "WHERE l.resource_type = 'APPLICATION' AND l.resource_database_id = DB_ID() "
    "AND l.request_status = 'GRANT' AND l.request_owner_type = 'SESSION'"
)
_GRANTED = {0, 1}
_BUSY = -1
_FAILURES = {-2: "the call was cancelled", -3: "it was chosen to end a deadlock"}
# The views show the first 32 characters of a name, as in "0:[ol:1f...9c:]:(2579568b)".
_SHOWN = 32
_DESCRIPTION = re.compile(r"\[(ol:.*)\]:\(")
_RETRIES = re.compile(r"ConnectRetryCount\s*=[^;]*;?", re.IGNORECASE)


class SQLServerLock(SessionLockBackend):
    """``sp_getapplock`` owned by the session; the name space is the database.

    The server has no time-out that ends a silent session. In its stead a contender that is refused
    ends the holder if the registry has not seen it for two of its own leases.
    """

    label: ClassVar[str] = "microsoft"
    vendor: ClassVar[str | None] = "microsoft"
    silence: ClassVar[float] = 2.0

    @property
    def namespace(self) -> str:
        """The given one, else the registry's schema."""
        return self._given_namespace or self._schema

    @functools.cached_property
    def _schema(self) -> str:
        with self._naming() as connection, connection.cursor() as cursor:
            table = connection.ops.quote_name(Lock._meta.db_table)
            schema = _value(cursor, "SELECT OBJECT_SCHEMA_NAME(OBJECT_ID(%s))", table)
        if schema is None:
            raise LockUnavailable(f"The table {Lock._meta.db_table} is missing: run migrate.")
        return str(schema)

    def store_key(self, resource: str) -> str:
        return keys.applock_name(self.namespace, resource)

    def connection_options(self) -> dict[str, Any]:
        """Time-outs in whole seconds; the ODBC driver must not replace a broken session itself."""
        options = connections[self.session_using].settings_dict["OPTIONS"]
        given = _RETRIES.sub("", options.get("extra_params") or "")
        return {
            "connection_timeout": CONNECT_TIMEOUT,
            "connection_retries": 0,
            "query_timeout": max(ROW_WAIT + 1, math.ceil(self.lease / 3)),
            "isolation_level": "READ COMMITTED",
            "extra_params": ";".join(filter(None, ["ConnectRetryCount=0", given])),
        }

    def prepare(self, cursor: CursorWrapper) -> None:
        # Without parameters: a driver wraps those in a procedure, at whose end a SET is undone.
        cursor.execute(f"SET NOCOUNT OFF; SET LOCK_TIMEOUT {ROW_WAIT * 1000}")

    def try_lock(self, cursor: CursorWrapper, key: str) -> bool:
        code = _value(cursor, _GET, key)
        if code not in _GRANTED and code != _BUSY:
            reason = _FAILURES.get(code, "the call or one of its parameters is wrong")
            raise LockUnavailable(f"sp_getapplock({key!r}) returned {code}: {reason}.")
        return code in _GRANTED

    def unlock(self, cursor: CursorWrapper, key: str) -> bool:
        return bool(_value(cursor, _RELEASE, key) == 0)

    def owns(self, cursor: CursorWrapper, key: str) -> bool:
        # APPLOCK_MODE speaks of the session that asks: one that a driver had put in the place of
        # ours would be told NoLock.
        return bool(_value(cursor, _OWNS, key) == 1)

    def session_id(self, cursor: CursorWrapper) -> str:
        return str(_value(cursor, "SELECT @@SPID"))

    def seen(self, cursor: CursorWrapper) -> Iterator[Live]:
        resources = [row.resource for row in registry.holders(connections[self.alias])]
        known = {key[:_SHOWN]: key for key in map(self.store_key, resources)}
        cursor.execute(_SEEN)
        for description, session, host, application, pid in cursor.fetchall():
            if shown := _DESCRIPTION.search(description):
                name = known.get(shown[1], shown[1])
                yield Live(name, str(session), host or "", application or "", pid)

    def kill(self, cursor: CursorWrapper, session_id: str) -> None:
        cursor.execute(f"KILL {int(session_id)}")

    def meets(self, cursor: CursorWrapper, key: str, session_id: str) -> bool:
        # Without the privilege to see locks: what could be granted here is not held here.
        return bool(_value(cursor, _GRANTABLE, key) == 0)

    def end_by_force(self, resource: str, holder: Holder) -> None:
        """On the lock's own session, because KILL is refused inside a transaction."""
        with self._session.use(self.lease) as connection, connection.cursor() as cursor:
            self._end(cursor, resource, holder.session_id)

    def take(self, resource: str, lock_id: str) -> Grant | None:
        grant = super().take(resource, lock_id)
        if grant is None:
            self._end_silent_holder(resource)
        return grant

    def _probe(self, one: BaseDatabaseWrapper, two: BaseDatabaseWrapper, key: str) -> ProbeResult:
        with one.cursor() as cursor:
            if _value(cursor, f"SELECT {_UPDATEABILITY}") != "READ_WRITE":
                raise LockUnavailable(f"The database of {self.alias!r} is read-only at present.")
        return super()._probe(one, two, key)

    def _end_silent_holder(self, resource: str) -> None:
        by = f"{process.host()}: no heartbeat"
        try:
            with self._session.use(self.lease) as connection, connection.cursor() as cursor:
                for token, session_id in self._silent(connection, cursor, resource):
                    if fence.force(connection, resource, token, by):
                        logger.warning("%s: token %s is fenced off by %s", resource, token, by)
                        self._send(
                            signals.lock_forced, resource=resource, token=token, forced_by=by
                        )
                        self._end(cursor, resource, session_id)
        except (DatabaseError, InterfaceError, LockUnavailable) as error:
            logger.warning("%s: a silent holder may still have the lock: %s", resource, error)

    def _silent(
        self, connection: BaseDatabaseWrapper, cursor: CursorWrapper, resource: str
    ) -> list[tuple[int, str]]:
        """Token and session of a holder that was not seen for two of its leases.

        Asked on the lock's own session: the caller's may look at an old snapshot.
        """
        rows = Lock.objects.filter(
            pk=keys.resource_id(resource),
            owner__isnull=False,
            backend=self.arbiter(resource),
            last_seen_at__lte=ServerTime() - 2 * F("lease"),
        ).values_list("token", "session_id")
        cursor.execute(*rows.query.get_compiler(connection=connection).as_sql())
        return list(cursor.fetchall())

    def _end(self, cursor: CursorWrapper, resource: str, session_id: str) -> None:
        """Numbers of sessions are given again: end only one that has the lock."""
        wanted = (self.store_key(resource), session_id)
        if any((lock.store_key, lock.session_id) == wanted for lock in self.seen(cursor)):
            self.kill(cursor, session_id)


def _value(cursor: CursorWrapper, sql: str, *params: str) -> Any:
    """The one value of the answer, which is read to its end: the connection is busy till then."""
    cursor.execute(sql, params or None)
    return cursor.fetchall()[0][0]
