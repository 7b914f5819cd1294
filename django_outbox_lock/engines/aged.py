"""Finds what is old enough to leave, walking along the primary keys."""

from __future__ import annotations

import datetime as dt
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from django_outbox_lock.clock import SECOND
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.querysets import archiving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.models import QuerySet

    from django_outbox_lock.querysets.archiving import LogStep, Step

logger = logging.getLogger("django_outbox_lock.engines")

STEPS = 5000  # rows that one read of the walk passes
_FAR_PAST = dt.timedelta(days=36500)


@dataclass(frozen=True, slots=True)
class Batch:
    """Ids that are old enough: to be archived, and to be pruned from the outbox and the log."""

    dispatched: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    log: list[int] = field(default_factory=list)

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

    def batches(self) -> Iterator[Batch]:
        """Batches in the order of writing; each read happens when its batch is asked for."""
        yield from self._message_batches()
        yield from self._log_batches()

    def log_before(self) -> dt.datetime:
        """Log entries last changed before this time are old enough."""
        return timezone.now() - (_FAR_PAST if self._log_age is None else self._log_age)

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
        after, youngest = 0, timezone.now() - min(kept)
        dead = self._ages[OutboxMessage.State.DEAD]
        rows = archiving.but_dead(self._messages, None if dead is None else dead.total_seconds())
        while steps := archiving.walk(rows, after, STEPS):
            yield from filter(self._is_old, steps)
            _tell_of_damage(steps)
            # A row is settled after it was written: behind a stretch of rows that were all written
            # too lately there are none that were settled earlier.
            if all(step.created_at > youngest for step in steps):
                return
            after = steps[-1].id

    def _is_old(self, step: Step) -> bool:
        age = self._ages.get(step.state)
        if age is None or step.settled_at is None:
            return False
        return step.settled_at <= step.now - age.total_seconds() * SECOND

    def _log_batches(self) -> Iterator[Batch]:
        waiting: deque[int] = deque()
        for step in self._log_steps():
            waiting.append(step.id)
            if len(waiting) == self._batch_size:
                yield Batch(log=list(waiting))
                waiting.clear()
        if waiting:
            yield Batch(log=list(waiting))

    def _log_steps(self) -> Iterator[LogStep]:
        if self._log_age is None:
            return
        after, before = 0, self.log_before()
        while steps := archiving.walk_log(self._log_entries, after, STEPS):
            yield from (step for step in steps if step.updated_at < before)
            if all(step.created_at > before for step in steps):
                return
            after = steps[-1].id


def _tell_of_damage(steps: Sequence[Step]) -> None:
    if damaged := [step.id for step in steps if step.state == archiving.DAMAGED]:
        logger.warning("Messages that cannot be read are passed over; their ids: %s", damaged)
