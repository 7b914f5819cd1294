"""The archiver: moves dispatched messages out of the outbox, and prunes what nobody needs."""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from django.db import DatabaseError
from django.db.models import Q

from django_outbox_lock import codec, conf, dberrors, handlers
from django_outbox_lock.backends.archives.base import ArchiveRecord, BaseArchive
from django_outbox_lock.checked import at_least, count
from django_outbox_lock.conf import DEFAULT_ALIAS
from django_outbox_lock.engines.aged import Aged, Batch
from django_outbox_lock.engines.base import Engine
from django_outbox_lock.engines.fenced import Fenced
from django_outbox_lock.engines.notices import Told
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.exceptions import OutboxLockError
from django_outbox_lock.models import Hold, OutboxMessage, ProcessingLog
from django_outbox_lock.outcomes import Sent
from django_outbox_lock.querysets import archiving

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Sequence

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.conf import KeywordSettings, OutboxSettings
    from django_outbox_lock.outcomes import Outcome
    from django_outbox_lock.querysets.archiving import WholeRow

logger = logging.getLogger("django_outbox_lock.engines")

DISPATCHED = OutboxMessage.State.DISPATCHED
DEAD = OutboxMessage.State.DEAD

Age = dt.timedelta | float


class ArchiveFailed(OutboxLockError):
    """The archive raised, or did not say what became of each message; nothing was deleted."""


@dataclass(slots=True)
class Tally:
    """What the archiver has done, or would do."""

    archived: int = 0
    refused: int = 0
    pruned_dead: int = 0
    pruned_log: int = 0

    def __str__(self) -> str:
        return (
            f"{self.archived} archived, {self.refused} refused by the archive, "
            f"{self.pruned_dead} dead letters and {self.pruned_log} log entries pruned"
        )


class Archiver(Engine):
    """Archives what was dispatched ``minimum_age`` ago, in batches, until nothing is left.

    ``dead_minimum_age`` and ``log_minimum_age`` are the retention of dead letters and of the
    processing log; None keeps them. Ages are timedeltas or seconds. A batch is bounded by
    ``batch_size`` messages and ``batch_bytes`` of bodies; ``pause`` seconds pass between two.
    The log's retention must exceed the broker's longest redelivery: what is pruned may be applied
    again. A dead letter that holds back its key is never pruned, and what a foreign key of the
    project refers to stays where it is.
    """

    resource = "Archiver"
    troubles: ClassVar[tuple[type[Exception], ...]] = (*Engine.troubles, ArchiveFailed)

    def __init__(
        self,
        using: str = DEFAULT_ALIAS,
        *,
        minimum_age: Age = dt.timedelta(hours=24),
        dead_minimum_age: Age | None = None,
        log_minimum_age: Age | None = None,
        batch_size: int = 1000,
        batch_bytes: int = 16 * 1024 * 1024,
        pause: float = 0.0,
        interval: float = 60.0,
        stall_after: float = 300.0,
    ) -> None:
        super().__init__(using, interval=interval, linger=0.0, stall_after=stall_after)
        self.pause = at_least("pause", pause, 0.0)
        self.stalls_after("pause", self.pause)
        self.tally = Tally()
        self._fenced = Fenced(using)
        self._told = Told()
        self._archive = _archive(using)
        self._messages = OutboxMessage.objects.using(using)
        self._log = ProcessingLog.objects.using(using)
        self._aged = Aged(
            self._messages,
            self._log,
            dispatched=_age("minimum_age", minimum_age),
            dead=_optional_age("dead_minimum_age", dead_minimum_age),
            log=_optional_age("log_minimum_age", log_minimum_age),
            batch_size=count("batch_size", batch_size),
            batch_bytes=count("batch_bytes", batch_bytes),
        )
        self._tell_of_references()
        self._found: Iterator[Batch] = iter(())
        self._next_batch: Batch | None = None

    @classmethod
    def section(cls, settings: OutboxSettings) -> KeywordSettings:
        return settings.archiver

    def look(self) -> bool:
        self._found = self._aged.batches()
        self._next_batch = next(self._found, None)
        return self._next_batch is not None

    def work(self, handle: LockHandle) -> bool:
        batch = self._next_batch
        if batch is None:
            return False
        self._move(handle, batch.dispatched)
        self._prune(handle, batch)
        if self.pause:
            self._wait(self.pause)
        self._next_batch = next(self._found, None)
        return self._next_batch is not None

    def finish(self) -> None:
        logger.info("%s on %r: %s", self.resource, self.using, self.tally)

    def survey(self) -> Tally:
        """What a drain would do now; changes nothing and needs no lock."""
        tally = Tally()
        for batch in self._aged.batches():
            tally.archived += len(batch.dispatched)
            tally.pruned_dead += len(self._not_holding(batch.dead))
            tally.pruned_log += len(batch.log)
        return tally

    def _tell_of_references(self) -> None:
        for model in (OutboxMessage, ProcessingLog):
            found = archiving.references(model, self.using)
            if names := ", ".join(str(reference.field) for reference in found):
                logger.warning("Rows to which a foreign key refers stay where they are: %s", names)

    def _move(self, handle: LockHandle, ids: Sequence[int]) -> None:
        if not ids:
            return
        if self._archive.in_database:
            stored, refused = self._fenced.run(handle, lambda: self._store_and_delete(ids))
        else:
            stored, refused = self._store(ids)
            self._fenced.run(handle, lambda: self._delete(stored))
        self.tally.archived += len(stored)
        self.tally.refused += refused

    def _store_and_delete(self, ids: Sequence[int]) -> tuple[list[int], int]:
        stored, refused = self._store(ids)
        self._delete(stored)
        return stored, refused

    def _store(self, ids: Sequence[int]) -> tuple[list[int], int]:
        """Archive the rows: the ids of those that are kept now, and how many were refused."""
        rows, damaged = archiving.whole(self._messages, ids, DISPATCHED)
        if new := self._told.new(damaged):
            logger.warning("Messages that cannot be read are not archived; their ids: %s", new)
        records = list(filter(None, map(self._record, rows)))
        stored = [
            record.id
            for record, outcome in zip(records, self._outcomes(records), strict=True)
            if self._is_stored(record, outcome)
        ]
        return stored, len(rows) + len(damaged) - len(stored)

    def _record(self, row: WholeRow) -> ArchiveRecord | None:
        try:
            return _record(row)
        except ValueError as error:
            self._stays(row.id, row.message_id, error)
        return None

    def _is_stored(self, record: ArchiveRecord, outcome: Outcome) -> bool:
        if isinstance(outcome, Sent):
            return True
        self._stays(record.id, record.envelope.message_id, outcome)
        return False

    def _stays(self, id_: int, message_id: uuid.UUID, reason: object) -> None:
        if self._told.new([id_]):
            logger.warning("Message %s was not archived: %s", message_id, reason)

    def _outcomes(self, records: Sequence[ArchiveRecord]) -> Sequence[Outcome]:
        try:
            outcomes = list(self._archive.store(records))
        except Exception as error:
            if self._is_undone(error):
                raise
            raise ArchiveFailed(f"The archive raised {type(error).__name__}: {error}") from error
        if len(outcomes) != len(records):
            raise ArchiveFailed(f"The archive answered for {len(outcomes)} of {len(records)}.")
        return outcomes

    def _is_undone(self, error: Exception) -> bool:
        """Whether the transaction is to be made again: this was no failure of the archive's."""
        known = isinstance(error, DatabaseError) and dberrors.is_transient(error)
        return known and self._archive.in_database

    def _delete(self, ids: Sequence[int]) -> None:
        deleted = archiving.delete(self._messages, ids, DISPATCHED)
        if deleted != len(ids):
            raise ArchiveFailed(f"{len(ids)} messages were archived, but {deleted} were there.")

    def _prune(self, handle: LockHandle, batch: Batch) -> None:
        if not batch.dead and not batch.log:
            return
        dead, log = self._fenced.run(handle, lambda: self._delete_pruned(batch))
        self.tally.pruned_dead += dead
        self.tally.pruned_log += log

    def _delete_pruned(self, batch: Batch) -> tuple[int, int]:
        dead = archiving.delete(self._messages, self._not_holding(batch.dead), DEAD)
        return dead, archiving.delete_log(self._log, batch.log, batch.log_before)

    def _not_holding(self, ids: Sequence[int]) -> list[int]:
        """Those of the dead letters that hold back no key."""
        if not ids:
            return []
        between = (ids[0], ids[-1])
        holds = Hold.objects.using(self.using).filter(
            Q(head_id__range=between) | Q(later_head_id__range=between)
        )
        holding = set(chain.from_iterable(holds.values_list("head_id", "later_head_id")))
        return [number for number in ids if number not in holding]


def _archive(using: str) -> BaseArchive:
    settings = conf.outbox_settings(using).archive
    cls = handlers.load(settings.path, str(settings.backend), BaseArchive)
    return handlers.construct(cls, settings.options, f"{settings.path}['OPTIONS']", using)


def _record(row: WholeRow) -> ArchiveRecord:
    """The row as archives get it. Raises ``ValueError`` for damaged headers."""
    headers = codec.decode_headers(row.headers)
    envelope = Envelope(
        message_id=row.message_id,
        topic=row.topic,
        key=row.key,
        body=bytes(row.body),
        content_type=row.content_type,
        headers=headers,
        correlation_id=row.correlation_id,
        causation_id=row.causation_id,
        created_at=row.created_at,
        attempt=row.attempts,
    )
    return ArchiveRecord(row.id, envelope, row.settled_at, row.attempts)


def _age(name: str, value: Age) -> dt.timedelta:
    if isinstance(value, dt.timedelta):
        at_least(name, value.total_seconds(), 0.0)
        return value
    return dt.timedelta(seconds=at_least(name, value, 0.0))


def _optional_age(name: str, value: Age | None) -> dt.timedelta | None:
    return None if value is None else _age(name, value)
