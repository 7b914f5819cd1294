"""The contract of an archive: where dispatched messages go when they leave the outbox."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.core.checks import CheckMessage

    from django_outbox_lock.envelope import Envelope
    from django_outbox_lock.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class ArchiveRecord:
    """A dispatched message, whole. ``settled_at`` is in microseconds since 1970 UTC."""

    id: int
    envelope: Envelope
    settled_at: int
    attempts: int


class BaseArchive(abc.ABC):
    """Keeps messages for good; ``alias`` is the database alias of the outbox.

    ``in_database``: the archive is a table beside the outbox. Then ``store`` runs inside the
    fenced transaction that deletes; else it runs outside any transaction and before it.
    """

    in_database: ClassVar[bool] = False

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @abc.abstractmethod
    def store(self, records: Sequence[ArchiveRecord]) -> Sequence[Outcome]:
        """Keep the records durably and answer for each, in the order given.

        ``Sent`` means that the record can be read back; only such ones are deleted. Storing a
        record that is there already is no error. An exception means that nothing may be deleted.
        """

    def check(self) -> list[CheckMessage]:
        """System checks of this archive that need no connection."""
        return []
