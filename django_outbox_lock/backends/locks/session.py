"""Locks that live as long as one physical database session.

The session is a connection of its own, built beside Django's ``connections``, so that neither
``close_old_connections`` nor a pool can take it away, and it is never reopened while a lock is
held: a new session would hold nothing, and nobody would notice.
"""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DatabaseError, InterfaceError, connections

from django_outbox_lock import dberrors, fence
from django_outbox_lock.backends.locks.base import (
    BaseLockBackend,
    Grant,
    Live,
    LockUnavailable,
    ProbeResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.holder import Holder

ROW_WAIT = 2
CONNECT_TIMEOUT = 5


class LockSession:
    """One dedicated, unpooled, autocommit connection, used by one thread at a time.

    ``options`` are added to the driver's; ``prepare`` is called with a cursor once after each
    connect and returns the server's number of the session, which is then ``session_id``.
    """

    def __init__(
        self, alias: str, options: dict[str, Any], prepare: Callable[[CursorWrapper], str]
    ) -> None:
        self.session_id = ""
        self._alias = alias
        self._options = options
        self._prepare = prepare
        self._mutex = threading.RLock()
        self._wrapper: BaseDatabaseWrapper | None = None
        self._raw: Any = None

    @property
    def is_open(self) -> bool:
        return self._raw is not None

    @contextlib.contextmanager
    def use(self, timeout: float) -> Iterator[BaseDatabaseWrapper]:
        """The connection, for this thread alone; opened if it was closed.

        Raises ``LockUnavailable`` when it stays busy for ``timeout`` seconds or cannot be opened,
        and when the driver has quietly replaced the session since it was opened.
        """
        if not self._mutex.acquire(timeout=timeout):
            raise LockUnavailable(f"The lock session of {self._alias!r} is busy.")
        try:
            wrapper = self._wrapper or self._open()
            if wrapper.connection is not self._raw:
                raise LockUnavailable(f"The lock session of {self._alias!r} was replaced.")
            yield wrapper
        finally:
            self._mutex.release()

    def close(self) -> None:
        """End the session, and so every lock that it holds, without waiting for its user.

        The socket is shut down under the driver: a thread that hangs in it comes back at once.
        """
        wrapper, raw = self._wrapper, self._raw
        self._wrapper = self._raw = None
        if wrapper is None:
            return
        # Whatever a driver says of a session that may be dead already: it is to be closed.
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(raw.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)
        if self._mutex.acquire(blocking=False):
            try:
                with contextlib.suppress(Exception):
                    wrapper.close()
            finally:
                self._mutex.release()

    def _open(self) -> BaseDatabaseWrapper:
        wrapper = dedicated_connection(self._alias, self._options)
        try:
            wrapper.connect()
            with wrapper.cursor() as cursor:
                self.session_id = self._prepare(cursor)
        except (DatabaseError, InterfaceError) as error:
            wrapper.close()
            raise LockUnavailable(f"No lock session on {self._alias!r}: {error}") from error
        self._wrapper, self._raw = wrapper, wrapper.connection
        return wrapper


def dedicated_connection(alias: str, options: dict[str, Any]) -> BaseDatabaseWrapper:
    """A connection like that of ``alias``, but unpooled, in autocommit, and of no registry."""
    template = connections[alias]
    settings = copy.deepcopy(template.settings_dict)
    settings.update(
        AUTOCOMMIT=True, ATOMIC_REQUESTS=False, CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False
    )
    settings["OPTIONS"] = {**settings["OPTIONS"], **options}
    settings["OPTIONS"].pop("pool", None)
    wrapper = type(template)(settings, alias=alias)
    wrapper.inc_thread_sharing()
    return wrapper


class SessionLockBackend(BaseLockBackend):
    """What the rooms for PostgreSQL, MySQL and SQL Server have in common.

    ``lease`` bounds how long a holder may go without proof: the heartbeat proves at a third of it,
    and the server ends a session that was silent for a whole one, where the server can.
    """

    session_bound: ClassVar[bool] = True

    def reset(self) -> None:
        super().reset()
        self._session = self._new_session()

    # The part of a room.

    def connection_options(self) -> dict[str, Any]:
        """Options of the driver: time-outs and keepalives."""
        raise NotImplementedError

    def prepare(self, cursor: CursorWrapper) -> None:
        """Set up a new session; among other things the server's dead man's switch."""
        raise NotImplementedError

    def try_lock(self, cursor: CursorWrapper, key: str) -> bool:
        """Take the lock without waiting."""
        raise NotImplementedError

    def unlock(self, cursor: CursorWrapper, key: str) -> bool:
        """Release the lock; tells whether this session held it."""
        raise NotImplementedError

    def owns(self, cursor: CursorWrapper, key: str) -> bool:
        """Prove that this session holds the lock, on a server that can write."""
        raise NotImplementedError

    def session_id(self, cursor: CursorWrapper) -> str:
        """The server's number of this session."""
        raise NotImplementedError

    def seen(self, cursor: CursorWrapper) -> Iterable[Live]:
        """The locks of this kind that the server shows."""
        raise NotImplementedError

    def kill(self, cursor: CursorWrapper, session_id: str) -> None:
        """End a session on the server."""
        raise NotImplementedError

    # The same for all of them.

    def take(self, resource: str, lock_id: str) -> Grant | None:
        reused = self._session.is_open
        try:
            return self._take_in_session(resource, lock_id)
        except (DatabaseError, InterfaceError) as error:
            self._lose_session()
            if reused:  # it may have died of idleness, or with its server, a long time ago
                return self.take(resource, lock_id)
            raise LockUnavailable(f"{resource}: the lock session broke: {error}") from error

    def prove_once(self, handle: LockHandle) -> bool:
        if not self._session.is_open:
            return False
        try:
            with self._session.use(self.lease) as connection:
                return self._owns(connection, handle) and self._touch(connection, handle)
        except (DatabaseError, InterfaceError) as error:
            if dberrors.is_connection_lost(error):
                self._lose_session()  # a session that broke can never be proved again
                return False
            raise

    def drop(self, handle: LockHandle) -> bool:
        if not self._session.is_open:
            return False
        with self._session.use(self.lease) as connection:
            freed = self._free(connection, handle)
            with connection.cursor() as cursor:
                return self.unlock(cursor, handle.store_key) and freed

    def abandon(self, handle: LockHandle) -> None:
        """Unlock on a session that answers; else close it, and lose all that it holds."""
        if time.monotonic() >= handle.deadline:
            self._lose_session()
            return
        try:
            self.drop(handle)
        except (DatabaseError, InterfaceError, LockUnavailable):
            self._lose_session()

    def live(self) -> list[Live]:
        with connections[self.alias].cursor() as cursor:
            return list(self.seen(cursor))

    def end_by_force(self, resource: str, holder: Holder) -> None:
        with connections[self.alias].cursor() as cursor:
            self.kill(cursor, holder.session_id)

    def idle(self) -> None:
        if not self._keeper.handles():
            self._session.close()

    def close(self) -> None:
        super().close()
        self._session.close()

    def probe(self) -> ProbeResult:
        key = self.store_key(f"probe-{os.getpid()}-{threading.get_ident()}")
        first, second = self._new_session(), self._new_session()
        try:
            with first.use(0) as one, second.use(0) as two:
                return self._probe(one, two, key)
        except (DatabaseError, InterfaceError) as error:
            raise LockUnavailable(f"The lock of {self.alias!r} was not probed: {error}") from error
        finally:
            first.close()
            second.close()

    def _take_in_session(self, resource: str, lock_id: str) -> Grant | None:
        key = self.store_key(resource)
        with self._session.use(self.lease) as connection:
            with connection.cursor() as cursor:
                if not self.try_lock(cursor, key):
                    return None
            session_id = self._session.session_id
            claim = self.claim(resource, lock_id, session_id)
            try:
                token = fence.bump(connection, claim)
            except DatabaseError as error:
                if not dberrors.is_lock_timeout(error):
                    raise
                token = None
            if token is not None:
                return Grant(token, session_id)
            with connection.cursor() as cursor:
                self.unlock(cursor, key)
            return None

    def _owns(self, connection: BaseDatabaseWrapper, handle: LockHandle) -> bool:
        with connection.cursor() as cursor:
            return self.owns(cursor, handle.store_key)

    def _touch(self, connection: BaseDatabaseWrapper, handle: LockHandle) -> bool:
        try:
            return fence.touch(connection, handle.ticket)
        except DatabaseError as error:
            # The row is locked by our own fenced transaction, or by a bump that is under way: the
            # lock itself was proved, and the next heartbeat will tell.
            if dberrors.is_lock_timeout(error):
                return True
            raise

    def _free(self, connection: BaseDatabaseWrapper, handle: LockHandle) -> bool:
        try:
            return fence.free(connection, handle.ticket)
        except DatabaseError as error:
            if not dberrors.is_lock_timeout(error):
                raise
            return True  # the row is busy: the next holder finds our backend's owner and goes on

    def _new_session(self) -> LockSession:
        return LockSession(self.session_using, self.connection_options(), self._prepare)

    def _prepare(self, cursor: CursorWrapper) -> str:
        self.prepare(cursor)
        return self.session_id(cursor)

    def _lose_session(self) -> None:
        self._session.close()
        for handle in self._keeper.handles():
            handle.lose("its database session ended")

    def _probe(self, one: BaseDatabaseWrapper, two: BaseDatabaseWrapper, key: str) -> ProbeResult:
        with one.cursor() as first, two.cursor() as second:
            before = self.session_id(first)
            if not self.try_lock(first, key):
                return ProbeResult(False, "a lock that nobody else holds was refused")
            if self.try_lock(second, key):
                self.unlock(second, key)
                self.unlock(first, key)
                return ProbeResult(False, "two sessions were given the same lock")
            one.set_autocommit(False)
            first.execute("SELECT 1")
            one.rollback()
            one.set_autocommit(True)
            if self.session_id(first) != before or not self.owns(first, key):
                return ProbeResult(False, "a pooler gives one client several sessions")
            if not self.unlock(first, key) or not self.try_lock(second, key):
                return ProbeResult(False, "a lock that was released is still held")
            self.unlock(second, key)
        return ProbeResult(True)
