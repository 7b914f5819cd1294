"""Bounds for conditions that no index serves: only the newest rows are looked through.

Without a bound, a filter that matches nothing reads the whole table: measured on 2 million rows,
0.5 s on PostgreSQL and 5 s on MariaDB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

SIZE = 20_000
BEFORE_VAR = "before"


@dataclass(frozen=True, slots=True)
class Window:
    """Ids above ``floor`` and below ``before``; None is no bound."""

    floor: int | None
    before: int | None

    @property
    def older(self) -> int | None:
        """The ``before`` of the next window; None when nothing is left below this one."""
        return None if self.floor is None else self.floor + 1


def narrowed(request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
    """The newest ``SIZE`` of ``rows``, or those before the id that the request names.

    Later conditions of the same request share the window of the first one.
    """
    window = recall(request) or _remember(request, _window(request, rows))
    if window.before is not None:
        rows = rows.filter(pk__lt=window.before)
    return rows if window.floor is None else rows.filter(pk__gt=window.floor)


def recall(request: HttpRequest) -> Window | None:
    """The window of this request, if any condition needed one."""
    return getattr(request, "outbox_window", None)


def _window(request: HttpRequest, rows: QuerySet[Any]) -> Window:
    before = number(request.GET.get(BEFORE_VAR))
    if before is not None:
        rows = rows.filter(pk__lt=before)
    outside = rows.order_by("-pk").values_list("pk", flat=True)[SIZE : SIZE + 1].first()
    return Window(outside, before)


def _remember(request: HttpRequest, window: Window) -> Window:
    marked: Any = request
    marked.outbox_window = window
    return window


def number(text: str | None) -> int | None:
    """An id or token that a request names; None for what is none, or too large for a column."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None
