"""The user locks of MySQL and MariaDB (``GET_LOCK``), on a session of their own."""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections

from django_outbox_lock import dberrors, fence, keys, registry
from django_outbox_lock.backends.locks.base import Live, ProbeResult
from django_outbox_lock.backends.locks.session import (
    CONNECT_TIMEOUT,
    ROW_WAIT,
    SessionLockBackend,
)
from django_outbox_lock.exceptions import LockUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

    from django_outbox_lock.backends.locks.handle import LockHandle

logger = logging.getLogger("django_outbox_lock.locks")

# read_only is a number on MySQL and on MariaDB up to 11, a word on later ones.
_WRITABLE = "CONCAT(@@GLOBAL.read_only) IN ('0', 'OFF') AND NOT @@GLOBAL.innodb_read_only"
# Where file names ignore case, so do database names, and one database must have one name.
_DATABASE = "IF(@@GLOBAL.lower_case_table_names = 0, DATABASE(), LOWER(DATABASE()))"
_CLUSTER = (
    "SHOW GLOBAL VARIABLES WHERE "
    "(Variable_name = 'wsrep_on' AND Value = 'ON') OR "
    "(Variable_name = 'group_replication_single_primary_mode' AND Value = 'OFF')"
)
# Always NULL; an UPDATE comes to it when it has found its row, and tells the number besides.
_UNLOCKING = "IF(LAST_INSERT_ID(COALESCE(RELEASE_LOCK(%s), 0)), NULL, NULL)"
_AT_ONCE = 1000  # a SELECT takes 4,096 columns
# What shows the locks of everybody, to those who may look: the plugin of MariaDB, and MySQL's
# table, which MariaDB has, too, but leaves empty unless its performance schema is on.
_PLUGIN = (
    "SELECT l.table_schema, l.thread_id, p.host FROM information_schema.metadata_lock_info l "
    "LEFT JOIN information_schema.processlist p ON p.id = l.thread_id "
    "WHERE l.lock_type = 'User lock' AND LEFT(l.table_schema, 7) = 'outbox:'"
)
_PERFORMANCE_SCHEMA = (
    "SELECT l.object_name, t.processlist_id, t.processlist_host "
    "FROM performance_schema.metadata_locks l "
    "JOIN performance_schema.threads t ON t.thread_id = l.owner_thread_id "
    "WHERE l.object_type = 'USER LEVEL LOCK' AND l.lock_status = 'GRANTED' "
    "AND LEFT(l.object_name, 7) = 'outbox:'"
)


class MySQLLock(SessionLockBackend):
    """``GET_LOCK`` with a name of 64 characters; the name space is the whole server.

    User locks live in the server's memory and are not replicated: a failover frees them, and a
    cluster that writes on several nodes has one set of them on each.
    """

    label = "mysql"
    vendor = "mysql"

    @property
    def namespace(self) -> str:
        """The database's name, behind the given namespace: other databases share the server."""
        return "\0".join(filter(None, [self._given_namespace, self._database]))

    @functools.cached_property
    def _database(self) -> str:
        with self._naming() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {_DATABASE}")
            return str(cursor.fetchone()[0])

    def store_key(self, resource: str) -> str:
        return keys.user_lock_name(self.namespace, resource)

    def connection_options(self) -> dict[str, Any]:
        """Whole seconds; an answer takes longer than the wait for the registry's row."""
        from MySQLdb.constants import CLIENT  # where there is no driver, nobody asks

        patience = max(ROW_WAIT + 1, math.ceil(self.lease / 3))
        given = connections[self.session_using].settings_dict["OPTIONS"].get("client_flag", 0)
        return {
            "client_flag": given | CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            "connect_timeout": CONNECT_TIMEOUT,
            "read_timeout": patience,
            "write_timeout": patience,
            "isolation_level": "read committed",
        }

    def prepare(self, cursor: CursorWrapper) -> None:
        """``wait_timeout`` ends a session that was silent for a lease, and frees its locks."""
        cursor.execute(
            "SET SESSION wait_timeout = %s, SESSION interactive_timeout = %s, "
            "SESSION innodb_lock_wait_timeout = %s, SESSION lock_wait_timeout = %s",
            [math.ceil(self.lease)] * 2 + [ROW_WAIT] * 2,
        )

    def try_lock(self, cursor: CursorWrapper, key: str) -> bool:
        # Never a negative or a broken number of seconds: the two servers read them differently.
        cursor.execute("SELECT GET_LOCK(%s, 0)", [key])
        return self._is_yes(cursor.fetchone()[0], key)

    def lock_and_bump(
        self, connection: BaseDatabaseWrapper, claim: fence.Claim, key: str
    ) -> int | None:
        """Both in one go; the row is not touched, nor waited for, when the lock was refused."""
        bump, params = fence.taking(connection, claim)
        with connection.cursor() as cursor:
            sql = f"SET @outbox_lock = GET_LOCK(%s, 0); {bump} AND @outbox_lock = 1"
            cursor.execute(sql, [key, *params])
            cursor.nextset()
            token = int(cursor.lastrowid) if cursor.rowcount == 1 else None
            if token is None:
                cursor.execute("SELECT @outbox_lock")
                if not self._is_yes(cursor.fetchone()[0], key):
                    return None
        self._session.keys.add(key)
        return fence.bump(connection, claim) if token is None else token

    def unlock(self, cursor: CursorWrapper, key: str) -> bool:
        cursor.execute("SELECT RELEASE_LOCK(%s)", [key])
        return bool(cursor.fetchone()[0] == 1)

    def free_and_unlock(self, connection: BaseDatabaseWrapper, handle: LockHandle) -> bool:
        """Both in one statement: whoever then gets the lock waits for the row's commit."""
        free, params = fence.freeing(connection, handle.ticket)
        try:
            with connection.cursor() as cursor:
                sql = free.replace("= NULL", f"= {_UNLOCKING}", 1)
                cursor.execute(sql, [handle.store_key, *params])
                freed, unlocked = cursor.rowcount == 1, cursor.lastrowid == 1
        except DatabaseError as error:
            if not dberrors.is_transient(error):
                raise
            return super().free_and_unlock(connection, handle)  # the row is busy
        if not (freed and unlocked):
            return self._unlock(connection, handle.store_key) and freed
        self._session.keys.discard(handle.store_key)
        return True

    def owns(self, cursor: CursorWrapper, key: str) -> bool:
        cursor.execute(f"SELECT IS_USED_LOCK(%s) = CONNECTION_ID() AND {_WRITABLE}", [key])
        return bool(cursor.fetchone()[0] == 1)

    def session_id(self, cursor: CursorWrapper) -> str:
        cursor.execute("SELECT CONNECTION_ID()")
        return str(cursor.fetchone()[0])

    def seen(self, cursor: CursorWrapper) -> Iterator[Live]:
        """Of the registry's resources anybody may ask; what else is locked only some may see."""
        yield from self._asked_by_name(cursor)
        for view in (_PLUGIN, _PERFORMANCE_SCHEMA):
            yield from self._viewed(cursor, view)

    def kill(self, cursor: CursorWrapper, session_id: str) -> None:
        cursor.execute("KILL CONNECTION %s", [int(session_id)])

    def meets(self, cursor: CursorWrapper, key: str, session_id: str) -> bool:
        cursor.execute(f"SELECT IS_USED_LOCK(%s), {_DATABASE}", [key])
        return tuple(map(str, cursor.fetchone())) == (session_id, self._database)

    def _is_yes(self, answer: int | None, key: str) -> bool:
        if answer is None:
            raise LockUnavailable(f"GET_LOCK({key!r}) was interrupted or failed on the server.")
        return answer == 1

    def _asked_by_name(self, cursor: CursorWrapper) -> Iterator[Live]:
        names = [self.store_key(row.resource) for row in registry.holders(connections[self.alias])]
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            cursor.execute(f"SELECT {', '.join(['IS_USED_LOCK(%s)'] * len(some))}", some)
            for name, session in zip(some, cursor.fetchone(), strict=True):
                if session is not None:
                    yield Live(name, str(session))

    def _viewed(self, cursor: CursorWrapper, view: str) -> Iterator[Live]:
        try:
            cursor.execute(view)
        except DatabaseError as error:
            logger.debug("the locks of %r: a view cannot be read: %s", self.alias, error)
            return
        for name, session, host in cursor.fetchall():
            yield Live(str(name), str(session), host=(host or "").partition(":")[0])

    def _probe(self, one: BaseDatabaseWrapper, two: BaseDatabaseWrapper, key: str) -> ProbeResult:
        with one.cursor() as cursor:
            if cluster := self._cluster(cursor):
                reason = f"user locks are local to a node of the cluster ({cluster})"
                return ProbeResult(False, reason)
            cursor.execute(f"SELECT {_WRITABLE}")
            if not cursor.fetchone()[0]:
                raise LockUnavailable(f"The server of {self.alias!r} is read-only at present.")
        return super()._probe(one, two, key)

    def _cluster(self, cursor: CursorWrapper) -> str | None:
        """The variable that shows that several nodes write, as in Galera."""
        cursor.execute(_CLUSTER)
        row = cursor.fetchone()
        return row and str(row[0])
