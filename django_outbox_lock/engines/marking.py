"""Writes the record of a page in one fenced transaction, again if need be."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError, connections

from django_outbox_lock import dberrors, fence
from django_outbox_lock.models import Hold, OutboxMessage, TopicState
from django_outbox_lock.querysets.dialect import InNumbers
from django_outbox_lock.querysets.messages import DEAD, OUTSTANDING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.engines.results import Record

logger = logging.getLogger("django_outbox_lock.engines")

# Seconds before the second, third … attempt at a write that a deadlock or a lost session ended.
PAUSES = (0.05, 0.2, 0.8, 2.0)


class Marker:
    """Changes messages as the holder of a lock, or not at all."""

    def __init__(self, using: str) -> None:
        self._using = using

    def fenced(self, handle: LockHandle) -> AbstractContextManager[None]:
        """A transaction as the holder, which the server ends if this process freezes inside.

        Raises ``LockLost``.
        """
        return fence.held(handle.ticket, using=self._using, idle_limit=handle.backend.lease)

    def write(self, handle: LockHandle, record: Record) -> None:
        """Write the record while the handle holds.

        What a deadlock, a serialization failure or a lost session ended is tried again: every
        statement names the state that it expects, so a second time changes nothing. Raises
        ``LockLost``, or the database's error when it is of another kind or goes on.
        """
        for pause in PAUSES:
            try:
                return self._write_once(handle, record)
            except (DatabaseError, InterfaceError) as error:
                if not self._may_repeat(error):
                    raise
                logger.info("The outcomes of a page are written again after: %s", error)
            handle.ensure_held()
            handle.progress()
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
        return self._write_once(handle, record)

    def _may_repeat(self, error: Exception) -> bool:
        connection = connections[self._using]
        if connection.in_atomic_block:
            return False  # the caller's transaction is over, and only the caller can begin anew
        if dberrors.is_connection_lost(error):
            connection.close()
            return True
        return dberrors.is_transient(error)

    def _write_once(self, handle: LockHandle, record: Record) -> None:
        with self.fenced(handle):
            self._apply(record)

    def _apply(self, record: Record) -> None:
        """Topics, holds, then messages, each in the order of their keys, like everybody."""
        if record.circuits:
            rows = [circuit.row() for circuit in record.circuits]
            TopicState.objects.using(self._using).record(rows)
        holds = Hold.objects.using(self._using)
        if record.holds:
            holds.begin(record.holds)
        if record.heads:
            holds.let_go(record.heads)
        messages = OutboxMessage.objects.using(self._using)
        changed = messages.mark_dispatched(record.sent) if record.sent else 0
        changed += messages.apply(record.changes) if record.changes else 0
        expected = len(record.sent) + len(record.changes)
        if changed != expected:
            logger.info("%s of %s messages were changed meanwhile.", expected - changed, expected)
        if changed != expected or record.has_heads_elsewhere():
            self._take_back_holds(record)

    def _take_back_holds(self, record: Record) -> None:
        """End the new holds behind heads that an operator has settled before they failed."""
        dead = {change.id for change in record.changes if change.state == DEAD}
        heads = {hold.head_id for hold in record.holds} - dead
        messages = OutboxMessage.objects.using(self._using).filter(InNumbers("id", list(heads)))
        waiting = messages.filter(state=OUTSTANDING).values_list("id", flat=True)
        if gone := heads.difference(waiting):
            Hold.objects.using(self._using).let_go(sorted(gone))
