"""A lease in the registry's own row: for every database that has no lock of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django.db import DatabaseError, connections
from django.db.transaction import TransactionManagementError

from django_outbox_lock import dberrors, fence, registry, transactions
from django_outbox_lock.backends.locks.base import BaseLockBackend, Grant, Live
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.holder import LockState
from django_outbox_lock.waits import bounded_wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.backends.locks.handle import LockHandle

ROW_WAIT = 2.0


class LeaseTableLock(BaseLockBackend):
    """One conditional UPDATE takes the lease and bumps the token; the server's clock decides.

    Works on the caller's connection and needs its statements to be durable at once, so it refuses
    inside a transaction: the lock would be invisible until the commit and would vanish with a
    rollback.
    """

    label = "lease"
    inside_atomic = False

    def store_key(self, resource: str) -> str:
        return resource

    def arbiter(self, resource: str) -> str:
        return self.label

    def take(self, resource: str, lock_id: str) -> Grant | None:
        if transactions.in_transaction(self.alias):
            raise TransactionManagementError(
                f"The lease table cannot lock {resource!r} inside a transaction on "
                f"{self.alias!r}: obtain the lock before the transaction begins."
            )
        claim = replace(self.claim(resource, lock_id), arbitrated=False)
        try:
            with bounded_wait(connections[self.alias], ROW_WAIT):
                token = fence.bump(connections[self.alias], claim)
        except DatabaseError as error:
            if dberrors.is_transient(error):
                return None
            raise LockUnavailable(f"{resource}: the lease table gave no answer: {error}") from error
        return None if token is None else Grant(token)

    def prove_once(self, handle: LockHandle) -> bool:
        with bounded_wait(connections[self.alias], ROW_WAIT):
            return fence.touch(connections[self.alias], handle.ticket, lease=self.lease)

    def drop(self, handle: LockHandle) -> bool:
        return fence.free(connections[self.alias], handle.ticket)

    def live(self) -> Iterator[Live]:
        """The registry is the store itself."""
        for row in registry.holders(connections[self.alias]):
            if row.state is LockState.HELD:
                yield Live(self.store_key(row.resource), session_id=row.session_id)

    def idle(self) -> None:
        """Close the connection of the thread that renews."""
        connections[self.alias].close()
