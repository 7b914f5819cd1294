"""What a successful *obtain* returns: the only thing that can prove, fence or release the lock."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import os
import threading
import time
from typing import TYPE_CHECKING, NoReturn, Self

from asgiref.sync import sync_to_async
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from django_outbox_lock import fence, transactions
from django_outbox_lock.exceptions import LockLost
from django_outbox_lock.polling import in_background

if TYPE_CHECKING:
    from types import TracebackType

    from django_outbox_lock.backends.locks.base import BaseLockBackend


class _State(enum.Enum):
    HELD = "held"
    RELEASED = "released"
    LOST = "lost"


class LockHandle:
    """A held resource.

    ``resource``, ``lock_id`` (fresh for each acquisition) and ``token`` (the fencing token) never
    change; ``using`` is the database alias of the registry. Safe to use from any thread; in a
    forked child it is lost. A handle that is dropped goes on holding until
    ``release(resource, lock_id)``.
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
        self._state = _State.HELD
        self._reason = ""
        self._over = threading.Event()
        self._mutex = threading.Lock()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        state = "lost" if self.lost else self._state.value
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
        if self._is_inherited:
            return True
        if self._state is _State.HELD and time.monotonic() >= self._deadline:
            self.lose("it could not be proved within the lease")
        return self._state is _State.LOST

    @property
    def ended(self) -> bool:
        """True after a release or a loss."""
        return self._state is not _State.HELD

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the lock is lost or released, at most ``timeout`` seconds; tells which."""
        if not self._is_inherited:
            self._over.wait(timeout)
        return self.lost

    def ensure_held(self) -> None:
        """Raise ``LockLost`` unless the lock is held as far as this process can know."""
        if self.lost:
            raise self._lost_error()
        if self.ended:
            raise self._lost_error("it was released")

    def fence(self) -> None:
        """Prove the lock inside the caller's transaction on ``using``; raises ``LockLost``.

        Call it last in the transaction: it locks the registry row until the commit, and a renewal
        of the lease waits behind it. Where the server can (PostgreSQL), it ends the transaction
        if the process is then silent for a whole lease.
        """
        self.ensure_held()
        if not transactions.in_transaction(self.using):
            raise TransactionManagementError(
                f"LockHandle.fence() must be called inside transaction.atomic(using={self.using!r})"
            )
        try:
            fence.check(self.ticket, using=self.using, idle_limit=self.backend.lease)
        except LockLost:
            self.lose("the fence says that another holder came after it")
            raise

    def release(self) -> bool:
        """Give the lock back; tells whether it was still held. A second call does nothing."""
        if self._is_inherited or not self._end(_State.RELEASED):
            return False
        if self.backend.give_back(self):
            return True
        self._state, self._reason = _State.LOST, "it was lost before its release"
        self.backend.announce_loss(self, self._reason)
        return False

    async def arelease(self) -> bool:
        """``release`` for coroutines; it is carried out even if the task is cancelled meanwhile."""
        try:
            return await sync_to_async(self.release)()
        except asyncio.CancelledError:
            in_background(self.release, f"outbox-lock-release-{self.token}")
            raise

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
            self._deadline = max(self._deadline, deadline)

    def lose(self, reason: str) -> bool:
        """Note the loss, once and for ever; tells whether this call was the one that did."""
        if not self._end(_State.LOST, reason):
            return False
        self.backend.report_lost(self, reason)
        return True

    def leave(self, error: BaseException | None) -> None:
        """After the protected work: raise ``LockLost`` if need be, unless ``error`` is raised."""
        if self.lost and error is None:
            raise self._lost_error()

    @property
    def _is_inherited(self) -> bool:
        return os.getpid() != self._pid

    def _end(self, state: _State, reason: str = "") -> bool:
        with self._mutex:
            if self._state is not _State.HELD:
                return False
            self._state, self._reason = state, reason
        self._over.set()
        return True

    def _lost_error(self, reason: str = "") -> LockLost:
        if self._is_inherited:
            reason = "the handle belongs to the parent process"
        message = (
            f"{self.resource}: the lock with token {self.token} is lost: {reason or self._reason}."
        )
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
        self.release()
        self.leave(error)
