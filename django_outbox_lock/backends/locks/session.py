"""Locks that live as long as one physical database session.

One session for each backend of a process carries all its locks, and is never reopened while one is
held: a new session would hold nothing, and nobody would notice.
"""

from __future__ import annotations

import abc
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import Error, NotSupportedError, ProgrammingError, connections, transaction

from django_outbox_lock import dberrors, fence
from django_outbox_lock.backends.locks.base import BaseLockBackend, Grant, Live, ProbeResult
from django_outbox_lock.dedicated import LockSession, SessionLost
from django_outbox_lock.exceptions import InvalidSettings, LockUnavailable
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.holder import Holder

ROW_WAIT = 2
CONNECT_TIMEOUT = 5
# A heartbeat that waits for the registry's row keeps the session for as long.
SESSION_WAIT = ROW_WAIT + 3


class SessionLockBackend(BaseLockBackend):
    """What the rooms for PostgreSQL, MySQL and SQL Server have in common.

    ``lease`` bounds how long a holder may go without proof: the heartbeat proves at a third of it,
    and the server ends a session that was silent for a whole one, where the server can.
    """

    session_bound: ClassVar[bool] = True
    _session: LockSession

    def reset(self) -> None:
        super().reset()
        if "_session" in vars(self):
            self._session.disown()
        self._session = self._new_session()

    # The part of a room.

    @abc.abstractmethod
    def connection_options(self) -> dict[str, Any]:
        """Options of the driver: time-outs and keepalives."""

    @abc.abstractmethod
    def prepare(self, cursor: CursorWrapper) -> None:
        """Set up a new session; among other things the server's dead man's switch."""

    @abc.abstractmethod
    def try_lock(self, cursor: CursorWrapper, key: str) -> bool:
        """Take the lock without waiting."""

    @abc.abstractmethod
    def unlock(self, cursor: CursorWrapper, key: str) -> bool:
        """Release the lock; tells whether this session held it."""

    @abc.abstractmethod
    def owns(self, cursor: CursorWrapper, key: str) -> bool:
        """Prove that this session holds the lock, on a server that can write."""

    @abc.abstractmethod
    def session_id(self, cursor: CursorWrapper) -> str:
        """The server's number of this session."""

    @abc.abstractmethod
    def seen(self, cursor: CursorWrapper) -> Iterable[Live]:
        """The locks of this kind that the server shows."""

    @abc.abstractmethod
    def kill(self, cursor: CursorWrapper, session_id: str) -> None:
        """End a session on the server."""

    def meets(self, cursor: CursorWrapper, key: str, session_id: str) -> bool:
        """Whether the cursor is on the very database in which the session holds the lock."""
        return any(
            lock.session_id == session_id for lock in self.seen(cursor) if lock.store_key == key
        )

    def lock_and_bump(
        self, connection: BaseDatabaseWrapper, claim: fence.Claim, key: str
    ) -> int | None:
        """Take the lock, note its key, and bump; the new token, None if one of them is refused."""
        with connection.cursor() as cursor:
            if not self.try_lock(cursor, key):
                return None
        self._session.keys.add(key)
        return fence.bump(connection, claim)

    def free_and_unlock(self, connection: BaseDatabaseWrapper, handle: LockHandle) -> bool:
        """Free the registry's row, then release the lock; tells whether both were still held."""
        # If the row is busy, the next holder finds an owner of our backend there and goes on.
        freed = self._unless_busy(lambda: fence.free(connection, handle.ticket))
        return self._unlock(connection, handle.store_key) and freed

    # The same for all of them.

    def take(self, resource: str, lock_id: str) -> Grant | None:
        reused = self._session.is_open
        try:
            return self._take_in_session(resource, lock_id)
        except SessionLost:
            self._lose_session()
            if not reused:
                raise
        # It had died of idleness, or with its server, perhaps a long time ago.
        return self._take_in_session(resource, lock_id)

    def undo_take(self, resource: str, lock_id: str) -> None:
        if not self._session.is_open:
            return
        try:
            with self._session.use(SESSION_WAIT) as connection:
                self._undo(connection, self.store_key(resource))
        except LockUnavailable:
            self._lose_session()
            raise

    def adopted(self, handle: LockHandle) -> None:
        """The session may have ended between the take and the keeper's first look."""
        if not self._is_on_session(handle):
            handle.lose("its database session ended")

    def prove_once(self, handle: LockHandle) -> bool:
        if not self._is_on_session(handle):
            return False
        try:
            with self._session.use(SESSION_WAIT) as connection:
                return self._owns(connection, handle) and self._touch(connection, handle)
        except SessionLost:
            self._lose_session()
            return False

    def drop(self, handle: LockHandle) -> bool:
        if not self._is_on_session(handle):
            return False
        try:
            with self._session.use(self.lease) as connection:
                try:
                    return self.free_and_unlock(connection, handle)
                except BaseException:
                    self._undo(connection, handle.store_key)
                    raise
        except SessionLost:
            self._lose_session()
            raise

    def abandon(self, handle: LockHandle) -> None:
        """Unlock on a session that answers; else close it, and lose all that it holds."""
        if time.monotonic() >= handle.deadline:
            self._lose_session()
            return
        try:
            self.drop(handle)
        except (Error, LockUnavailable):
            self._lose_session()
            raise

    def live(self) -> list[Live]:
        with self._looking() as cursor:
            return list(self.seen(cursor))

    def end_by_force(self, resource: str, holder: Holder) -> None:
        """End the session if it still has the lock: its number may be another's by now."""
        key = self.store_key(resource)
        with self._looking() as cursor:
            found = {(lock.store_key, lock.session_id) for lock in self.seen(cursor)}
            if (key, holder.session_id) in found:
                self.kill(cursor, holder.session_id)

    def idle(self) -> None:
        self._session.close_if_unused()

    def close(self) -> None:
        super().close()
        self._session.close()

    def probe(self) -> ProbeResult:
        """Find out whether the server's locks are real and nobody stands in between.

        It sets nothing up on its sessions: behind a pooler a setting would stay on for strangers.
        """
        key = self.store_key(f"probe-{uuid.uuid4()}")
        first, second = self._new_session(), self._new_session()
        try:
            with first.use(0) as one, second.use(0) as two:
                if first.session_id == second.session_id:
                    return ProbeResult(False, "a pooler gives several clients one session")
                return self._probe(one, two, key)
        except (ProgrammingError, NotSupportedError) as error:
            return ProbeResult(False, f"the server refuses them: {error}")
        except Error as error:
            raise LockUnavailable(f"The lock of {self.alias!r} was not probed: {error}") from error
        finally:
            first.close()
            second.close()

    def _take_in_session(self, resource: str, lock_id: str) -> Grant | None:
        key = self.store_key(resource)
        try:
            with self._session.use(SESSION_WAIT) as connection:
                claim = self.claim(resource, lock_id, self._session.session_id)
                try:
                    return self._grant(connection, claim, key)
                except BaseException:
                    self._undo(connection, key)
                    raise
        except Error as error:
            if dberrors.is_transient(error):
                return None
            raise LockUnavailable(f"{resource}: the lock could not be tried: {error}") from error

    def _grant(self, connection: BaseDatabaseWrapper, claim: fence.Claim, key: str) -> Grant | None:
        if not self._session.is_set_up:
            with connection.cursor() as cursor:
                self.prepare(cursor)
            self._session.is_set_up = True
        token = self.lock_and_bump(connection, claim, key)
        if token is not None:
            return Grant(token, claim.session_id)
        if key in self._session.keys:
            self._unlock(connection, key)
        return None

    def _undo(self, connection: BaseDatabaseWrapper, key: str) -> None:
        """After an error the lock is not held: an answer that got lost may have been a yes."""
        try:
            self._unlock(connection, key)
        except Exception:  # noqa: BLE001 (the first error is the one to be raised)
            self._lose_session()

    def _unlock(self, connection: BaseDatabaseWrapper, key: str) -> bool:
        with connection.cursor() as cursor:
            held = self.unlock(cursor, key)
        self._session.keys.discard(key)
        return held

    def _owns(self, connection: BaseDatabaseWrapper, handle: LockHandle) -> bool:
        with connection.cursor() as cursor:
            return self.owns(cursor, handle.store_key)

    def _touch(self, connection: BaseDatabaseWrapper, handle: LockHandle) -> bool:
        # While our own fenced transaction has the row, or a bump is under way: the lock itself
        # was proved, and the next heartbeat will tell.
        return self._unless_busy(lambda: fence.touch(connection, handle.ticket))

    def _unless_busy(self, write: Callable[[], bool]) -> bool:
        try:
            return write()
        except Error as error:
            if not dberrors.is_transient(error):
                raise
            return True

    @contextlib.contextmanager
    def _naming(self) -> Iterator[BaseDatabaseWrapper]:
        """The session, to be asked what the names of locks are made of."""
        try:
            with self._session.use(self.lease) as connection:
                yield connection
        except Error as error:
            raise LockUnavailable(f"No lock of {self.alias!r} has a name yet: {error}") from error

    @contextlib.contextmanager
    def _looking(self) -> Iterator[CursorWrapper]:
        """A cursor on the caller's connection; an error leaves the caller's transaction usable."""
        with transaction.atomic(using=self.alias), connections[self.alias].cursor() as cursor:
            yield cursor

    def _new_session(self) -> LockSession:
        return LockSession(self.session_using, self.connection_options(), self.session_id)

    def _is_on_session(self, handle: LockHandle) -> bool:
        return self._session.is_open and self._session.session_id == handle.session_id

    def _lose_session(self) -> None:
        self._session.close()
        for handle in self._keeper.handles():
            handle.lose("its database session ended")

    def _probe(self, one: BaseDatabaseWrapper, two: BaseDatabaseWrapper, key: str) -> ProbeResult:
        with one.cursor() as first, two.cursor() as second:
            before = self.session_id(first)
            if not self.try_lock(first, key):
                return ProbeResult(False, "a lock that nobody else holds was refused")
            self._check_same_database(key, before)
            if self.try_lock(second, key):
                self.unlock(second, key)
                self.unlock(first, key)
                return ProbeResult(False, "two sessions were given the same lock")
            one.set_autocommit(False)
            first.execute("SELECT 1")
            first.fetchall()  # an ODBC connection is busy until the answer is read
            one.rollback()
            one.set_autocommit(True)
            if self.session_id(first) != before or not self.owns(first, key):
                self.unlock(first, key)
                return ProbeResult(False, "a pooler gives one client several sessions")
            if not self.unlock(first, key) or not self.try_lock(second, key):
                return ProbeResult(False, "a lock that was released is still held")
            self.unlock(second, key)
        return ProbeResult(True)

    def _check_same_database(self, key: str, session_id: str) -> None:
        if self.session_using == self.alias:
            return
        with self._looking() as cursor:
            if not self.meets(cursor, key, session_id):
                raise InvalidSettings(
                    f"OUTBOX_LOCK[{self.alias!r}]['LOCK']['OPTIONS']['session_using']: "
                    f"{self.session_using!r} does not lead to the database of {self.alias!r}."
                )
