"""What the demonstration sees while it runs, and its verdict at the end."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.db import connections
from django.db.models import Count

from testproject.demo.processes import FOLDER, INTERVAL, LEASE, PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable

RESOURCE = "OutboxSweeper"


@dataclass
class Tenure:
    """One holder, as the registry showed it."""

    pid: int
    token: int
    seen_at: float


@dataclass
class Observed:
    """The holders in the order in which they were seen, and the kill."""

    tenures: list[Tenure] = field(default_factory=list)
    killed: Tenure | None = None
    killed_at: float = 0.0

    def look(self) -> Tenure | None:
        """The present holder of the sweeper's lock; a new one is noted."""
        from django_outbox_lock.holder import LockState
        from django_outbox_lock.registry import holder

        row = holder(connections["default"], RESOURCE)
        if row is None or row.pid is None:
            return None
        if not self.tenures or self.tenures[-1].token != row.token:
            self.tenures.append(Tenure(row.pid, row.token, time.monotonic()))
        return self.tenures[-1] if row.state is LockState.HELD else None

    def gap(self) -> float:
        """Seconds from the kill until another process held the lock."""
        after = [t.seen_at for t in self.tenures if t.seen_at > self.killed_at]
        return after[0] - self.killed_at if self.killed and after else float("inf")

    def tokens_grow(self) -> bool:
        tokens = [tenure.token for tenure in self.tenures]
        return all(low < high for low, high in itertools.pairwise(tokens))


def delivered() -> int:
    """Messages that have arrived at the consumer at least once."""
    from testproject.billing.models import Delivery

    return Delivery.objects.using("other").values("message_id").distinct().count()


def verdict(observed: Observed) -> list[tuple[str, object, str, bool]]:
    """A row for each promise: what it is about, what was seen, what was promised, kept or not."""
    from django_outbox_lock.models import ArchivedMessage, OutboxMessage
    from testproject.billing.models import Delivery, Invoice
    from testproject.shop.models import Order

    orders = set(Order.objects.values_list("number", flat=True))
    invoiced = list(Invoice.objects.using("other").values_list("order", flat=True))
    rolled_back = set((FOLDER / "rolled-back.txt").read_text(encoding="utf-8").split())
    arrived = _ids(Delivery.objects.using("other").values_list("message_id", flat=True))
    again = Delivery.objects.using("other").values("message_id").annotate(times=Count("id"))
    twice = again.filter(times__gt=1).count()
    kills = 1 if observed.killed else 0
    left = OutboxMessage.objects.count()
    bound = LEASE + INTERVAL + 1
    gap = observed.gap()
    return [
        ("orders written with a message", len(orders), ">= 2000", len(orders) >= 2000),
        ("messages rolled back", len(rolled_back), "> 0", bool(rolled_back)),
        ("lost", len(orders - set(invoiced)), "0", orders <= set(invoiced)),
        ("applied twice", len(invoiced) - len(set(invoiced)), "0", len(invoiced) == len(orders)),
        ("rolled back but sent", len(rolled_back & arrived), "0", not rolled_back & arrived),
        ("holders killed", kills, "1", kills == 1),
        ("sent twice", twice, f"<= {PAGE} a kill", twice <= PAGE * kills),
        ("seconds without a sweeper", f"{gap:.1f}", f"<= {bound}", gap <= bound),
        ("holders seen", len(observed.tenures), ">= 2", len(observed.tenures) >= 2),
        (
            "tokens",
            "growing" if observed.tokens_grow() else "NOT growing",
            "growing",
            observed.tokens_grow(),
        ),
        ("left in the outbox", left, "0", left == 0),
        (
            "archived",
            ArchivedMessage.objects.count(),
            f"{len(orders)}",
            ArchivedMessage.objects.count() == len(orders),
        ),
    ]


def _ids(values: Iterable[str]) -> set[str]:
    return set(values)


def table(rows: list[tuple[str, object, str, bool]]) -> str:
    """The verdict as text."""
    lines = [f"{'':32}{'seen':>10}   {'promised':<16}"]
    lines += [
        f"{what:32}{seen!s:>10}   {promised:<16}{'kept' if kept else 'BROKEN'}"
        for what, seen, promised, kept in rows
    ]
    return "\n".join(lines)
