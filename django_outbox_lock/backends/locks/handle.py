"""What a successful *obtain* returns: the only thing that can prove, fence or release the lock."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from typing import TYPE_CHECKING, NoReturn, Self

from django.db.transaction import TransactionManagementError
from django.utils import timezone

from django_outbox_lock import fence, transactions
from django_outbox_lock.exceptions import LockLost

if TYPE_CHECKING:
    from types import TracebackType

    from django_outbox_lock.backends.locks.base import BaseLockBackend


class LockHandle:
    """A held resource.

    ``resource``, ``lock_id`` (fresh for each acquisition) and ``token`` (the fencing token) never
    change; ``using`` is the database alias of the registry. Safe to use from any thread, refused
    in a forked child.
    """

    def __init__(
        self,
        backend: BaseLockBackend,
        ticket: fence.Ticket,
        *,
        store_key: str,
        deadline: float,
        session_id: str = "",
    ) -> None:
        self.backend = backend
        self.ticket = ticket
        self.store_key = store_key
        self.session_id = session_id
        self.stalled_after: float | None = None
        self._deadline = deadline
        self._progress = time.monotonic()
        self._lost = threading.Event()
        self._reason = ""
        self._ended = False
        self._mutex = threading.Lock()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        state = "lost" if self.lost else "released" if self._ended else "held"
        return f"<LockHandle {self.resource!r} on {self.using!r} token {self.token} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A LockHandle belongs to its process and cannot be pickled.")

    @property
    def resource(self) -> str:
        return self.ticket.resource

    @property
    def lock_id(self) -> str:
        return self.ticket.lock_id

    @property
    def token(self) -> int:
        return self.ticket.token

    @property
    def using(self) -> str:
        return self.backend.alias

    @property
    def deadline(self) -> float:
        """Monotonic time at which the lock counts as lost unless it is proved anew."""
        return self._deadline

    @property
    def remaining(self) -> float | None:
        """Seconds of the lease that are left, None for a session-bound lock."""
        if self.backend.session_bound:
            return None
        return max(0.0, self._deadline - time.monotonic())

    @property
    def expires_at(self) -> dt.datetime | None:
        """When the lease ends, to be shown; None for a session-bound lock."""
        remaining = self.remaining
        return None if remaining is None else timezone.now() + dt.timedelta(seconds=remaining)

    @property
    def lost(self) -> bool:
        """True once the lock is known to be lost, or could not be proved in time; then for ever.

        The clock is compared here, too: the watchdog's thread may not have run.
        """
        if not self._ended and time.monotonic() >= self._deadline:
            self.lose("it could not be proved within the lease")
        return self._lost.is_set() or os.getpid() != self._pid

    @property
    def ended(self) -> bool:
        """True after a release or a loss."""
        return self._ended

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the lock is lost, at most ``timeout`` seconds; tells whether it is."""
        return self._lost.wait(timeout)

    def ensure_held(self) -> None:
        """Raise ``LockLost`` unless the lock is held as far as this process can know."""
        if os.getpid() != self._pid:
            raise self._lost_error("the handle belongs to the parent process")
        if self.lost:
            raise self._lost_error(self._reason)
        if self._ended:
            raise self._lost_error("it was released")

    def fence(self) -> None:
        """Prove the lock inside the caller's transaction on ``using``; raises ``LockLost``.

        Call it last in the transaction: it locks the registry row until the commit, and a renewal
        of the lease waits behind it.
        """
        self.ensure_held()
        if not transactions.in_transaction(self.using):
            raise TransactionManagementError(
                f"LockHandle.fence() must be called inside transaction.atomic(using={self.using!r})"
            )
        fence.check(self.ticket, using=self.using)

    def release(self) -> bool:
        """Give the lock back; tells whether it was still held. A second call does nothing."""
        if not self.end():
            return False
        return self.backend.give_back(self)

    def progress(self) -> None:
        """Note that the work goes on (see ``expect_progress``)."""
        self._progress = time.monotonic()

    def expect_progress(self, within: float) -> None:
        """Give the lock up when ``progress`` was not called for ``within`` seconds."""
        self.stalled_after = within
        self.progress()

    @property
    def stalled(self) -> bool:
        """True when the work has shown no progress for longer than it was to."""
        limit = self.stalled_after
        return limit is not None and time.monotonic() - self._progress > limit

    def extend(self, deadline: float) -> None:
        """Note a proof: the lock counts as held until the monotonic time ``deadline``."""
        with self._mutex:
            if not self._ended:
                self._deadline = max(self._deadline, deadline)

    def end(self) -> bool:
        """Stop holding, as far as this process is concerned; False when that had happened."""
        with self._mutex:
            first, self._ended = not self._ended, True
        return first

    def lose(self, reason: str) -> bool:
        """Note the loss, once and for ever; tells whether this call was the one that did."""
        if not self.end():
            return False
        self._reason = reason
        self._lost.set()
        self.backend.report_lost(self, reason)
        return True

    def _lost_error(self, reason: str) -> LockLost:
        message = f"{self.resource}: the lock with token {self.token} is lost: {reason}."
        return LockLost(message, resource=self.resource, token=self.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release; after a loss raise ``LockLost``, unless the body is raising already."""
        held = self.release()
        if not held and error is None:
            raise self._lost_error(self._reason or "it was released in the body")
