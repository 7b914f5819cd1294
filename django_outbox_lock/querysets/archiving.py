"""What the archiver reads and deletes.

It walks along the primary key, so that no mark has to pay for an index of its own: rows are
written in the order of their ids, and a row is settled after it was written.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.db import connections
from django.db.models import Exists, OuterRef, Q

from django_outbox_lock.clock import SECOND, ServerTime, to_datetime, to_microseconds
from django_outbox_lock.dberrors import is_undecodable
from django_outbox_lock.querysets.dialect import InNumbers
from django_outbox_lock.querysets.page import ByteLength
from django_outbox_lock.querysets.states import DEAD

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Sequence

    from django.db.models import Model, QuerySet

T = TypeVar("T")

DAMAGED = 0
_NEVER = to_microseconds(dt.datetime(9998, 1, 1, tzinfo=dt.UTC))


class Step(NamedTuple):
    """A row that the walk passes; ``now`` is the server's clock at the reading.

    One that cannot be read has the state ``DAMAGED``, which is no row's.
    """

    id: int
    state: int
    settled_at: int | None
    created_at: dt.datetime
    size: int
    now: int


class LogStep(NamedTuple):
    """An entry of the processing log that the walk passes; ``now`` is the server's clock."""

    id: int
    created_at: dt.datetime
    updated_at: dt.datetime
    now: int


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


Row = TypeVar("Row", Step, LogStep, WholeRow)


def but_dead(messages: QuerySet[Any], age: float | None) -> QuerySet[Any]:
    """Without the dead that are younger than ``age`` seconds, or without all of them.

    The server passes them over: reading a million that are kept took 8 s at each look.
    """
    kept = Q(state=DEAD)
    if age is not None:
        kept &= Q(settled_at__gt=ServerTime(-int(age * SECOND)))
    return messages.exclude(kept)


def references(model: type[Model], using: str) -> list[Any]:
    """The foreign keys of other models to this one that the database ``using`` defends."""
    relations: Any = model._meta.get_fields(include_hidden=True)
    found = [
        relation
        for relation in relations
        if relation.auto_created
        and (relation.one_to_many or relation.one_to_one)
        and relation.field.db_constraint
    ]
    if not found:
        return []
    # A project with several databases need not have all its tables in each.
    there = connections[using].introspection.table_names()
    return [relation for relation in found if relation.related_model._meta.db_table in there]


def unreferenced(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Without those to which rows of other tables refer: one of them would keep its whole batch."""
    for reference in references(rows.model, rows.db):
        field = reference.field
        theirs = reference.related_model._base_manager.using(rows.db)  # noqa: SLF001 (all of them)
        rows = rows.exclude(
            Exists(theirs.filter(**{field.name: OuterRef(field.target_field.attname)}))
        )
    return rows


def walk(messages: QuerySet[Any], after: int, limit: int) -> list[Step]:
    """The next ``limit`` rows behind the id ``after``, without their bodies."""
    told = messages.annotate(size=ByteLength("body"), now=ServerTime())
    found, damaged = _passed(told, Step, after, limit)
    return sorted(found + [Step(id_, DAMAGED, None, to_datetime(0), 0, 0) for id_ in damaged])


def _passed(
    told: QuerySet[Any], kind: type[Row], after: int, limit: int
) -> tuple[list[Row], list[int]]:
    """The next rows as ``kind``, and the ids of those that cannot be read."""
    rows = told.filter(id__gt=after).order_by("id")
    values = rows.values_list(*kind._fields)
    try:
        return [_made(kind, row) for row in values[:limit]], []
    except Exception as error:
        if not is_undecodable(error):
            raise
        ids = list(rows.values_list("id", flat=True)[:limit])
    return salvaged(
        ids, lambda some: [_made(kind, row) for row in values.filter(InNumbers("id", some))]
    )


def whole(
    messages: QuerySet[Any], ids: Sequence[int], state: int
) -> tuple[list[WholeRow], list[int]]:
    """Those of ``ids`` that are in ``state``, in the order of writing; and the damaged ones."""
    rows = messages.filter(state=state).order_by("id").values_list(*WholeRow._fields)
    return salvaged(
        ids, lambda some: [_made(WholeRow, row) for row in rows.filter(InNumbers("id", some))]
    )


def _made(kind: type[Row], row: Sequence[Any]) -> Row:
    made = kind(*row)
    if None in {made.created_at, getattr(made, "updated_at", made.created_at)}:
        raise ValueError("a time cannot be read")  # what is no time at all becomes None
    return made


def salvaged(
    ids: Sequence[int], read: Callable[[Sequence[int]], list[T]]
) -> tuple[list[T], list[int]]:
    """What ``read`` gives of the ids, and those of them over which it fails, by halving."""
    try:
        return read(ids), []
    except Exception as error:
        if not is_undecodable(error):
            raise
        if len(ids) == 1:
            return [], list(ids)
    half = len(ids) // 2
    found, damaged = salvaged(ids[:half], read)
    more, as_well = salvaged(ids[half:], read)
    return found + more, damaged + as_well


def delete(messages: QuerySet[Any], ids: Sequence[int], state: int) -> int:
    """Delete those of ``ids`` that are in ``state``; returns how many there were."""
    if not ids:
        return 0
    # Nothing refers to these rows: no cascade to collect, one statement.
    return messages.filter(InNumbers("id", ids), state=state)._raw_delete(messages.db)  # noqa: SLF001


def walk_log(entries: QuerySet[Any], after: int, limit: int) -> list[LogStep]:
    """The next ``limit`` entries of the processing log behind the id ``after``.

    One that cannot be read has been written in the far future: it is kept.
    """
    found, damaged = _passed(entries.annotate(now=ServerTime()), LogStep, after, limit)
    never = to_datetime(_NEVER)
    return sorted(found + [LogStep(id_, never, never, 0) for id_ in damaged])


def delete_log(entries: QuerySet[Any], ids: Sequence[int], before: dt.datetime) -> int:
    """Delete those of ``ids`` that still were last changed before that time."""
    if not ids:
        return 0
    aged = entries.filter(InNumbers("id", ids), updated_at__lt=before)
    return aged._raw_delete(entries.db)  # noqa: SLF001 (nothing refers to these rows)
