"""What a successful *obtain* returns: the only thing that can prove, fence or release the lock."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from typing import TYPE_CHECKING, NoReturn, Self

from asgiref.sync import sync_to_async
from django.db.transaction import TransactionManagementError

from django_outbox_lock import fence, registry, transactions
from django_outbox_lock.backends.locks.watched import Callbacks, State, Times
from django_outbox_lock.exceptions import LockLost
from django_outbox_lock.holder import after_loss
from django_outbox_lock.polling import in_background
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from types import TracebackType

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.watched import Callback

# Within so many seconds a coroutine notices that it need not wait any more.
_TICK = 0.1


class LockHandle(Times):
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
        super().__init__(deadline)
        self.backend = backend
        self.ticket = ticket
        self.store_key = store_key
        self.session_id = session_id
        self._state = State.HELD
        self._reason = ""
        self._lost_at: float | None = None
        self._on_loss, self._on_risk = Callbacks(), Callbacks()
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
    def lost(self) -> bool:
        """True once the lock is known to be lost, or could not be proved in time; then for ever.

        The clock is compared here, too: the watchdog's thread may not have run.
        """
        if self._is_inherited:
            return True
        if self._state is State.HELD:
            self._end_in_time()
        return self._state is State.LOST

    @property
    def ended(self) -> bool:
        """True after a release or a loss."""
        return self._state is not State.HELD

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the lock is lost or released, at most ``timeout`` seconds; tells which."""
        if not self._is_inherited:
            self._over.wait(timeout and min(timeout, threading.TIMEOUT_MAX))
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
        except LockLost as error:
            self.lose("the fence says that another holder came after it")
            raise self._lost_error() from error

    def release(self) -> bool:
        """Give the lock back; tells whether it was still held. A second call does nothing.

        After ``hold_at_least`` it waits first, until that time is over or the lock is lost.
        """
        try:
            if not self.lost and not self.ended and (early := self._too_early):
                self.wait_lost(early)
        finally:
            released = self._release()
        return released

    async def arelease(self) -> bool:
        """``release`` for coroutines; done even if the task is cancelled or its loop closed."""
        try:
            while not self.ended and (early := self._too_early):  # noqa: ASYNC110 (threads end it)
                await asyncio.sleep(min(early, _TICK))
            return await sync_to_async(self._release)()
        except BaseException:  # cancelled, or its event loop was closed: it can wait no more
            in_background(self.release, f"outbox-lock-release-{self.token}")
            raise

    @property
    def at_risk(self) -> bool:
        """True when less than a third of the lease is left unproved, and when the lock is lost.

        Also when the end of ``hold_at_most`` is nearer than a third of the lease, or of that time
        if it is shorter. False again after a proof, and after a release.
        """
        return self.lost or (not self.ended and time.monotonic() >= self._risk_from)

    def on_lost(self, callback: Callback) -> None:
        """Call ``callback(handle)`` once when the lock is lost, at once if it is; else never.

        It runs on a thread of its own. What it raises is logged.
        """
        if self.lost:
            self._on_loss.tell(self)
        self._on_loss.add(callback, self)

    def on_risk(self, callback: Callback) -> None:
        """Call ``callback(handle)`` each time that the lock comes to be ``at_risk``, or is now.

        It runs on a thread of its own. What it raises is logged.
        """
        if not self.ended:
            self._on_risk.add(callback, self)

    def hold_at_most(self, seconds: float) -> None:
        super().hold_at_most(seconds)
        self.backend.watch(self)

    def extend(self, deadline: float) -> None:
        """Note a proof: the lock counts as held until the monotonic time ``deadline``."""
        with self._mutex:
            self._deadline = max(self._deadline, deadline)
        self._calm()

    def lose(self, reason: str) -> bool:
        """Note the loss, once and for ever; tells whether this call was the one that did."""
        if not self._end(State.LOST, reason):
            return False
        try:
            self._on_loss.tell(self)
            self.backend.report_lost(self, reason)
        except BaseException:
            self.backend.clear_away(self)
            raise
        return True

    @property
    def watch_at(self) -> float:
        """Monotonic time at which there is something to do for ``watch``."""
        return self._over_at if self._on_risk.is_told else self._risk_from

    def watch(self) -> None:
        """Called by the watchdog: end what is over, warn of what will be."""
        left = self._over_at - time.monotonic()
        if self.at_risk and not self.ended and self._on_risk.tell(self):
            self.backend.announce_risk(self, max(0.0, left))
        self._calm()  # it may have been proved meanwhile

    def leave(self, error: BaseException | None) -> None:
        """After the protected work: raise ``LockLost`` if need be, unless ``error`` is raised."""
        if self.lost and error is None:
            raise self._lost_error()

    @property
    def _is_inherited(self) -> bool:
        return os.getpid() != self._pid

    def _end(self, state: State, reason: str = "") -> bool:
        with self._mutex:
            if self._state is not State.HELD:
                return False
            if state is State.LOST:
                self._lost_at = min(time.monotonic(), self._over_at)
            self._state, self._reason = state, reason
        self._over.set()
        return True

    def _calm(self) -> None:
        if time.monotonic() < self._risk_from:
            self._on_risk.calm()

    def _end_in_time(self) -> None:
        if time.monotonic() >= self._deadline:
            self.lose("it could not be proved within the lease")
        elif time.monotonic() >= self._over_at and self._end(State.LOST, self._too_long):
            # Whoever looked must not wait for the store.
            self._on_loss.tell(self)
            report = functools.partial(self.backend.report_lost, self, self._reason)
            in_background(report, f"outbox-lock-give-up-{self.token}")

    def _release(self) -> bool:
        if self._is_inherited:
            return False
        try:
            return self._give_back()
        except BaseException:
            # A signal's handler has raised (Ctrl-C, a time limit): wherever that was, it is over.
            self._end(State.RELEASED)
            self._over.set()
            self.backend.clear_away(self)
            raise

    def _give_back(self) -> bool:
        if not self._end(State.RELEASED):
            self._tell_of_overrun()
            return False
        if self.backend.give_back(self):
            return True
        self._state, self._reason = State.LOST, "it was lost before its release"
        self._on_loss.tell(self)
        self.backend.announce_loss(self, self._reason)
        return False

    def _tell_of_overrun(self) -> None:
        with self._mutex:
            lost_at, self._lost_at = self._lost_at, None
        if lost_at is not None:
            self.backend.announce_overrun(self, time.monotonic() - lost_at)

    def _lost_error(self, reason: str = "") -> LockLost:
        holder = None
        if self._is_inherited:
            reason = "the handle belongs to the parent process"
        else:
            holder = registry.look_up(self.using, self.resource, aside=True)
        message = (
            f"{self.resource}: the lock with token {self.token} is lost: {reason or self._reason}."
            f"{after_loss(holder, self.lock_id)}"
        )
        return LockLost(message, resource=self.resource, token=self.token, holder=holder)

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """``__exit__`` for coroutines."""
        await self.arelease()
        await sync_to_async(self.leave)(error)
