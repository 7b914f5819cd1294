"""How an outbox stands, for operators and probes: counted through the indexes, up to a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Count, Min, Q

from django_outbox_lock.clock import SECOND, ServerTime, to_microseconds
from django_outbox_lock.querysets.dialect import InNumbers
from django_outbox_lock.querysets.page import Once
from django_outbox_lock.querysets.parking import BEHIND_TOPIC, PARKED

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

# Rows of a kind that are counted; of more the number does not matter.
LIMIT = 10_000

_OUTSTANDING = {
    "due": Q(due_at__lte=Once()),
    "waiting": Q(due_at__gt=Once(), due_at__lt=PARKED),
    "behind_keys": Q(due_at__gte=PARKED, due_at__lt=BEHIND_TOPIC),
    "behind_topics": Q(due_at__gte=BEHIND_TOPIC),
}


class Standing(NamedTuple):
    """How many there are of each kind, at most ``LIMIT`` each; ``capped`` are those with more.

    ``oldest`` is when the oldest outstanding message was written, ``age`` how long ago by the
    server's clock, in seconds; both are None when there is none. Of a kind that is capped only the
    ``LIMIT`` that are longest due were looked at: then the oldest is at least so old.
    """

    counts: dict[str, int]
    capped: frozenset[str]
    oldest: dt.datetime | None
    age: float | None


def standing(messages: Any) -> Standing:
    """Count the outstanding and dead ones of ``messages``; never reads a dispatched row."""
    counted = {
        kind: _count(messages.filter(condition).order_by("due_at", "id"))
        for kind, condition in _OUTSTANDING.items()
    }
    first = [first for _, first in counted.values() if first is not None]
    counted["dead"] = _count(messages.dead().order_by("dead_reason", "id"))
    oldest, age = _oldest(messages, first)
    return Standing(
        counts={kind: min(number, LIMIT) for kind, (number, _) in counted.items()},
        capped=frozenset(kind for kind, (number, _) in counted.items() if number > LIMIT),
        oldest=oldest,
        age=age,
    )


def _count(rows: Any) -> tuple[int, int | None]:
    """Their number, up to one more than the limit, and the smallest id among those."""
    found = rows.values("pk")[: LIMIT + 1].aggregate(number=Count("pk"), first=Min("pk"))
    return found["number"], found["first"]


def _oldest(messages: Any, ids: Iterable[int]) -> tuple[dt.datetime | None, float | None]:
    rows = messages.filter(InNumbers("id", list(ids))).values_list("created_at", ServerTime())
    found = min(rows, default=None)
    if found is None:
        return None, None
    created_at, now = found
    return created_at, max(0.0, (now - to_microseconds(created_at)) / SECOND)
