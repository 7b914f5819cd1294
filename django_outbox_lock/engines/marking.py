"""Writes the record of a page in one fenced transaction, again if need be."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django_outbox_lock.engines.fenced import Fenced
from django_outbox_lock.models import Hold, OutboxMessage, TopicState
from django_outbox_lock.querysets.dialect import InNumbers
from django_outbox_lock.querysets.messages import DEAD, OUTSTANDING

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.engines.results import Record

logger = logging.getLogger("django_outbox_lock.engines")


class Marker(Fenced):
    """Changes messages as the holder of a lock, or not at all."""

    def write(self, handle: LockHandle, record: Record) -> None:
        """Write the record while the handle holds.

        Also again after a lost session: every statement names the state that it expects, so a
        second time changes nothing. Raises what ``run`` raises.
        """
        self.run(handle, lambda: self._apply(record), after_loss=True)

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
