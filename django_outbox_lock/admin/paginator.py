"""Pages of a table that may have millions of rows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator

if TYPE_CHECKING:
    BasePaginator = Paginator[Any]
else:
    BasePaginator = Paginator

LIMIT = 10_000


class BoundedPaginator(BasePaginator):
    """Counts exactly up to ``LIMIT`` rows and stops there: nobody turns to a later page."""

    @functools.cached_property
    def count(self) -> int:
        """The number of rows, at most ``LIMIT``."""
        return min(self._counted, LIMIT)

    @property
    def more(self) -> bool:
        """Whether there are more rows than were counted."""
        return self._counted > LIMIT

    @functools.cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        counted: int = rows.order_by().values("pk")[: LIMIT + 1].count()
        return counted
