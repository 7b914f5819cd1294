"""The contract of a lock backend, and all that is the same for every one of them.

A room says how its store takes, proves and gives back a lock. Waiting, refusing to enter twice,
renewal, loss, signals and logging are here, once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
import weakref
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import Error, connections
from django.db.transaction import TransactionManagementError
from django.utils.asyncio import async_unsafe

from django_outbox_lock import fence, keys, process, registry, signals
from django_outbox_lock.backends.locks.contract import Grant, ProbeResult, Room
from django_outbox_lock.backends.locks.handle import LockHandle
from django_outbox_lock.backends.locks.keeper import Keeper
from django_outbox_lock.backends.locks.register import Register
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.polling import HandOver, Polling, in_background
from django_outbox_lock.registry import Live
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django.dispatch import Signal

    from django_outbox_lock.holder import Holder

__all__ = ["BaseLockBackend", "Grant", "Live", "ProbeResult"]

logger = logging.getLogger("django_outbox_lock.locks")


class BaseLockBackend(Room):
    """A store that arbitrates between the processes that want a resource.

    Subclass it and fill in the part of a room; ``django_outbox_lock.testing.LockContract`` tells
    whether it keeps the promises.
    """

    def reset(self) -> None:
        """Start without any handle, as a forked child must."""
        _backends.add(self)
        self._held = Register()
        self._keeper = Keeper(
            f"outbox-lock-{self.alias}", self.lease, self._prove, self.idle, first=self.first_proof
        )

    # The contract that callers use.

    # An open session has no guard of the driver's, and the wait would stop the whole loop.
    @async_unsafe(
        "A lock cannot be waited for in an event loop. Use `async with` instead of `with`, "
        "or aobtain() instead of obtain()."
    )
    def obtain(self, resource: str, *, timeout: float = 0.0) -> LockHandle | None:
        """Take the resource, or return None when it is busy for ``timeout`` seconds.

        Polls with jitter and promises no fairness. Never enters twice: a resource that this
        process holds is busy, whichever thread asks. Raises ``TypeError`` or ``ValueError`` for a
        wrong name, ``LockUnavailable`` when the store could not be asked, and
        ``SynchronousOnlyOperation`` in an event loop.
        """
        resource, polling = keys.canonical_resource(resource), Polling(timeout)
        while True:
            handle = self._try(resource, polling)
            if handle is not None:
                return handle
            if polling.is_over:
                self._refuse(resource, polling)
                return None
            time.sleep(polling.pause())

    async def aobtain(self, resource: str, *, timeout: float = 0.0) -> LockHandle | None:
        """``obtain`` for coroutines; a task that is cancelled meanwhile leaves no lock behind."""
        resource, polling = keys.canonical_resource(resource), Polling(timeout)
        while True:
            trying = HandOver(lambda: self._try(resource, polling), LockHandle.release)
            try:
                handle = await sync_to_async(trying.run)()
            except BaseException:  # cancelled, or its event loop was closed
                trying.abandon()
                raise
            if handle is not None:
                return handle
            if polling.is_over:
                await sync_to_async(self._refuse)(resource, polling)
                return None
            await asyncio.sleep(polling.pause())

    def release(self, resource: str, lock_id: str) -> bool:
        """Release what ``obtain`` gave under this lock id; tells whether it was still held."""
        handle = self._own(keys.canonical_resource(resource))
        return handle is not None and handle.lock_id == lock_id and handle.release()

    async def arelease(self, resource: str, lock_id: str) -> bool:
        """``release`` for coroutines."""
        handle = self._own(keys.canonical_resource(resource))
        return handle is not None and handle.lock_id == lock_id and await handle.arelease()

    def prove(self, handle: LockHandle) -> bool:
        """Ask the store whether the handle still holds.

        Raises ``LockUnavailable`` when the store gave no answer: that is no loss.
        """
        return self._prove(handle) is not None

    def renew(self, handle: LockHandle) -> bool:
        """Prove the handle now, without waiting for a third of the lease to pass.

        Raises ``LockUnavailable``, as ``prove`` does.
        """
        deadline = self._prove(handle)
        if deadline is None:
            handle.lose("the store says that it is not ours any more")
            return False
        handle.extend(deadline)
        return not handle.lost

    def force_release(self, resource: str, token: int, *, by: str = "") -> bool:
        """End the holder whose token is ``token``; False when that was no longer the holder.

        The fence goes first: from then on the old holder cannot write, whatever its store says.
        """
        resource = keys.canonical_resource(resource)
        before = registry.holder(connections[self.alias], resource)
        if not fence.force(connections[self.alias], resource, token, by):
            return False
        logger.warning("%s: the lock with token %s was released by force (%s)", resource, token, by)
        if before and before.token == token and before.backend == self.arbiter(resource):
            self._end_by_force(resource, before)
        self._send(signals.lock_forced, resource=resource, token=token, forced_by=by)
        return True

    def holders(self) -> list[Holder]:
        """Every resource of the registry, joined with what the store shows of it now."""
        rows = registry.holders(connections[self.alias])
        live: Iterable[Live] | None = None
        try:
            live = list(self.live())
        except (Error, LockUnavailable) as error:
            logger.info("The lock store of %r could not be looked at: %s", self.alias, error)
        return registry.join(rows, live, registry.View(self.label, self.store_key, self.arbiter))

    def close(self) -> None:
        """Give back what is held, end the threads and close connections."""
        for handle in self._keeper.handles():
            handle.release()
        self._keeper.close()

    # What handles call.

    def give_back(self, handle: LockHandle) -> bool:
        """Called by a handle, once, when it is released; tells whether it still held."""
        self._keeper.discard(handle)
        try:
            held = self.drop(handle)
        except (Error, LockUnavailable) as error:
            # A lease that is not over was ours all the time, and now runs out by itself.
            held = not self.session_bound and time.monotonic() < handle.deadline
            logger.warning("%s: the release got no answer: %s", handle.resource, error)
        self._held.forget(handle.store_key, handle.lock_id)
        if held:
            self._send(signals.lock_released, handle=handle)
        return held

    def report_lost(self, handle: LockHandle, reason: str) -> None:
        """Called by a handle, once, when it is lost."""
        self._keeper.discard(handle)
        try:
            self.abandon(handle)
        except (Error, LockUnavailable) as error:
            logger.info("%s: the lost lock could not be given back: %s", handle.resource, error)
        finally:
            self._held.forget(handle.store_key, handle.lock_id)
            self.announce_loss(handle, reason)

    def clear_away(self, handle: LockHandle) -> None:
        """Called by a handle whose end was interrupted: nothing of it is left behind."""
        self._keeper.discard(handle)
        if self._held.has(handle.store_key, handle.lock_id):  # else others may have it by now
            leave = self.abandon if handle.lost else self.drop
            self._in_spite_of_errors(handle.resource, lambda: leave(handle))
            self._held.forget(handle.store_key, handle.lock_id)

    def announce_loss(self, handle: LockHandle, reason: str) -> None:
        """Tell the log and, on a thread of their own, the receivers, who may wait or hang."""
        logger.warning("%s: token %s is lost: %s", handle.resource, handle.token, reason)
        in_background(
            lambda: self._send(signals.lock_lost, handle=handle, reason=reason),
            f"outbox-lock-lost-{handle.token}",
        )

    def announce_risk(self, handle: LockHandle, left: float) -> None:
        """Tell the log and, as with a loss, the receivers that the lock may be lost soon."""
        logger.warning(
            "%s: token %s is at risk: it ends in %.1f s", handle.resource, handle.token, left
        )
        in_background(
            lambda: self._send(signals.lock_at_risk, handle=handle, left=left),
            f"outbox-lock-risk-{handle.token}",
        )

    def announce_overrun(self, handle: LockHandle, overrun: float) -> None:
        """Called by a handle, once, when the work under it has ended after its loss."""
        self._send(signals.lock_left, handle=handle, overrun=overrun)

    def watch(self, handle: LockHandle) -> None:
        """Called by a handle when it may end earlier than it was to."""
        self._keeper.look_at(handle)

    def _refuse(self, resource: str, polling: Polling) -> None:
        waited = polling.waited
        self._send(signals.lock_contended, backend=self, resource=resource, waited=waited)

    def _try(self, resource: str, polling: Polling) -> LockHandle | None:
        try:
            return self._attempt(resource, polling)
        except LockUnavailable:
            if polling.is_over:
                raise
            return None

    def _attempt(self, resource: str, polling: Polling) -> LockHandle | None:
        key, lock_id, handle = self.store_key(resource), uuid.uuid4().hex, None
        try:
            if self._held.reserve(key, lock_id):  # no other thread asks the store meanwhile
                handle = self._take(resource, key, lock_id)
            if handle is not None:
                self._keep(handle, polling)
        except (Error, LockUnavailable):
            raise
        except BaseException:
            # Perhaps a signal's handler has raised (Ctrl-C, a time limit): nobody gets the handle.
            self._leave_nothing(resource, key, lock_id, handle)
            raise
        finally:
            if handle is None:
                self._held.forget(key, lock_id)
        return handle

    def _keep(self, handle: LockHandle, polling: Polling) -> None:
        self._held.enter(handle)
        self._keeper.add(handle)
        self.adopted(handle)
        self._send(signals.lock_obtained, handle=handle, waited=polling.waited)

    def _leave_nothing(
        self, resource: str, key: str, lock_id: str, handle: LockHandle | None
    ) -> None:
        if handle is not None:
            handle.release()
        elif self._held.has(key, lock_id):
            self._in_spite_of_errors(resource, lambda: self.undo_take(resource, lock_id))

    def _in_spite_of_errors(self, resource: str, leave: Callable[[], object]) -> None:
        try:
            leave()
        except Exception as error:  # noqa: BLE001 (what interrupted us is to be raised)
            logger.warning("%s: what was interrupted was not undone: %s", resource, error)

    def _take(self, resource: str, key: str, lock_id: str) -> LockHandle | None:
        asked = time.monotonic()  # the lease runs from before the question, never from the answer
        grant = self.take(resource, lock_id)
        if grant is None:
            return None
        handle = LockHandle(
            self,
            fence.Ticket(resource, lock_id, grant.token),
            store_key=key,
            deadline=asked + self.lease,
            session_id=grant.session_id,
        )
        if time.monotonic() < handle.deadline:
            return handle
        self.drop(handle)  # granted too late to be of use: leave it to others at once
        return None

    def _prove(self, handle: LockHandle) -> float | None:
        asked = time.monotonic()
        try:
            held = self.prove_once(handle)
        except TransactionManagementError:
            raise  # the caller's own doing
        except Error as error:
            raise LockUnavailable(f"{handle.resource}: it was not proved: {error}") from error
        return asked + self.lease if held else None

    def _own(self, resource: str) -> LockHandle | None:
        return self._held.handle(self.store_key(resource))

    def _end_by_force(self, resource: str, before: Holder) -> None:
        try:
            self.end_by_force(resource, before)
        except (Error, LockUnavailable) as error:
            logger.warning("%s: fenced, but not ended in the store: %s", resource, error)
        handle = self._own(resource)
        if handle is not None and handle.lock_id == before.lock_id:
            handle.lose("it was released by force")

    def _send(self, signal: Signal, **named: Any) -> None:
        handle = named.get("handle")
        if handle is not None:
            named.update(resource=handle.resource, token=handle.token)
        signal.send_robust(type(self), using=self.alias, **named)


_backends: weakref.WeakSet[BaseLockBackend] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for backend in list(_backends):
        backend.reset()


process.in_forked_children(_reset_after_fork)
