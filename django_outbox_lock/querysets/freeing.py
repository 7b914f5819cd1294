"""How an operator ends a hold that nothing else ends: its head is dead, or does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db.models import Exists, OuterRef, QuerySet

from django_outbox_lock.querysets.dialect import InNumbers
from django_outbox_lock.querysets.operators import BATCH, OUTSTANDING, repeated

if TYPE_CHECKING:
    from collections.abc import Sequence

# The head of a hold that is to end: its parked rows may come back.
NOBODY = 0


class FreeingVerbs(QuerySet[Any]):
    """The operators' part of the verbs of holds; no lock is held, so each names what it expects."""

    def stuck(self) -> Self:
        """The holds whose head will not be sent: it is dead, or its row is gone."""
        message: Any = apps.get_model("django_outbox_lock", "OutboxMessage")
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
        found = sorted(rows.stuck().order_by().values_list("head_id", "pk"))[:limit]
        return sum(
            rows._free(found[start : start + BATCH])  # noqa: SLF001
            for start in range(0, len(found), BATCH)
        )

    def _free(self, found: Sequence[tuple[int, int]]) -> int:
        heads, ids = zip(*found, strict=True)
        fresh: Any = self.model.objects.using(self.db)
        doomed = fresh.filter(InNumbers("id", ids)).stuck()
        return repeated(self.db, lambda: doomed.let_go(heads))
