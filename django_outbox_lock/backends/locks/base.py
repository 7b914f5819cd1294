"""The contract of a lock backend, and all that is the same for every one of them.

A room says how its store takes, proves and gives back a lock. Waiting, refusing to enter twice,
renewal, loss, signals and logging are here, once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
import uuid
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, connections

from django_outbox_lock import fence, keys, registry, signals
from django_outbox_lock.backends.locks.handle import LockHandle
from django_outbox_lock.backends.locks.keeper import Keeper
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.holder import Holder, LockState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.core.checks import CheckMessage
    from django.dispatch import Signal

logger = logging.getLogger("django_outbox_lock.locks")

_POLL_FIRST = 0.02
_POLL_LAST = 1.0


@dataclass(frozen=True, slots=True)
class Grant:
    """A room's answer to a take that succeeded. ``session_id`` is for session locks."""

    token: int
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Live:
    """A lock as the store itself shows it, whoever holds it."""

    store_key: str
    session_id: str = ""
    host: str = ""
    application: str = ""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What two sessions found out about the store: ``reason`` says why it must not be used."""

    usable: bool
    reason: str = ""


class BaseLockBackend:
    """A store that arbitrates between the processes that want a resource.

    ``alias`` is the database alias of the outbox: its registry issues the tokens. ``namespace``
    separates applications that share the store, ``lease`` is in seconds, ``session_using`` names
    the alias of the same database through which the lock's own session goes (past a pooler, say).
    """

    label: ClassVar[str]
    session_bound: ClassVar[bool] = False
    inside_atomic: ClassVar[bool] = True
    across_processes: ClassVar[bool] = True
    minimum_lease: ClassVar[float] = 1.0

    def __init__(
        self,
        alias: str,
        *,
        namespace: str = "",
        lease: float = 60.0,
        session_using: str | None = None,
    ) -> None:
        if not isinstance(namespace, str):
            raise TypeError(f"namespace must be a str, not {namespace!r}")
        if not isinstance(lease, int | float) or lease < self.minimum_lease:
            raise ValueError(
                f"lease must be at least {self.minimum_lease:g} seconds, not {lease!r}"
            )
        if session_using is not None and session_using not in connections:
            raise ValueError(f"session_using names no database alias: {session_using!r}")
        self.alias = alias
        self.lease = float(lease)
        self.session_using = session_using or alias
        self._given_namespace = namespace
        self.reset()
        _backends.add(self)

    def reset(self) -> None:
        """Start without any handle, as a forked child must."""
        self._mutex = threading.Lock()
        self._held: dict[str, LockHandle | None] = {}
        self._keeper = Keeper(f"outbox-lock-{self.alias}", self.lease, self._prove, self.idle)

    # The contract that callers use.

    def obtain(self, resource: str, *, timeout: float = 0.0) -> LockHandle | None:
        """Take the resource, or return None when it is busy for ``timeout`` seconds.

        Polls with jitter and promises no fairness. Never enters twice: a resource that this
        process holds is busy, whichever thread asks. Raises ``TypeError`` or ``ValueError`` for a
        wrong name and ``LockUnavailable`` when the store could not be asked.
        """
        resource = keys.canonical_resource(resource)
        give_up = time.monotonic() + timeout
        pause = _POLL_FIRST
        while True:
            try:
                handle = self._attempt(resource)
            except LockUnavailable:
                if time.monotonic() + pause >= give_up:
                    raise
                handle = None
            left = give_up - time.monotonic()
            if handle is not None or left <= 0:
                return handle
            time.sleep(min(left, pause * random.uniform(0.5, 1.0)))  # noqa: S311 (no secret)
            pause = min(_POLL_LAST, pause * 2)

    async def aobtain(self, resource: str, *, timeout: float = 0.0) -> LockHandle | None:
        """``obtain`` for coroutines; a task that is cancelled meanwhile leaves no lock behind."""
        obtaining = asyncio.ensure_future(sync_to_async(self.obtain)(resource, timeout=timeout))
        try:
            return await asyncio.shield(obtaining)
        except asyncio.CancelledError:
            obtaining.add_done_callback(_release_result)
            raise

    def release(self, resource: str, lock_id: str) -> bool:
        """Release what ``obtain`` gave under this lock id; tells whether it was still held."""
        handle = self._held.get(self.store_key(keys.canonical_resource(resource)))
        if handle is None or handle.lock_id != lock_id:
            return False
        return handle.release()

    async def arelease(self, resource: str, lock_id: str) -> bool:
        """``release`` for coroutines."""
        return await sync_to_async(self.release)(resource, lock_id)

    def prove(self, handle: LockHandle) -> bool:
        """Ask the store whether the handle still holds; raises when the store does not answer."""
        return self._prove(handle) is not None

    def renew(self, handle: LockHandle) -> bool:
        """Prove the handle now, without waiting for a third of the lease to pass."""
        deadline = self._prove(handle)
        if deadline is None:
            handle.lose("the store says that it is not ours any more")
            return False
        handle.extend(deadline)
        return True

    def force_release(self, resource: str, token: int, *, by: str = "") -> bool:
        """End the holder whose token is ``token``; False when that was no longer the holder.

        The fence goes first: from then on the old holder cannot write, whatever its store says.
        """
        resource = keys.canonical_resource(resource)
        before = registry.holder(connections[self.alias], resource)
        if not fence.force(connections[self.alias], resource, token, by):
            return False
        if before is not None and before.backend == self.arbiter(resource):
            try:
                self.end_by_force(resource, before)
            except (DatabaseError, InterfaceError, LockUnavailable) as error:
                logger.warning("%s: fenced, but not ended in the store: %s", resource, error)
        logger.warning("%s: the lock with token %s was released by force (%s)", resource, token, by)
        self._send(signals.lock_forced, resource=resource, token=token, forced_by=by)
        return True

    def holders(self) -> list[Holder]:
        """Every resource of the registry, joined with what the store shows of it now."""
        rows = registry.holders(connections[self.alias])
        try:
            live = {lock.store_key: lock for lock in self.live()}
        except (DatabaseError, InterfaceError, LockUnavailable) as error:
            logger.info("the lock store of %r could not be looked at: %s", self.alias, error)
            return [self._unverified(row) for row in rows]
        known = {self.store_key(row.resource) for row in rows}
        foreign = [self._foreign(lock) for key, lock in live.items() if key not in known]
        return [self._verified(row, live) for row in rows] + foreign

    def probe(self) -> ProbeResult:
        """Find out with two sessions whether the store keeps what it promises."""
        return ProbeResult(usable=True)

    def check(self) -> list[CheckMessage]:
        """System checks of this backend that need no connection."""
        return []

    def close(self) -> None:
        """Give back what is held and close connections."""
        for handle in self._keeper.handles():
            handle.release()

    # The part of a room.

    def store_key(self, resource: str) -> str:
        """The resource's key in the store, as text."""
        return keys.store_key(self.namespace, resource)

    def take(self, resource: str, lock_id: str) -> Grant | None:
        """Try once to take the resource and to bump its token; None when it is busy.

        Raises ``LockUnavailable`` when the store could not be asked.
        """
        raise NotImplementedError

    def prove_once(self, handle: LockHandle) -> bool:
        """Ask the store, in one go, whether the handle holds, and renew its lease if it has one.

        False means definitely not; an exception means that nobody knows.
        """
        raise NotImplementedError

    def drop(self, handle: LockHandle) -> bool:
        """Give the lock back in the store; tells whether it was held."""
        raise NotImplementedError

    def abandon(self, handle: LockHandle) -> None:
        """Leave a lost lock behind so that nobody waits for this process longer than needed."""

    def live(self) -> Iterable[Live]:
        """What the store shows of its locks. Raises ``LockUnavailable`` when it may not be seen."""
        return []

    def end_by_force(self, resource: str, holder: Holder) -> None:
        """End the holder in the store; the registry has fenced it off already."""

    def idle(self) -> None:
        """Called when nothing was held for a while."""

    # The same for all.

    @property
    def namespace(self) -> str:
        """What separates this application's locks in the store."""
        return self._given_namespace

    def arbiter(self, resource: str) -> str:
        """What stands in the registry's ``backend`` column: who arbitrates, under which key."""
        return f"{self.label}:{self.store_key(resource)}"

    def claim(self, resource: str, lock_id: str, session_id: str = "") -> fence.Claim:
        """The claim that a room hands to ``fence.bump``."""
        return fence.Claim(
            resource=resource,
            lock_id=lock_id,
            backend=self.arbiter(resource),
            lease=self.lease,
            expires=not self.session_bound,
            arbitrated=True,
            session_id=session_id,
        )

    def give_back(self, handle: LockHandle) -> bool:
        """Called by a handle that has ended by its own release."""
        self._keeper.discard(handle)
        try:
            held = self.drop(handle)
        except (DatabaseError, InterfaceError, LockUnavailable) as error:
            logger.warning("%s: the release got no answer: %s", handle.resource, error)
            self.abandon(handle)
            held = False
        self._forget(handle)
        if held:
            self._send(signals.lock_released, handle=handle)
        else:
            logger.warning(
                "%s: token %s was lost before its release", handle.resource, handle.token
            )
            self._announce_loss(handle, "it was lost before its release")
        return held

    def report_lost(self, handle: LockHandle, reason: str) -> None:
        """Called by a handle, once, when it is lost."""
        logger.warning("%s: token %s is lost: %s", handle.resource, handle.token, reason)
        self._keeper.discard(handle)
        with suppress(DatabaseError, InterfaceError, LockUnavailable):
            self.abandon(handle)
        self._forget(handle)
        self._announce_loss(handle, reason)

    def _attempt(self, resource: str) -> LockHandle | None:
        key = self.store_key(resource)
        with self._mutex:
            if key in self._held:
                return None
            self._held[key] = None  # ours to try: no other thread asks the store meanwhile
        handle = None
        try:
            handle = self._take(resource, key)
        finally:
            with self._mutex:
                if handle is None:
                    del self._held[key]
                else:
                    self._held[key] = handle
        if handle is not None:
            self._keeper.add(handle)
            self._send(signals.lock_obtained, handle=handle)
        return handle

    def _take(self, resource: str, key: str) -> LockHandle | None:
        lock_id = uuid.uuid4().hex
        asked = time.monotonic()  # the lease runs from before the question, never from the answer
        grant = self.take(resource, lock_id)
        if grant is None:
            return None
        ticket = fence.Ticket(resource, lock_id, grant.token)
        handle = LockHandle(
            self,
            ticket,
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
        return asked + self.lease if self.prove_once(handle) else None

    def _forget(self, handle: LockHandle) -> None:
        with self._mutex:
            if self._held.get(handle.store_key) is handle:
                del self._held[handle.store_key]

    def _announce_loss(self, handle: LockHandle, reason: str) -> None:
        # On a thread of its own: a receiver may release, wait or hang without harm to the keeper.
        threading.Thread(
            target=self._send,
            args=(signals.lock_lost,),
            kwargs={"handle": handle, "reason": reason},
            name=f"outbox-lock-lost-{handle.token}",
            daemon=True,
        ).start()

    def _send(self, signal: Signal, **named: Any) -> None:
        handle = named.get("handle")
        if handle is not None:
            named.update(resource=handle.resource, token=handle.token)
        signal.send_robust(type(self), using=self.alias, **named)

    def _verified(self, row: Holder, live: dict[str, Live]) -> Holder:
        if row.state is not LockState.HELD or row.backend != self.arbiter(row.resource):
            return row
        seen = live.get(self.store_key(row.resource))
        if seen is not None and seen.session_id in {"", row.session_id}:
            return row
        return replace(row, state=LockState.STALE)

    def _unverified(self, row: Holder) -> Holder:
        held = row.state is LockState.HELD
        return replace(row, state=LockState.UNVERIFIED) if held else row

    def _foreign(self, lock: Live) -> Holder:
        return Holder(
            resource=lock.store_key,
            state=LockState.FOREIGN,
            backend=self.label,
            host=lock.host,
            pid=lock.pid,
            application=lock.application,
            session_id=lock.session_id,
        )


def _release_result(obtaining: asyncio.Future[LockHandle | None]) -> None:
    handle = None if obtaining.cancelled() or obtaining.exception() else obtaining.result()
    if handle is not None:
        threading.Thread(target=handle.release, daemon=True).start()


_backends: weakref.WeakSet[BaseLockBackend] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for backend in list(_backends):
        backend.reset()


os.register_at_fork(after_in_child=_reset_after_fork)
