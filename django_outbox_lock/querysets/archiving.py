"""What the archiver reads and deletes.

It walks along the primary key, so that no mark has to pay for an index of its own: rows are
written in the order of their ids, and a row is settled after it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django_outbox_lock.clock import ServerTime
from django_outbox_lock.querysets.dialect import InNumbers
from django_outbox_lock.querysets.page import ByteLength

if TYPE_CHECKING:
    import datetime as dt
    import uuid
    from collections.abc import Sequence

    from django.db.models import QuerySet


class Step(NamedTuple):
    """A row that the walk passes; ``now`` is the server's clock at the reading."""

    id: int
    state: int
    settled_at: int | None
    created_at: dt.datetime
    size: int
    now: int


class LogStep(NamedTuple):
    """An entry of the processing log that the walk passes."""

    id: int
    created_at: dt.datetime
    updated_at: dt.datetime


class WholeRow(NamedTuple):
    """A dispatched message with everything that an archive keeps."""

    id: int
    message_id: uuid.UUID
    topic: str
    key: str | None
    body: bytes | memoryview
    content_type: str
    headers: str
    correlation_id: str
    causation_id: str
    created_at: dt.datetime
    attempts: int
    settled_at: int


def walk(messages: QuerySet[Any], after: int, limit: int) -> list[Step]:
    """The next ``limit`` rows behind the id ``after``, without their bodies."""
    rows = messages.filter(id__gt=after).order_by("id")
    rows = rows.annotate(size=ByteLength("body"), now=ServerTime())
    return [Step(*row) for row in rows.values_list(*Step._fields)[:limit]]


def whole(messages: QuerySet[Any], ids: Sequence[int], state: int) -> list[WholeRow]:
    """Those of ``ids`` that are in ``state``, in the order of writing."""
    rows = messages.filter(InNumbers("id", ids), state=state).order_by("id")
    return [WholeRow(*row) for row in rows.values_list(*WholeRow._fields)]


def delete(messages: QuerySet[Any], ids: Sequence[int], state: int) -> int:
    """Delete those of ``ids`` that are in ``state``; returns how many there were."""
    if not ids:
        return 0
    # Nothing refers to these tables: no cascade to collect, one statement.
    return messages.filter(InNumbers("id", ids), state=state)._raw_delete(messages.db)  # noqa: SLF001


def walk_log(entries: QuerySet[Any], after: int, limit: int) -> list[LogStep]:
    """The next ``limit`` entries of the processing log behind the id ``after``."""
    rows = entries.filter(id__gt=after).order_by("id")
    return [LogStep(*row) for row in rows.values_list(*LogStep._fields)[:limit]]


def delete_log(entries: QuerySet[Any], ids: Sequence[int], before: dt.datetime) -> int:
    """Delete those of ``ids`` that still were last changed before that time."""
    if not ids:
        return 0
    aged = entries.filter(InNumbers("id", ids), updated_at__lt=before)
    return aged._raw_delete(entries.db)  # noqa: SLF001 (nothing refers to the table)
