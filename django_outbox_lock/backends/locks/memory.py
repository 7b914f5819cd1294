"""A lock between the threads of one process, for tests and for development."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core import checks
from django.db import connections

from django_outbox_lock import conf, fence
from django_outbox_lock.backends.locks.base import BaseLockBackend, Grant

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle


class MemoryLock(BaseLockBackend):
    """Shuts out the other threads of this process only; the fence still guards against others.

    The token is bumped on the caller's own connection, so that it serves inside a ``TestCase`` and
    on an in-memory SQLite database, which no second connection can reach.
    """

    label = "memory"
    session_bound = True
    across_processes = False

    def take(self, resource: str, lock_id: str) -> Grant | None:
        token = fence.bump(connections[self.alias], self.claim(resource, lock_id))
        return None if token is None else Grant(token)

    def prove_once(self, handle: LockHandle) -> bool:
        return True

    def drop(self, handle: LockHandle) -> bool:
        return fence.free(connections[self.alias], handle.ticket)

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
