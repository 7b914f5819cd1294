"""Keeps the handles of one backend alive, and notices when one is not.

Two threads, so that a renewal that hangs cannot hide the end of a lease: the *renewer* asks the
store, the *watchdog* looks at the clock only, warns, and gives up. Both start with a handle and end
some time after the last one.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from typing import TYPE_CHECKING

from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.handle import LockHandle

logger = logging.getLogger("django_outbox_lock.locks")

# After a proof that failed for an unknown reason the next one follows sooner than a third.
_RETRIES_PER_LEASE = 12
_SHARE_OF_LEASE = 3
_PATIENCE = 2.0
# Below the five seconds for which PostgreSQL's DROP DATABASE waits for sessions to go: a test run
# whose last test took a lock must be able to remove its database.
_QUIET = 3.0
_GLANCE = 1.0


class Keeper:
    """Calls ``prove`` for each handle at a third of the lease, and ends those not proved in time.

    ``prove(handle)`` returns the monotonic deadline that the proof buys, None when the lock is
    definitely not ours any more, and raises when nobody knows. The first time is ``first`` seconds
    after the handle came, if that is sooner. ``idle`` is called by the renewer at its end, when no
    handle was held for three seconds (a third of the lease, if that is less).
    """

    def __init__(
        self,
        name: str,
        lease: float,
        prove: Callable[[LockHandle], float | None],
        idle: Callable[[], None],
        *,
        first: float = math.inf,
    ) -> None:
        self._name = name
        self._lease = lease
        self._pause = lease / _SHARE_OF_LEASE
        self._first = min(first, self._pause)
        self._prove = prove
        self._idle = idle
        self._due: dict[LockHandle, float] = {}
        self._changed = threading.Condition()
        self._renewer: threading.Thread | None = None
        self._watchdog: threading.Thread | None = None
        self._asking: LockHandle | None = None
        self._used_at = 0.0
        self._watching_until = 0.0

    def add(self, handle: LockHandle) -> None:
        """Keep the handle from now on."""
        with self._changed:
            self._used_at = time.monotonic()
            self._due[handle] = self._used_at + self._first
            self._start()
            if handle.watch_at < self._watching_until:
                self._changed.notify_all()

    def look_at(self, handle: LockHandle) -> None:
        """The handle may have to be watched earlier than it was to be."""
        with self._changed:
            if handle in self._due and handle.watch_at < self._watching_until:
                self._changed.notify_all()

    def discard(self, handle: LockHandle) -> None:
        """Forget the handle, whether it was kept or not."""
        if sys.is_finalizing():
            return  # the interpreter has ended our threads, one of them perhaps with the mutex
        with self._changed:
            if self._due.pop(handle, None) is not None:
                self._used_at = time.monotonic()
            if self._asking is handle and self._renewer is not threading.current_thread():
                self._replace_renewer()

    def handles(self) -> list[LockHandle]:
        """The handles that are kept now."""
        with self._changed:
            return list(self._due)

    def close(self) -> None:
        """End both threads; a handle that is added later starts them again.

        Waits for them, so that their connections are closed, but not for long: one may hang.
        """
        with self._changed:
            threads = (self._renewer, self._watchdog)
            self._renewer = self._watchdog = None
            self._changed.notify_all()
        for thread in threads:
            if thread not in {None, threading.current_thread()}:
                thread.join(_PATIENCE)

    def _start(self) -> None:
        if self._renewer is None:
            self._renewer = self._thread(self._renew_loop, "renewer")
        if self._watchdog is None:
            self._watchdog = self._thread(self._watch_loop, "watchdog")

    def _replace_renewer(self) -> None:
        """It may hang in a question that nobody asks any more: the other handles must not wait."""
        hanging, self._renewer, self._asking = self._renewer, None, None
        if self._due:
            try:
                self._start()
            except RuntimeError as error:
                self._renewer = hanging  # it goes on when it has its answer
                logger.warning("%s: no thread in place of one that hangs: %s", self._name, error)

    def _thread(self, loop: Callable[[], None], role: str) -> threading.Thread:
        thread = threading.Thread(target=loop, name=f"{self._name}-{role}", daemon=True)
        thread.start()
        return thread

    def _renew_loop(self) -> None:
        while (handle := self._next_due()) is not None:
            try:
                self._renew(handle)
            except Exception:  # this thread must not end while there are handles
                logger.exception("%s: the lock could not be looked after", handle.resource)
        try:
            self._idle()
        except Exception:
            logger.exception("%s: what is not needed any more could not be closed", self._name)

    def _next_due(self) -> LockHandle | None:
        """Wait for the next handle that is to be proved; None when this thread is to end."""
        with self._changed:
            while self._renewer is threading.current_thread():
                now = time.monotonic()
                self._asking = None
                quiet = (None, self._used_at + min(self._pause, _QUIET))
                handle, due = min(self._due.items(), key=lambda item: item[1], default=quiet)
                if due > now:
                    # To notify at every release would cost each one two changes of threads.
                    self._changed.wait(min(due - now, _GLANCE))
                    continue
                if handle is None:
                    self._renewer = None
                    return None
                self._due[handle] = now + self._lease / _RETRIES_PER_LEASE
                self._asking = handle
                return handle
            return None

    def _renew(self, handle: LockHandle) -> None:
        if handle.ended:  # by another thread, before it was added
            self.discard(handle)
            return
        if handle.stalled:
            handle.lose(f"the work showed no progress for {handle.stalled_after:g} s")
            return
        try:
            deadline = self._prove(handle)
        except Exception as error:  # noqa: BLE001 (unknown is not lost: the deadline decides)
            logger.warning("%s: the lock could not be proved: %s", handle.resource, error)
            return
        if deadline is None:
            handle.lose("the store says that it is not ours any more")
            return
        handle.extend(deadline)
        with self._changed:
            if handle in self._due:
                self._due[handle] = time.monotonic() + self._pause

    def _watch_loop(self) -> None:
        while (handle := self._next_to_watch()) is not None:
            try:
                handle.watch()
            except Exception:  # this thread must not end while there are handles
                logger.exception("%s: what befell the lock could not be told", handle.resource)
            if handle.ended:
                self.discard(handle)

    def _next_to_watch(self) -> LockHandle | None:
        """Wait for a handle whose time has come; None when this thread is to end."""
        with self._changed:
            while self._watchdog is threading.current_thread():
                now = time.monotonic()
                handle = min(self._due, key=lambda handle: handle.watch_at, default=None)
                until = self._used_at + self._pause if handle is None else handle.watch_at
                if until <= now:
                    if handle is None:
                        self._watchdog = None
                    return handle
                self._watching_until = until
                self._changed.wait(until - now)
            return None
