"""Archive into the table ``ArchivedMessage`` of the same database."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django_outbox_lock import codec, keys
from django_outbox_lock.backends.archives.base import ArchiveRecord, BaseArchive
from django_outbox_lock.handlers import publish_options
from django_outbox_lock.models import ArchivedMessage
from django_outbox_lock.outcomes import Outcome, Rejected, Sent
from django_outbox_lock.querysets import writing

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

_COLUMNS = [field.name for field in ArchivedMessage._meta.concrete_fields if not field.primary_key]
_ROWS_PER_STATEMENT = 1000


class TableArchive(BaseArchive):
    """Moves a message within the database, in one transaction: it is always in one place."""

    in_database: ClassVar[bool] = True

    def store(self, records: Sequence[ArchiveRecord]) -> Sequence[Outcome]:
        known = self._bodies(records)
        new = [_row(r) for r in records if r.envelope.message_id not in known]
        if new:
            writing.insert(
                new,
                _COLUMNS,
                self.alias,
                batch_size=_ROWS_PER_STATEMENT,
                # What the server takes of a publisher's messages, it takes of them here.
                batch_bytes=publish_options(self.alias).max_bytes,
            )
        return [_answer(record, known) for record in records]

    def _bodies(self, records: Sequence[ArchiveRecord]) -> dict[uuid.UUID, bytes]:
        """What is archived already: a message that was restored and dispatched again."""
        ids = [record.envelope.message_id for record in records]
        rows = ArchivedMessage.objects.using(self.alias)
        return {
            message_id: bytes(body)
            for start in range(0, len(ids), _ROWS_PER_STATEMENT)
            for message_id, body in rows.filter(
                message_id__in=ids[start : start + _ROWS_PER_STATEMENT]
            ).values_list("message_id", "body")
        }


def _answer(record: ArchiveRecord, known: dict[uuid.UUID, bytes]) -> Outcome:
    envelope = record.envelope
    if known.get(envelope.message_id, envelope.body) != envelope.body:
        return Rejected("another message with this id is in the archive")
    return Sent()


def _row(record: ArchiveRecord) -> ArchivedMessage:
    envelope = record.envelope
    order = None if envelope.key is None else keys.order_key(envelope.topic, envelope.key)
    return ArchivedMessage(
        message_id=envelope.message_id,
        topic=envelope.topic,
        key=envelope.key,
        order_key=order,
        slot=keys.slot(order, envelope.message_id),
        body=envelope.body,
        content_type=envelope.content_type,
        headers=codec.encode_headers(envelope.headers),
        correlation_id=envelope.correlation_id,
        causation_id=envelope.causation_id,
        created_at=envelope.created_at,
        settled_at=record.settled_at,
        attempts=record.attempts,
    )
