"""The rows that are due, with what decides whether each of them may go."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import (
    BigIntegerField,
    BinaryField,
    Case,
    F,
    Func,
    IntegerField,
    Min,
    OuterRef,
    Subquery,
    When,
)

from django_outbox_lock.clock import ServerTime
from django_outbox_lock.dberrors import is_undecodable
from django_outbox_lock.querysets.dialect import BelowEach, InNumbers
from django_outbox_lock.querysets.states import OUTSTANDING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django.db.models import QuerySet


# Of one statement: of more, MySQL and MariaDB search no index, for the memory that it would take,
# but compare each row of the table with all of them.
RANGES = 1000


class Once(ServerTime):
    """The server's clock read once for the statement, so that an index can be searched with it."""

    def _plus_offset(self, sql: str) -> tuple[str, tuple[int, ...]]:
        return (f"(SELECT {sql})", ())


class ByteLength(Func):
    """Number of bytes of a binary column."""

    function = "OCTET_LENGTH"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="LENGTH", **context)

    def as_microsoft(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="DATALENGTH", **context)

    def as_oracle(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="DBMS_LOB.GETLENGTH", **context)


class PageRow(NamedTuple):
    """A due message. ``body`` is None when it is longer than what a page carries inline.

    ``earlier`` is the id of the previous outstanding row of the key, ``held_by`` the head of the
    key's hold (0: the hold is about to end), ``now`` the server's clock at the reading.
    """

    id: int
    message_id: uuid.UUID
    topic: str
    key: str | None
    order_key: int | None
    body: bytes | memoryview | None
    size: int
    content_type: str
    headers: str
    correlation_id: str
    causation_id: str
    created_at: dt.datetime
    attempts: int
    expires_at: int | None
    earlier: int | None
    held_by: int | None
    now: int

    def later_head(self, head: int) -> int | None:
        """The head that the key has so far, if that is a later one than ``head``."""
        return self.held_by if self.held_by is not None and self.held_by > head else None


class EarlierOfKey(Subquery):
    """Id of the previous outstanding row of the same key, None for the first one.

    MySQL and MariaDB cannot search an index by a bound that each row brings along; there it is
    nothing, and ``blockers`` tells.
    """

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, tuple[()]]:
        return "NULL", ()

    as_tidb = as_mysql


def earlier_of_key(rows: QuerySet[Any]) -> EarlierOfKey:
    """The annotation ``earlier`` of a page."""
    earlier = rows.filter(
        order_key=OuterRef("order_key"),
        id__lt=OuterRef("id"),
        state=OUTSTANDING,
        due_at__isnull=False,
    )
    return EarlierOfKey(earlier.order_by("-id").values("id")[:1], output_field=BigIntegerField())


def select_page(rows: QuerySet[Any], holds: QuerySet[Any], inline_bytes: int) -> QuerySet[Any]:
    """The due rows, the longest due first, with all that ``PageRow`` needs, without locks.

    A settled row has no due time, unless a hand has changed its state alone: it would be sent again
    for ever, as no mark changes it.
    """
    short = Case(When(size__lte=inline_bytes, then=F("body")), output_field=BinaryField())
    hold = holds.filter(order_key=OuterRef("order_key")).values("head_id")
    due: QuerySet[Any] = (
        rows.filter(due_at__lte=Once(), state=OUTSTANDING)
        .order_by("due_at", "id")
        .annotate(
            size=ByteLength("body"),
            inline=short,
            earlier=earlier_of_key(rows.model.objects.using(rows.db)),
            held_by=Subquery(hold, output_field=BigIntegerField()),
            now=Once(),
        )
    )
    return due


def whole(rows: QuerySet[Any], limit: int) -> list[PageRow]:
    """The rows of a selected page, at most ``limit``."""
    names = ("inline" if name == "body" else name for name in PageRow._fields)
    return list(map(PageRow._make, rows.values_list(*names)[:limit]))


def damaged(row: QuerySet[Any]) -> list[PageRow]:
    """The row of a selected page, if it is still due, without what may be refused when read."""
    names = [name for name in PageRow._fields if name not in _NOTHING]
    return [PageRow(**_NOTHING | _topic(row) | found) for found in row.values(*names)]


def _topic(row: QuerySet[Any]) -> dict[str, str]:
    """It is told to people, if it can be read."""
    try:
        return row.values("topic").first() or {}
    except Exception as error:
        if not is_undecodable(error):
            raise
        return {}


def with_earlier(rows: list[PageRow], all_rows: QuerySet[Any]) -> list[PageRow]:
    """The rows with ``earlier`` filled in, by a statement for each thousand of their keys.

    Where rows of a key outside the page are missing between those in it, the first of them stands
    for all: nothing of the key may go before it.
    """
    last = {row.order_key or 0: row.id for row in sorted(rows) if _is_free(row)}
    if not last:
        return rows
    blockers = blockers_of_keys(rows, all_rows, last)
    before: dict[int, int] = {}
    filled = []
    for row in sorted(rows):
        key = row.order_key
        earlier = None
        if key is not None:
            blocker = blockers.get(key)
            blocked = blocker is not None and blocker < row.id
            earlier = blocker if blocked else before.get(key)
            before[key] = row.id
        filled.append(row._replace(earlier=earlier))
    return filled


def _is_free(row: PageRow) -> bool:
    held = row.held_by is not None and row.id > row.held_by
    return row.order_key is not None and not held


def blockers_of_keys(
    rows: list[PageRow], all_rows: QuerySet[Any], last: Mapping[int, int]
) -> dict[int, int]:
    """By key: its first outstanding row before ``last[key]`` that is not one of ``rows``."""
    found: dict[int, int] = {}
    bounds = list(last.items())
    for start in range(0, len(bounds), RANGES):
        below = dict(bounds[start : start + RANGES])
        known = [row.id for row in rows if row.order_key in below]
        found |= first_blockers(all_rows, below, known)
    return found


def first_blockers(
    rows: QuerySet[Any], below: Mapping[int, int], known: Sequence[int]
) -> dict[int, int]:
    """By key: its first outstanding row before the id ``below[key]`` that is not ``known``."""
    # An expression, not the column: MySQL cuts each of the ranges at each of these numbers, finds
    # that a million ranges are too many to search, and reads the whole table.
    others = rows.filter(BelowEach(below)).exclude(InNumbers(F("id") + 0, known))
    found = others.values("order_key")
    return dict(found.annotate(first=Min("id")).values_list("order_key", "first").order_by())


_NOTHING: dict[str, Any] = {
    "message_id": uuid.UUID(int=0),
    "topic": "",
    "key": None,
    "body": None,
    "content_type": "",
    "headers": "",
    "correlation_id": "",
    "causation_id": "",
    "created_at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
}
