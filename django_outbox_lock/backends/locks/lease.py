"""A lease in the registry's own row: for every database that has no lock of its own."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.db import Error, connections
from django.db.transaction import TransactionManagementError

from django_outbox_lock import dberrors, fence, registry, transactions
from django_outbox_lock.backends.locks.base import BaseLockBackend, Grant, Live
from django_outbox_lock.checked import flag
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.holder import LockState
from django_outbox_lock.polling import in_background
from django_outbox_lock.waits import bounded_wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_outbox_lock.backends.locks.handle import LockHandle

ROW_WAIT = 2.0


class LeaseTableLock(BaseLockBackend):
    """One conditional UPDATE takes the lease and bumps the token; the server's clock decides.

    Works on the caller's connection and needs its statements to be durable at once, so it refuses
    inside a transaction: the lock would be invisible until the commit and would vanish with a
    rollback. With ``leave_to_expire`` a release only ends the renewal: nobody gets the resource
    before the lease has run out, so that a very short job is not run twice by replicas whose
    schedules are a little apart.
    """

    label = "lease"
    inside_atomic = False

    def __init__(self, alias: str, *, leave_to_expire: bool = False, **options: Any) -> None:
        super().__init__(alias, **options)
        self.leave_to_expire = flag("leave_to_expire", leave_to_expire)

    def store_key(self, resource: str) -> str:
        return resource

    def arbiter(self, resource: str) -> str:
        return self.label

    def take(self, resource: str, lock_id: str) -> Grant | None:
        self._refuse_in_transaction(resource)
        claim = replace(self.claim(resource, lock_id), arbitrated=False)
        try:
            with self._row() as connection:
                token = fence.bump(connection, claim)
        except Error as error:
            if dberrors.is_transient(error):
                return None
            raise LockUnavailable(f"{resource}: the lease table gave no answer: {error}") from error
        return None if token is None else Grant(token)

    def undo_take(self, resource: str, lock_id: str) -> None:
        """Aside: the caller's connection may be waiting for an answer that nobody reads."""
        name = f"outbox-lock-undo-{resource[:32]}"
        in_background(lambda: self._undo(resource, lock_id), name, or_here=False)

    def prove_once(self, handle: LockHandle) -> bool:
        self._refuse_in_transaction(handle.resource)
        with self._row() as connection:
            return fence.touch(connection, handle.ticket, lease=self.lease)

    def drop(self, handle: LockHandle) -> bool:
        with self._row() as connection:
            if self.leave_to_expire:
                return fence.touch(connection, handle.ticket)
            return fence.free(connection, handle.ticket)

    def abandon(self, handle: LockHandle) -> None:
        """Free what was given up before its end; aside, for the caller may be in a transaction."""
        if handle.remaining and not self.leave_to_expire:
            name = f"outbox-lock-free-{handle.token}"
            in_background(lambda: self._free_quietly(handle), name, or_here=False)

    def live(self) -> Iterator[Live]:
        """The registry is the store itself."""
        for row in registry.holders(connections[self.alias]):
            if row.state is LockState.HELD and row.backend == self.label:
                yield Live(self.store_key(row.resource), session_id=row.session_id)

    def idle(self) -> None:
        """Close the connections of the thread that renewed."""
        connections.close_all()

    def _undo(self, resource: str, lock_id: str) -> None:
        with suppress(Error), self._row() as connection:  # else the lease runs out
            found = registry.holder(connection, resource)
            if found is not None and found.lock_id == lock_id:
                fence.free(connection, fence.Ticket(resource, lock_id, found.token))

    def _free_quietly(self, handle: LockHandle) -> None:
        with suppress(Error), self._row() as connection:  # else the lease runs out
            fence.free(connection, handle.ticket)

    @contextmanager
    def _row(self) -> Iterator[BaseDatabaseWrapper]:
        """The caller's connection, with a bounded wait for the row."""
        connection = connections[self.alias]
        try:
            with self._bounded(connection):
                yield connection
        except Error as error:
            # Django would use the dead connection again, and the next try would fail like this one.
            _close_if_dead(connection, error)
            raise

    def _bounded(self, connection: BaseDatabaseWrapper) -> ExitStack:
        """Nothing was asked of the row when a connection that died of idleness turns out so."""
        stack = ExitStack()
        try:
            stack.enter_context(bounded_wait(connection, ROW_WAIT))
        except Error as error:
            if not _close_if_dead(connection, error):
                raise
            stack.enter_context(bounded_wait(connection, ROW_WAIT))
        return stack

    def _refuse_in_transaction(self, resource: str) -> None:
        if transactions.in_transaction(self.alias):
            raise TransactionManagementError(
                f"The lease table cannot lock {resource!r} inside a transaction on "
                f"{self.alias!r}: obtain the lock before the transaction begins."
            )


def _close_if_dead(connection: BaseDatabaseWrapper, error: Error) -> bool:
    dead = dberrors.is_connection_lost(error) and not connection.in_atomic_block
    if dead:
        connection.close()
    return dead
