"""Leases in a store outside the database; the registry still issues the tokens.

Taking such a lock has two steps: the store grants the lease, and the registry bumps the token. A
claimant that was asleep between them changes nothing: it bumps only from the token that it saw
before it asked the store, and its lease runs from then. The first proof comes early, and finds out
a store that forgot the lease meanwhile (docs/decisions/0010).
"""

from __future__ import annotations

import abc
import contextlib
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.core import checks
from django.db import Error, connections
from django.db.transaction import TransactionManagementError

from django_outbox_lock import conf, dberrors, fence, keys, process, transactions
from django_outbox_lock.backends.locks.base import BaseLockBackend, Grant, ProbeResult
from django_outbox_lock.checked import flag
from django_outbox_lock.dedicated import LockSession, SessionLost
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.polling import in_background
from django_outbox_lock.steady import time
from django_outbox_lock.waits import limit_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.holder import Holder

logger = logging.getLogger("django_outbox_lock.locks")

T = TypeVar("T")
# What a client library runs into when it cannot read the answer: perhaps somebody else gave it.
GARBLED = (ValueError, TypeError, LookupError, AttributeError)

ROW_WAIT = 2.0
REGISTRY_WAIT = ROW_WAIT + 3
_REMEMBERED_TOKENS = 1024
_NO_PLACE = frozenset({"lease", "leave_to_expire", "session_using", "timeout"})


@dataclass(frozen=True, slots=True)
class Owner:
    """What a store keeps of the one to whom it has given a lease."""

    lock_id: str
    resource: str
    host: str = field(default_factory=process.host)
    pid: int = field(default_factory=os.getpid)
    application: str = field(default_factory=process.application)


class StoreLockBackend(BaseLockBackend):
    """What the rooms for stores outside the database have in common.

    ``namespace`` must be given: such a store is often shared by applications and environments.
    With ``leave_to_expire`` a release only ends the renewal: nobody gets the resource before the
    lease has run out, so that a very short job is not run twice by replicas whose schedules are a
    little apart.

    A room turns what its client library raises into ``LockUnavailable``, except where the answer
    is definite.
    """

    first_proof: ClassVar[float] = 1.0
    extra: ClassVar[str]
    """Name of the extra of this package that brings the client library."""

    def __init__(self, alias: str, *, leave_to_expire: bool = False, **options: Any) -> None:
        super().__init__(alias, **options)
        self.leave_to_expire = flag("leave_to_expire", leave_to_expire)

    def reset(self) -> None:
        super().reset()
        if "_registry" in vars(self):
            self._registry.disown()
        # A connection of our own: the caller of ``obtain`` may be inside a transaction.
        self._registry: LockSession = LockSession(self.session_using, {}, _limit_waits)
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

    def sign(self, key: str, owner: Owner) -> bool:
        """Write who holds, where ``acquire`` could not; False when the lease is not the owner's."""
        return True

    def disconnect(self) -> None:
        """Close the client's connections; the next call opens them again."""

    def missing(self) -> str | None:
        """What ``provision`` would make, None if nothing; raises ``LockUnavailable``."""
        return None

    def provision(self) -> str:
        """Make what the store needs and tell what was done; raises ``LockUnavailable``."""
        self.missing()  # it must answer, at least
        return f"{self.label}: there is nothing to provision"

    # The same for all of them.

    @property
    def space(self) -> str:
        """16 hexadecimal digits that keys of this namespace may begin with, to be found again."""
        return keys.store_key(self.namespace, "")[:16]

    def take(self, resource: str, lock_id: str) -> Grant | None:
        key, owner, token = self.store_key(resource), Owner(lock_id, resource), None
        seen = self._seen(resource, key)
        try:
            if not self.acquire(key, owner):
                return None
            token = self._bump(resource, lock_id, seen)
            if token is None:
                token = self._bump_anew(resource, lock_id, seen)
            if token is not None and self.sign(key, owner):
                self._tokens[key] = token
                return Grant(token)
        except BaseException:
            self._give_up(resource, lock_id, token)
            raise
        self._give_up(resource, lock_id, token)
        return None

    def undo_take(self, resource: str, lock_id: str) -> None:
        self._give_up(resource, lock_id, None)

    def prove_once(self, handle: LockHandle) -> bool:
        if not self.extend(handle.store_key, handle.lock_id):
            return False
        return self._unless_busy(
            lambda row: fence.touch(row, handle.ticket, lease=self.lease), otherwise=True
        )

    def drop(self, handle: LockHandle) -> bool:
        if self.leave_to_expire:
            touched = self._unless_busy(lambda row: fence.touch(row, handle.ticket), otherwise=True)
            return touched and time.monotonic() < handle.deadline
        freed = self._freed(handle)
        try:
            return self._vacated(handle) and freed
        except LockUnavailable:
            if freed:  # else the registry has told already
                raise
            return False

    def abandon(self, handle: LockHandle) -> None:
        self._give_up(handle.resource, handle.lock_id, None)  # the row tells that it expired

    def end_by_force(self, resource: str, holder: Holder) -> None:
        if holder.lock_id is not None:
            self.vacate(self.store_key(resource), holder.lock_id)

    def idle(self) -> None:
        self._registry.close_if_unused()

    def close(self) -> None:
        super().close()
        self._registry.close()
        self.disconnect()

    def probe(self) -> ProbeResult:
        """Refuse a registry that a second connection cannot reach; the store is not asked."""
        in_memory = getattr(connections[self.alias], "is_in_memory_db", None)  # SQLite's has it
        if in_memory is None or not in_memory():
            return ProbeResult(usable=True)
        return ProbeResult(
            False,
            f"the tokens need a database that a second connection can reach, and {self.alias!r} is "
            "an SQLite database in memory (tests: give it a file, or use the in-memory lock)",
        )

    def check(self) -> list[checks.CheckMessage]:
        """E009: a store outside the database needs a namespace, and each outbox one of its own."""
        option = f"OUTBOX_LOCK[{self.alias!r}]['LOCK']['OPTIONS']['namespace']"
        rivals = self._rivals() if self.namespace else []
        if rivals:
            text = f"{option} is that of {rivals[0]!r}, too: their locks shut each other out."
        elif not self.namespace:
            text = f"{option} is empty, but the store may be shared with others."
        else:
            return []
        hint = (
            "Give a name that is unique to this outbox and environment, for example "
            "'shop-production'. (docs: checks.html#e009)"
        )
        return [checks.Error(text, hint=hint, id="django_outbox_lock.E009")]

    def _rivals(self) -> list[str]:
        """The aliases whose sweepers would find their locks held by this outbox's, for ever."""
        settings = {alias: conf.outbox_settings(alias).lock for alias in conf.outbox_aliases()}
        places = {alias: _place(lock) for alias, lock in settings.items() if lock.backend}
        mine = places.pop(self.alias, None)
        return [alias for alias, place in places.items() if place == mine]

    def _seen(self, resource: str, key: str) -> int:
        """The token before the store is asked, or one that was the last some time before."""
        token = self._tokens.get(key)
        if token is None:
            token = self._unless_busy(lambda row: fence.current_token(row, resource), otherwise=0)
            if len(self._tokens) >= _REMEMBERED_TOKENS:
                self._tokens.clear()
            self._tokens[key] = token
        return token

    def _bump(self, resource: str, lock_id: str, seen: int) -> int | None:
        self._tokens.pop(self.store_key(resource), None)
        claim = self.claim(resource, lock_id)
        try:
            return self._ask(lambda row: fence.bump(row, claim, expected=seen))
        except _RowBusyError:
            self._refuse_if_writer(resource)
            return None

    def _bump_anew(self, resource: str, lock_id: str, before: int) -> int | None:
        """Others had the lock since ``before`` was seen: bump from now on, if it is our turn."""
        key = self.store_key(resource)
        seen = self._seen(resource, key)
        if seen == before or not self.extend(key, lock_id):
            return None
        return self._bump(resource, lock_id, seen)

    def _freed(self, handle: LockHandle) -> bool:
        # If nobody can tell, the store decides, and the next holder takes the row from there.
        try:
            return self._ask(lambda row: fence.free(row, handle.ticket), again=False)
        except (_RowBusyError, LockUnavailable) as error:
            logger.info("%s: the registry was not told of the release: %s", handle.resource, error)
            return True

    def _vacated(self, handle: LockHandle) -> bool:
        try:
            return self.vacate(handle.store_key, handle.lock_id)
        except LockUnavailable:
            # If only the answer got lost, the repetition is refused, and that proves nothing.
            if self.vacate(handle.store_key, handle.lock_id):
                return True
            raise

    def _give_up(self, resource: str, lock_id: str, token: int | None) -> None:
        """Leave nothing behind, without waiting for a store or a registry that may not answer."""

        def leave() -> None:
            if token is not None:
                ticket = fence.Ticket(resource, lock_id, token)
                with contextlib.suppress(LockUnavailable):
                    self._unless_busy(lambda row: fence.free(row, ticket), otherwise=False)
            with contextlib.suppress(LockUnavailable):
                self.vacate(self.store_key(resource), lock_id)

        in_background(leave, f"outbox-lock-give-up-{resource[:32]}", or_here=False)

    def _refuse_if_writer(self, resource: str) -> None:
        """On SQLite the bump may have waited for the transaction of the caller itself."""
        if connections[self.alias].vendor == "sqlite" and transactions.in_transaction(self.alias):
            raise TransactionManagementError(
                f"{resource!r} cannot be locked inside a transaction that may write: SQLite has "
                "one writer, and the token is committed at once. Obtain the lock before it begins."
            )

    def _unless_busy(self, ask: Callable[[BaseDatabaseWrapper], T], *, otherwise: T) -> T:
        """What the registry answers, or ``otherwise`` while somebody else has the row."""
        with contextlib.suppress(_RowBusyError):
            return self._ask(ask)
        return otherwise

    def _ask(self, ask: Callable[[BaseDatabaseWrapper], T], *, again: bool = True) -> T:
        """Ask the registry; ``again`` on a new session if the old one had died of idleness."""
        reused = again and self._registry.is_open
        try:
            with self._row() as row:
                return ask(row)
        except SessionLost:
            if not reused:
                raise
        except Error as error:
            if dberrors.is_transient(error):
                raise _RowBusyError(str(error)) from error
            raise LockUnavailable(f"The registry of {self.alias!r} failed: {error}") from error
        return self._ask(ask, again=False)

    def _row(self) -> AbstractContextManager[BaseDatabaseWrapper]:
        own = connections[self.alias]
        in_test_case = own.in_atomic_block and not transactions.in_transaction(self.alias)
        if in_test_case and own.vendor == "sqlite":
            return contextlib.nullcontext(own)  # the one connection that can write, then
        return self._registry.use(REGISTRY_WAIT)


class _RowBusyError(Exception):
    """Somebody else had the registry's row for longer than ``ROW_WAIT``."""


def _place(settings: conf.BackendSettings) -> object:
    """Where the leases are, as far as the settings tell."""
    options = settings.options.items()
    return settings.backend, {name: value for name, value in options if name not in _NO_PLACE}


def _limit_waits(cursor: CursorWrapper) -> str:
    limit_session(cursor.db, ROW_WAIT)
    return ""
