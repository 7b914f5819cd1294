"""How an operator ends a hold that nothing else ends: its head is dead, or does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.db.models import Exists, Max, OuterRef, Q, QuerySet

from django_outbox_lock.querysets import siblings
from django_outbox_lock.querysets.dialect import InNumbers
from django_outbox_lock.querysets.operators import batches, repeated
from django_outbox_lock.querysets.states import OUTSTANDING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The head of a hold that is to end: its parked rows may come back.
NOBODY = 0


class FreeingVerbs(QuerySet[Any]):
    """The operators' part of the verbs of holds; no lock is held, so each names what it expects."""

    def stuck(self) -> Self:
        """The holds whose head will not be sent: it is dead, or its row is gone."""
        message = siblings.model("OutboxMessage")
        waiting = message.objects.using(self.db).filter(id=OuterRef("head_id"), state=OUTSTANDING)
        return self.exclude(head_id=NOBODY).filter(~Exists(waiting))

    def let_keys_go(self, *, limit: int | None = None) -> int:
        """Let the messages behind the stuck ones of these holds go on without the head.

        At most ``limit``, those with the oldest heads first, in batches of 1,000 that commit by
        themselves; returns how many. A head that somebody has requeued meanwhile goes on holding.
        """
        rows: Any = self.all()
        rows._for_write = True  # noqa: SLF001 (read where it is written, as Django's own verbs do)
        rows = rows.using(rows.db)
        return sum(rows._free(found) for found in rows._stuck_batches(limit))  # noqa: SLF001

    def _stuck_batches(self, limit: int | None) -> Iterator[list[tuple[int, int]]]:
        """Heads with their holds, the oldest heads first."""
        rows = self.stuck().order_by("head_id", "pk").values_list("head_id", "pk")

        def read(after: Any, until: Any, count: int) -> list[tuple[int, int]]:
            if after is None:
                return list(rows[:count])
            later = Q(head_id__gt=after[0]) | Q(head_id=after[0], pk__gt=after[1])
            return list(rows.filter(later, head_id__lte=until[0])[:count])

        def newest() -> tuple[int, int]:
            return self.aggregate(newest=Max("head_id"))["newest"] or NOBODY, 0

        return batches(read, newest, limit)

    def _free(self, found: Sequence[tuple[int, int]]) -> int:
        heads, ids = zip(*found, strict=True)
        fresh: Any = self.model.objects.using(self.db)
        doomed = fresh.filter(InNumbers("id", ids)).stuck()
        return repeated(self.db, lambda: doomed.let_go(heads))
