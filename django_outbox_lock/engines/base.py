"""The cycle that every engine goes through: look, obtain the lock, work, give the lock back."""

from __future__ import annotations

import abc
import logging
import random
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import DatabaseError, InterfaceError, connections
from django.db.transaction import TransactionManagementError

from django_outbox_lock import conf, dberrors, handlers
from django_outbox_lock.checked import at_least, positive
from django_outbox_lock.conf import DEFAULT_ALIAS
from django_outbox_lock.exceptions import LockLost, LockUnavailable
from django_outbox_lock.locking import locks
from django_outbox_lock.retry import Backoff
from django_outbox_lock.transactions import in_transaction

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.conf import KeywordSettings, OutboxSettings

logger = logging.getLogger("django_outbox_lock.engines")

JITTER = 0.2


class Engine(abc.ABC):
    """Does its work in one process of all that share a lock; the others look and sleep.

    ``using`` is a database alias. Times are in seconds: ``interval`` between two cycles,
    ``linger`` how long a holder that has nothing left waits for a wake-up before it gives the
    lock back, ``stall_after`` how long the work may show no progress before the lock is given up.
    """

    resource: ClassVar[str]
    troubles: ClassVar[tuple[type[Exception], ...]] = (
        DatabaseError,
        InterfaceError,
        LockUnavailable,
        LockLost,
    )
    """What ``run`` survives: it logs, waits a growing time and reconnects."""

    def __init__(
        self,
        using: str = DEFAULT_ALIAS,
        *,
        interval: float = 5.0,
        linger: float = 0.5,
        stall_after: float = 300.0,
    ) -> None:
        self.using = using
        self.interval = positive("interval", interval)
        self.linger = at_least("linger", linger, 0.0)
        self.stall_after = positive("stall_after", stall_after)
        self.stalls_after("linger", self.linger)
        self._stopping = False
        # Unlike an Event, it may be rung by a signal handler while this thread waits at it.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._backoff = Backoff(base=min(1.0, self.interval), cap=max(60.0, self.interval))
        self._trouble = ""

    @classmethod
    def from_settings(cls, alias: str = DEFAULT_ALIAS, **overrides: Any) -> Self:
        """The engine as ``OUTBOX_LOCK[alias]`` describes it, with ``overrides`` on top.

        Raises ``InvalidSettings``, naming the full path of a wrong option.
        """
        section = cls.section(conf.outbox_settings(alias))
        options = {**section.options, **overrides}
        return handlers.construct(cls, options, section.path, alias)

    def stalls_after(self, name: str, seconds: float) -> None:
        """Raise ``ValueError`` if the holder would lose its lock by waiting for so long."""
        if not self.stall_after > seconds:
            raise ValueError(f"stall_after must be above {name} ({seconds:g}).")

    # The part of an engine.

    @classmethod
    @abc.abstractmethod
    def section(cls, settings: OutboxSettings) -> KeywordSettings:
        """The keyword arguments of this class in the settings."""

    @abc.abstractmethod
    def look(self) -> bool:
        """Whether there is anything to do: a read, without the lock."""

    def begin(self, handle: LockHandle) -> None:
        """Called when the lock was obtained, before any work."""

    @abc.abstractmethod
    def work(self, handle: LockHandle) -> bool:
        """Do one page; False when nothing is left. Raises ``LockLost`` when it is refused."""

    def finish(self) -> None:
        """Called after the lock was given back, or was lost."""

    def close(self) -> None:
        """Let go of what the engine keeps between cycles."""

    # The same for all.

    @property
    def backend(self) -> BaseLockBackend:
        """The lock backend in force."""
        return locks[self.using]

    @property
    def stopping(self) -> bool:
        """True once ``stop`` was called."""
        return self._stopping

    def stop(self) -> None:
        """Finish what is in flight, then return from ``run``. Safe in a signal handler."""
        self._stopping = True
        self._bell.put(None)

    def wake(self) -> None:
        """Look again now instead of at the next interval. Safe from any thread."""
        self._bell.put(None)

    def tick(self) -> float:
        """Go through one cycle and return the seconds until the next one is due.

        Raises what goes wrong: ``DatabaseError``, ``LockUnavailable``, ``LockLost``. May be called
        inside a transaction of the caller, which then sees one state of the database only. Leaves
        no thread and no connection of a publisher behind.
        """
        self._refuse_without_autocommit()
        try:
            return self._cycle(linger=0.0)
        finally:
            self.close()

    def run(self) -> None:
        """Go through cycles until ``stop`` is called, whatever happens to the database.

        Raises ``TransactionManagementError`` inside a transaction: on some databases nothing that
        others write later could be seen there.
        """
        if in_transaction(self.using):
            raise TransactionManagementError(
                f"{self.resource} cannot loop inside a transaction on {self.using!r} "
                "(or with autocommit off): only a single cycle can run there."
            )
        logger.info("%s on %r runs every %g s.", self.resource, self.using, self.interval)
        try:
            failures = 0
            while not self._stopping:
                failures, delay = self._survive(failures)
                self._wait(delay)
        finally:
            self.close()

    def _survive(self, failures: int) -> tuple[int, float]:
        """One cycle; the number of cycles in a row that failed, and the seconds to wait."""
        try:
            self._reconnect(force=failures > 0)
            delay = self._cycle(linger=self.linger)
        except self.troubles as error:
            failures += 1
            self._report(error)
            return failures, self._backoff.delay(failures)
        self._recovered()
        return 0, delay

    def _cycle(self, *, linger: float) -> float:
        _forget_queries()
        if not self._look():
            return self._next()
        handle = self.backend.obtain(self.resource)
        if handle is None:
            logger.debug("%s on %r is held by another process.", self.resource, self.using)
            return self._next()
        try:
            with handle:
                handle.expect_progress(self.stall_after)
                self._drain(handle, linger)
        finally:
            self.finish()
        return self._next()

    def _look(self) -> bool:
        """Look; a session that died while nobody used it is no trouble."""
        try:
            return self.look()
        except (DatabaseError, InterfaceError) as error:
            connection = connections[self.using]
            if connection.in_atomic_block or not dberrors.is_connection_lost(error):
                raise
            connection.close()
        return self.look()

    def _drain(self, handle: LockHandle, linger: float) -> None:
        self.begin(handle)
        while not self._stopping:
            handle.ensure_held()
            handle.progress()
            if not self.work(handle) and not self._woken(linger):
                return

    def _woken(self, timeout: float) -> bool:
        return timeout > 0 and not self._stopping and self._wait(timeout)

    def _wait(self, seconds: float) -> bool:
        """Wait at most that long for a wake-up; tells whether there was one."""
        if self._stopping:
            return False
        try:
            self._bell.get(timeout=seconds)
        except Empty:
            return False
        while not self._bell.empty():
            self._bell.get()
        return True

    def _next(self) -> float:
        return self.interval * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 (no secret)

    def _reconnect(self, *, force: bool) -> None:
        """Housekeeping of this thread's connections, between cycles only.

        After a trouble the lock's own goes, too: the session of a database that was read-only when
        it began would stay so.
        """
        if force:
            self.backend.idle()
        for connection in connections.all(initialized_only=True):
            if force:
                connection.close()
            else:
                connection.close_if_unusable_or_obsolete()

    def _report(self, error: Exception) -> None:
        """Log a trouble when it begins and when it changes, not each time that it goes on."""
        trouble = " ".join(f"{type(error).__name__}: {error}".split())  # PostgreSQL's has lines
        level = logging.DEBUG if trouble == self._trouble else logging.WARNING
        self._trouble = trouble
        logger.log(level, "%s on %r: %s", self.resource, self.using, trouble)

    def _recovered(self) -> None:
        if self._trouble:
            logger.warning("%s on %r works again.", self.resource, self.using)
        self._trouble = ""

    def _refuse_without_autocommit(self) -> None:
        connection = connections[self.using]
        if in_transaction(self.using) and not connection.in_atomic_block:
            raise TransactionManagementError(
                f"{self.resource} needs autocommit on {self.using!r}: its transactions would "
                "never be committed."
            )


def _forget_queries() -> None:
    """With DEBUG every statement is kept, for ever; whoever counts them now may go on."""
    for connection in connections.all(initialized_only=True):
        if not connection.force_debug_cursor:
            connection.queries_log.clear()
