"""Every archive keeps the contract that is shipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_outbox_lock import codec
from django_outbox_lock.backends.archives.base import ArchiveRecord, BaseArchive
from django_outbox_lock.backends.archives.table import TableArchive
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.models import ArchivedMessage
from django_outbox_lock.outcomes import Outcome, Sent
from django_outbox_lock.testing import ArchiveContract

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from pytest_django import Settings


@pytest.mark.django_db
class TestTable(ArchiveContract):
    @pytest.fixture
    def archive(self) -> BaseArchive:
        return TableArchive("default")

    def archived(self, message_id: uuid.UUID) -> ArchiveRecord:
        row = ArchivedMessage.objects.get(message_id=message_id)
        envelope = Envelope(
            message_id=row.message_id,
            topic=row.topic,
            key=row.key,
            body=bytes(row.body),
            content_type=row.content_type,
            headers=codec.decode_headers(row.headers),
            correlation_id=row.correlation_id,
            causation_id=row.causation_id,
            created_at=row.created_at,
            attempt=row.attempts,
        )
        return ArchiveRecord(row.id, envelope, row.settled_at, row.attempts)


class TestTableWithoutTimeZones(TestTable):
    """What a project with USE_TZ=False has in its rows is naive."""

    @pytest.fixture(autouse=True)
    def no_time_zones(self, settings: Settings) -> None:
        settings.USE_TZ = False


class Forgetful(BaseArchive):
    """Says that it keeps everything, and keeps nothing."""

    def store(self, records: Sequence[ArchiveRecord]) -> Sequence[Outcome]:
        return [Sent() for _ in records]


class OfTheForgetful(ArchiveContract):
    """Not collected: its tests are called below."""

    def archived(self, message_id: uuid.UUID) -> ArchiveRecord:
        raise LookupError(message_id)


@pytest.mark.parametrize(
    "name", [n for n in dir(ArchiveContract) if n.startswith("test_") and "nothing_is" not in n]
)
def test_an_archive_that_only_says_yes_is_found_out(name: str) -> None:
    with pytest.raises((AssertionError, LookupError)):
        getattr(OfTheForgetful(), name)(Forgetful("default"))
