"""Transactions as the holder of a lock: committed as a whole, made again if need be, or refused."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, TypeVar

from django.db import DatabaseError, InterfaceError, connections

from django_outbox_lock import dberrors, fence

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from django_outbox_lock.backends.locks.handle import LockHandle

logger = logging.getLogger("django_outbox_lock.engines")

T = TypeVar("T")

# Seconds before the second, third … attempt at what a deadlock or a lost session ended.
PAUSES = (0.05, 0.2, 0.8, 2.0)


class Fenced:
    """Changes rows as the holder of a lock, or not at all."""

    def __init__(self, using: str) -> None:
        self._using = using

    def fenced(self, handle: LockHandle) -> AbstractContextManager[None]:
        """A transaction as the holder, which the server ends if this process freezes inside.

        Raises ``LockLost``.
        """
        return fence.held(handle.ticket, using=self._using, idle_limit=handle.backend.lease)

    def run(
        self,
        handle: LockHandle,
        work: Callable[[], T],
        *,
        anew: Callable[[], object] | None = None,
        after_loss: bool = False,
    ) -> T:
        """Return what ``work`` returns in such a transaction.

        A deadlock, a serialization failure or a lock time-out has undone all of it: it is made
        again, after a call of ``anew``. ``after_loss``: also after a lost session, which may have
        committed it. Raises ``LockLost``, or the database's error when it is of another kind, goes
        on, or has ended a transaction of the caller.
        """
        for pause in PAUSES:
            try:
                return self._once(handle, work)
            except (DatabaseError, InterfaceError) as error:
                if not self._may_repeat(error, after_loss=after_loss):
                    raise
                logger.info("A transaction on %r is made again after: %s", self._using, error)
            handle.ensure_held()
            handle.progress()
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
            if anew is not None:
                anew()
        return self._once(handle, work)

    def _once(self, handle: LockHandle, work: Callable[[], T]) -> T:
        with self.fenced(handle):
            return work()

    def _may_repeat(self, error: Exception, *, after_loss: bool) -> bool:
        connection = connections[self._using]
        if connection.in_atomic_block:
            return False  # the caller's transaction is over, and only the caller can begin anew
        if dberrors.is_connection_lost(error):
            connection.close()
            return after_loss
        return dberrors.is_transient(error)
