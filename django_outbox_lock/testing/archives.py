"""What every archive has to do, as a test class to be subclassed (pytest)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

from django_outbox_lock.backends.archives.base import ArchiveRecord
from django_outbox_lock.clock import to_datetime, to_microseconds
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.ids import uuid7
from django_outbox_lock.outcomes import Rejected, Sent

if TYPE_CHECKING:
    import uuid

    from django_outbox_lock.backends.archives.base import BaseArchive

BODIES = (b"", b"a\0b\0", bytes(range(256)), "Grüße, 世界 🐘".encode(), b"x" * 1_000_000)
HEADERS = {"traceparent": "00-0af7", "Grüße": "世界 🐘", "empty": "", "long": "é" * 2000}
_CREATED_AT = to_microseconds(dt.datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=dt.UTC))


class ArchiveContract:
    """Subclass it, give a fixture ``archive`` and the hook below, and pytest does the rest.

    Mark the subclass with ``pytest.mark.django_db`` if the archive uses the database.
    """

    def archived(self, message_id: uuid.UUID) -> ArchiveRecord:
        """What the archive has of this message, read past it; its ``id`` is not compared."""
        raise NotImplementedError

    def test_what_is_kept_is_whole(self, archive: BaseArchive) -> None:
        records = [a_record(body=body) for body in BODIES]
        assert _all_sent(archive, records)
        for record in records:
            self._compare(record)

    def test_key_and_causation_may_be_missing(self, archive: BaseArchive) -> None:
        record = a_record(key=None, causation_id="", headers={})
        assert _all_sent(archive, [record])
        self._compare(record)

    def test_it_answers_for_each_in_the_order_given(self, archive: BaseArchive) -> None:
        first, changed, last = a_record(), a_record(), a_record()
        assert _all_sent(archive, [changed])
        body = dataclasses.replace(changed.envelope, body=b"another")
        outcomes = archive.store([first, dataclasses.replace(changed, envelope=body), last])
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [Sent, Rejected, Sent]
        for record in (first, changed, last):
            self._compare(record)

    def test_storing_again_changes_nothing(self, archive: BaseArchive) -> None:
        """A crash between storing and deleting brings the same record again."""
        old, new = a_record(), a_record()
        assert _all_sent(archive, [old])
        assert _all_sent(archive, [old, new])
        self._compare(old)
        self._compare(new)

    def test_nothing_is_nothing(self, archive: BaseArchive) -> None:
        assert list(archive.store([])) == []

    def test_a_thousand(self, archive: BaseArchive) -> None:
        records = [a_record() for _ in range(1000)]
        assert _all_sent(archive, records)
        self._compare(records[0])
        self._compare(records[-1])

    def _compare(self, record: ArchiveRecord) -> None:
        kept = self.archived(record.envelope.message_id)
        assert dataclasses.replace(kept, id=record.id) == record


def a_record(
    *,
    body: bytes = b'{"number": 1}',
    key: str | None = "Kunde-1",
    causation_id: str = "the-cause",
    headers: dict[str, str] | None = None,
) -> ArchiveRecord:
    """A dispatched message, as the archiver gives it; each with an id of its own."""
    message_id = uuid7()
    envelope = Envelope(
        message_id=message_id,
        topic="order.created",
        key=key,
        body=body,
        content_type="application/json",
        headers=HEADERS if headers is None else headers,
        correlation_id=str(message_id),
        causation_id=causation_id,
        created_at=to_datetime(_CREATED_AT),
        attempt=3,
    )
    number = message_id.int % 2**53
    return ArchiveRecord(number, envelope, settled_at=1_770_000_000_123_456, attempts=3)


def _all_sent(archive: BaseArchive, records: list[ArchiveRecord]) -> bool:
    outcomes = list(archive.store(records))
    return len(outcomes) == len(records) and all(isinstance(o, Sent) for o in outcomes)
