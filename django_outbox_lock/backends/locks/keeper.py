"""Keeps the handles of one backend alive, and notices when one is not.

Two threads, so that a renewal that hangs cannot hide the end of a lease: the *renewer* asks the
store, the *watchdog* looks at the clock only. Both start with the first handle and live on.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.handle import LockHandle

logger = logging.getLogger("django_outbox_lock.locks")

# After a proof that failed for an unknown reason the next one follows sooner than a third.
_RETRIES_PER_LEASE = 12
_SHARE_OF_LEASE = 3


class Keeper:
    """Calls ``prove`` for each handle at a third of the lease, and ends those not proved in time.

    ``prove(handle)`` returns the monotonic deadline that the proof buys, None when the lock is
    definitely not ours any more, and raises when nobody knows. ``idle`` is called when no handle
    was held for a third of a lease.
    """

    def __init__(
        self,
        name: str,
        lease: float,
        prove: Callable[[LockHandle], float | None],
        idle: Callable[[], None],
    ) -> None:
        self._name = name
        self._lease = lease
        self._prove = prove
        self._idle = idle
        self._due: dict[LockHandle, float] = {}
        self._changed = threading.Condition()
        self._started = False
        self._was_busy = False

    def add(self, handle: LockHandle) -> None:
        """Keep the handle from now on."""
        with self._changed:
            self._due[handle] = time.monotonic() + self._lease / _SHARE_OF_LEASE
            self._was_busy = True
            self._start()
            self._changed.notify_all()

    def discard(self, handle: LockHandle) -> None:
        """Forget the handle, whether it was kept or not."""
        with self._changed:
            self._due.pop(handle, None)

    def handles(self) -> list[LockHandle]:
        """The handles that are kept now."""
        with self._changed:
            return list(self._due)

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        for loop in (self._renew_loop, self._watch_loop):
            name = f"{self._name}-{loop.__name__.strip('_')}"
            threading.Thread(target=loop, name=name, daemon=True).start()

    def _renew_loop(self) -> None:
        while True:
            handle = self._next_due()
            if handle is None:
                self._idle()
            else:
                self._renew(handle)

    def _next_due(self) -> LockHandle | None:
        """Wait for the next handle that is to be proved; None after a quiet third of a lease."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = min(self._due.items(), key=lambda item: item[1], default=None)
                if due is not None and due[1] <= now:
                    self._due[due[0]] = now + self._lease / _RETRIES_PER_LEASE
                    return due[0]
                if due is not None:
                    self._changed.wait(due[1] - now)
                elif not self._changed.wait(self._quiet()) and not self._due and self._was_busy:
                    self._was_busy = False
                    return None

    def _quiet(self) -> float | None:
        return self._lease / _SHARE_OF_LEASE if self._was_busy else None

    def _renew(self, handle: LockHandle) -> None:
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
                self._due[handle] = time.monotonic() + self._lease / _SHARE_OF_LEASE

    def _watch_loop(self) -> None:
        while True:
            with self._changed:
                handles = list(self._due)
                now = time.monotonic()
                nearest = min((handle.deadline - now for handle in handles), default=None)
                if nearest is None or nearest > 0:
                    self._changed.wait(nearest)
                    continue
            for handle in handles:
                if handle.lost:
                    self.discard(handle)
