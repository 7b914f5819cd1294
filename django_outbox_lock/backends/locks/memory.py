"""A lock between the threads of one process, for tests and for development."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from django.core import checks
from django.db import Error, connections

from django_outbox_lock import conf, dberrors, fence
from django_outbox_lock.backends.locks.base import BaseLockBackend, Grant, Live
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.waits import bounded_wait

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle

ROW_WAIT = 2.0


class MemoryLock(BaseLockBackend):
    """Shuts out the other threads of this process only; the fence still guards against others.

    The token is bumped on the caller's own connection, so that it serves inside a ``TestCase`` and
    on an in-memory SQLite database, which no second connection can reach. A rollback of the
    caller's transaction takes the token back, too, and whatever was written under it.
    """

    label = "memory"
    session_bound = True
    across_processes = False

    def take(self, resource: str, lock_id: str) -> Grant | None:
        session_id = str(os.getpid())
        connection = connections[self.alias]
        try:
            with bounded_wait(connection, ROW_WAIT):
                token = fence.bump(connection, self.claim(resource, lock_id, session_id))
        except Error as error:
            if dberrors.is_transient(error):
                return None
            raise LockUnavailable(f"{resource}: the registry gave no answer: {error}") from error
        return None if token is None else Grant(token, session_id)

    def prove_once(self, handle: LockHandle) -> bool:
        """Memory does not forget; who was fenced off learns it from the fence."""
        return True

    def drop(self, handle: LockHandle) -> bool:
        connection = connections[self.alias]
        with bounded_wait(connection, ROW_WAIT):
            return fence.free(connection, handle.ticket)

    def live(self) -> list[Live]:
        """What this process holds; what another one holds nobody else can see."""
        session_id, handles = str(os.getpid()), self._keeper.handles()
        return [Live(handle.store_key, session_id=session_id) for handle in handles]

    def check(self) -> list[checks.CheckMessage]:
        """Warn where other processes are to be expected."""
        if conf.debug() or connections[self.alias].vendor == "sqlite":
            return []
        return [
            checks.Warning(
                "The in-memory lock shuts out the threads of one process only.",
                hint="Remove LOCK['BACKEND'] to use the lock that is native to the database.",
                obj=f"OUTBOX_LOCK[{self.alias!r}]['LOCK']",
                id="django_outbox_lock.W002",
            )
        ]
