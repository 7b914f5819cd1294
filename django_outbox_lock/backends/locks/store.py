"""Leases in a store outside the database; the registry still issues the tokens.

Taking such a lock has three steps: the store grants the lease, the registry bumps the token, and
the store is asked once more. A claimant that was asleep between the first and the second step
changes nothing: it bumps only from the token that it saw before it asked the store.
"""

from __future__ import annotations

import abc
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from django.core import checks
from django.db import Error

from django_outbox_lock import dberrors, fence, process
from django_outbox_lock.backends.locks.base import BaseLockBackend, Grant
from django_outbox_lock.dedicated import LockSession
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.polling import in_background
from django_outbox_lock.waits import limit_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.holder import Holder

T = TypeVar("T")

ROW_WAIT = 2.0
REGISTRY_WAIT = ROW_WAIT + 3


@dataclass(frozen=True, slots=True)
class Owner:
    """What a store keeps of the one to whom it has given a lease."""

    lock_id: str
    resource: str
    host: str
    pid: int
    application: str


class StoreLockBackend(BaseLockBackend, abc.ABC):
    """What the rooms for stores outside the database have in common.

    ``namespace`` must be given: such a store is often shared by applications and environments.
    A room turns what its client library raises into ``LockUnavailable``, except where the answer
    is definite.
    """

    extra: ClassVar[str]
    """Name of the extra of this package that brings the client library."""

    def reset(self) -> None:
        super().reset()
        if "_registry" in vars(self):
            self._registry.disown()
        # A connection of our own: the caller of ``obtain`` may be inside a transaction.
        self._registry = LockSession(self.session_using, {}, _limit_waits)
        self._tokens: dict[str, int] = {}

    # The part of a room.

    @abc.abstractmethod
    def acquire(self, key: str, owner: Owner) -> bool:
        """Take the lease if it is free or has expired. An answer that got lost is read back."""

    @abc.abstractmethod
    def extend(self, key: str, owner_id: str) -> bool:
        """Let the owner's lease run anew; False when it is definitely not the owner's."""

    @abc.abstractmethod
    def vacate(self, key: str, owner_id: str) -> bool:
        """End the owner's lease now; False when it was not the owner's any more."""

    def disconnect(self) -> None:
        """Close the client's connections; the next call opens them again."""

    # The same for all of them.

    def take(self, resource: str, lock_id: str) -> Grant | None:
        key = self.store_key(resource)
        seen = self._seen(resource, key)
        if not self.acquire(key, self._owner(resource, lock_id)):
            self._tokens.pop(key, None)
            return None
        try:
            token = self._bump(resource, lock_id, seen)
            if token is not None and self.extend(key, lock_id):
                self._tokens[key] = token
                return Grant(token)
        except BaseException:
            self._give_up(key, lock_id)
            raise
        self._give_up(key, lock_id)
        if token is not None:  # the lease passed while the registry was asked
            ticket = fence.Ticket(resource, lock_id, token)
            self._unless_busy(lambda row: fence.free(row, ticket), otherwise=False)
        return None

    def prove_once(self, handle: LockHandle) -> bool:
        if not self.extend(handle.store_key, handle.lock_id):
            return False
        return self._unless_busy(
            lambda row: fence.touch(row, handle.ticket, lease=self.lease), otherwise=True
        )

    def drop(self, handle: LockHandle) -> bool:
        # If the row is busy, the next holder finds an owner of this backend there and goes on.
        freed = self._unless_busy(lambda row: fence.free(row, handle.ticket), otherwise=True)
        return self.vacate(handle.store_key, handle.lock_id) and freed

    def abandon(self, handle: LockHandle) -> None:
        self._give_up(handle.store_key, handle.lock_id)

    def end_by_force(self, resource: str, holder: Holder) -> None:
        if holder.lock_id is not None:
            self.vacate(self.store_key(resource), holder.lock_id)

    def idle(self) -> None:
        self._registry.close_if_unused()

    def close(self) -> None:
        super().close()
        self._registry.close()
        self.disconnect()

    def check(self) -> list[checks.CheckMessage]:
        """E009: a store outside the database needs a namespace."""
        if self.namespace:
            return []
        path = f"OUTBOX_LOCK[{self.alias!r}]['LOCK']['OPTIONS']"
        return [
            checks.Error(
                f"{path}['namespace'] is empty, but the store may be shared with others.",
                hint="Give a name that is unique to this application and environment, for "
                "example 'shop-production'. (docs: checks.html#e009)",
                id="django_outbox_lock.E009",
            )
        ]

    def _owner(self, resource: str, lock_id: str) -> Owner:
        return Owner(lock_id, resource, process.host(), os.getpid(), process.application())

    def _seen(self, resource: str, key: str) -> int:
        """The token before the store is asked: of our own last turn, if nobody came between."""
        if key not in self._tokens:
            self._tokens[key] = self._unless_busy(
                lambda row: fence.current_token(row, resource), otherwise=0
            )
        return self._tokens[key]

    def _bump(self, resource: str, lock_id: str, seen: int) -> int | None:
        self._tokens.pop(self.store_key(resource), None)
        claim = self.claim(resource, lock_id)
        return self._unless_busy(lambda row: fence.bump(row, claim, expected=seen), otherwise=None)

    def _give_up(self, key: str, lock_id: str) -> None:
        """Leave no lease behind, without waiting for a store that may not answer."""

        def vacate() -> None:
            with contextlib.suppress(LockUnavailable):
                self.vacate(key, lock_id)

        in_background(vacate, f"outbox-lock-vacate-{key[:12]}")

    def _unless_busy(self, ask: Callable[[BaseDatabaseWrapper], T], *, otherwise: T) -> T:
        """What the registry answers, or ``otherwise`` while somebody else has the row."""
        try:
            with self._registry.use(REGISTRY_WAIT) as row:
                return ask(row)
        except Error as error:
            if dberrors.is_transient(error):
                return otherwise
            raise LockUnavailable(f"The registry of {self.alias!r} failed: {error}") from error


def _limit_waits(cursor: CursorWrapper) -> str:
    limit_session(cursor.db, ROW_WAIT)
    return ""
