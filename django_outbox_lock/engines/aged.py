"""Finds what is old enough to leave, walking along the primary keys."""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django_outbox_lock.clock import SECOND, to_datetime
from django_outbox_lock.engines.notices import Told
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.querysets import archiving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.models import QuerySet

    from django_outbox_lock.querysets.archiving import LogStep, Step

logger = logging.getLogger("django_outbox_lock.engines")

STEPS = 5000  # rows that one read of the walk passes
# By how much the clock of a host may be ahead of the server's: so much later its rows may leave.
_AHEAD = dt.timedelta(hours=1)
_BEFORE_ALL = dt.datetime.min.replace(tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Batch:
    """Ids that are old enough: to be archived, and to be pruned from the outbox and the log.

    Those of the log were last changed before ``log_before``.
    """

    dispatched: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    log: list[int] = field(default_factory=list)
    log_before: dt.datetime = _BEFORE_ALL

    def __len__(self) -> int:
        return len(self.dispatched) + len(self.dead) + len(self.log)


class Aged:
    """The rows that are at least as old as their kind is kept; None: the kind is kept for ever."""

    def __init__(
        self,
        messages: QuerySet[Any],
        log_entries: QuerySet[Any],
        *,
        dispatched: dt.timedelta,
        dead: dt.timedelta | None,
        log: dt.timedelta | None,
        batch_size: int,
        batch_bytes: int,
    ) -> None:
        self._messages = messages
        self._log_entries = log_entries
        self._ages: dict[int, dt.timedelta | None] = {
            OutboxMessage.State.DISPATCHED: dispatched,
            OutboxMessage.State.DEAD: dead,
        }
        self._log_age = log
        self._batch_size = batch_size
        self._batch_bytes = batch_bytes
        self._told = Told()

    def batches(self) -> Iterator[Batch]:
        """Batches in the order of writing; each read happens when its batch is asked for."""
        yield from self._message_batches()
        yield from self._log_batches()

    def _message_batches(self) -> Iterator[Batch]:
        batch, size = Batch(), 0
        for step in self._message_steps():
            if len(batch) == self._batch_size or (batch and size + step.size > self._batch_bytes):
                yield batch
                batch, size = Batch(), 0
            is_dead = step.state == OutboxMessage.State.DEAD
            (batch.dead if is_dead else batch.dispatched).append(step.id)
            size += step.size
        if batch:
            yield batch

    def _message_steps(self) -> Iterator[Step]:
        kept = [age for age in self._ages.values() if age is not None]
        after, dead = 0, self._ages[OutboxMessage.State.DEAD]
        rows = archiving.but_dead(self._messages, None if dead is None else dead.total_seconds())
        rows = archiving.unreferenced(rows)
        while steps := archiving.walk(rows, after, STEPS):
            yield from filter(self._is_old, steps)
            self._tell_of_damage(steps)
            if _are_young(steps, min(kept)):
                return
            after = steps[-1].id

    def _tell_of_damage(self, steps: Sequence[Step]) -> None:
        damaged = (step.id for step in steps if step.state == archiving.DAMAGED)
        if new := self._told.new(damaged):
            logger.warning("Messages that cannot be read are passed over; their ids: %s", new)

    def _is_old(self, step: Step) -> bool:
        age = self._ages.get(step.state)
        if age is None or step.settled_at is None:
            return False
        return step.settled_at <= step.now - age.total_seconds() * SECOND

    def _log_batches(self) -> Iterator[Batch]:
        ids: list[int] = []
        batch = Batch()
        for id_, before in self._old_entries():
            ids.append(id_)
            batch = Batch(log=ids, log_before=before)
            if len(batch) == self._batch_size:
                yield batch
                ids, batch = [], Batch()
        if batch:
            yield batch

    def _old_entries(self) -> Iterator[tuple[int, dt.datetime]]:
        """Their ids, each with the time before which an entry was to be changed last."""
        if self._log_age is None:
            return
        after, entries = 0, archiving.unreferenced(self._log_entries)
        while steps := archiving.walk_log(entries, after, STEPS):
            before = _server_time(steps) - self._log_age
            yield from ((step.id, before) for step in steps if step.updated_at < before)
            if _are_young(steps, self._log_age):
                return
            after = steps[-1].id


def _server_time(steps: Sequence[Step] | Sequence[LogStep]) -> dt.datetime:
    return to_datetime(max(step.now for step in steps))


def _are_young(steps: Sequence[Step] | Sequence[LogStep], age: dt.timedelta) -> bool:
    """Whether all of a stretch were written too lately: then there is nothing old behind it.

    For a row is settled after it was written. One from the future, of a host whose clock is wrong,
    tells nothing of those behind it.
    """
    now = _server_time(steps)
    return all(now - age < step.created_at <= now + _AHEAD for step in steps)
