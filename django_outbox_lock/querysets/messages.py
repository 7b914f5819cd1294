"""State changes of messages. Each names the state that it expects, so that none undoes another."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from django.db import connections
from django.db.models import F

from django_outbox_lock.clock import ServerTime
from django_outbox_lock.querysets import page, siblings
from django_outbox_lock.querysets.dialect import InNumbers, has_correlated_ranges, update_each
from django_outbox_lock.querysets.operators import OperatorVerbs
from django_outbox_lock.querysets.parking import BEHIND_TOPIC, PARKED, behind_topic
from django_outbox_lock.querysets.states import DEAD, DISPATCHED, OUTSTANDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_outbox_lock.querysets.page import PageRow

__all__ = ["DEAD", "DISPATCHED", "OUTSTANDING", "Change", "MessageQuerySet"]

# All the errors of one page together, in characters, of which each may take 7 bytes (escaped for
# JSON and for SQL): below every server's longest statement.
ERRORS_OF_A_PAGE = 2_000_000

_COLUMNS = {
    "id": "number",
    "attempts_read": "number",
    "state": "number",
    "attempts": "number",
    "due_at": "number",
    "due_in": "number",
    "error": "text",
    "dead_reason": "text",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one message that was not sent.

    ``attempts_read`` is the number of attempts that was read, ``attempts`` the new one.
    ``due_at`` is a parked time, ``due_in`` microseconds from the server's now; neither: the
    message is settled. ``error`` None leaves the last error as it is.
    """

    id: int
    attempts_read: int
    state: int
    attempts: int
    due_at: int | None = None
    due_in: int | None = None
    error: str | None = None
    dead_reason: str = ""


class MessageQuerySet(OperatorVerbs):
    """Verbs of the outbox."""

    def page(self, limit: int, inline_bytes: int, *, damaged: bool = False) -> list[PageRow]:
        """The rows that are due now, at most ``limit``, the longest due first.

        ``damaged``: of a single row, without the columns that may be impossible to read.
        """
        hold = siblings.model("Hold")
        selected = page.select_page(self, hold.objects.using(self.db), inline_bytes)
        rows = page.damaged(selected) if damaged else page.whole(selected, limit)
        if has_correlated_ranges(connections[self.db]):
            return rows
        return page.with_earlier(rows, self.model.objects.using(self.db))

    def due_ids(self, limit: int) -> list[int]:
        """The ids of the rows of a page."""
        due = self.filter(due_at__lte=page.Once(), state=OUTSTANDING).order_by("due_at", "id")
        return list(due.values_list("id", flat=True)[:limit])

    def bodies(self, ids: Sequence[int]) -> dict[int, bytes]:
        """The bodies of a few long messages by id."""
        found = self.filter(InNumbers("id", ids)).values_list("id", "body")
        return {key: bytes(body) for key, body in found}

    def writable(self) -> None:
        """Change no row, and raise ``DatabaseError`` where changing one would be refused."""
        self.filter(id=-1).update(attempts=F("attempts"))

    def mark_dispatched(self, ids: Sequence[int]) -> int:
        """Settle those of ``ids`` that are outstanding as sent; returns how many there were."""
        return self.filter(InNumbers("id", ids), state=OUTSTANDING).update(
            state=DISPATCHED, due_at=None, settled_at=ServerTime(), attempts=F("attempts") + 1
        )

    def apply(self, changes: Sequence[Change]) -> int:
        """Apply each change to its row if that is outstanding with the attempts that were read."""
        connection, table = connections[self.db], self.model._meta.db_table
        now, t = ServerTime.sql(connection), connection.ops.quote_name(table)
        limit = min(2000, max(100, ERRORS_OF_A_PAGE // len(changes)))
        rows = [asdict(change) for change in sorted(changes, key=lambda change: change.id)]
        for row in rows:
            row["error"] = row["error"] and row["error"][:limit]
        return update_each(
            connection,
            table,
            columns=_COLUMNS,
            assign={
                "state": "v.state",
                "attempts": "v.attempts",
                "due_at": f"CASE WHEN v.due_in IS NULL THEN v.due_at ELSE {now} + v.due_in END",
                "settled_at": f"CASE WHEN v.state = {DEAD} THEN {now} END",
                "last_error": f"COALESCE(v.error, {t}.last_error)",
                "dead_reason": "v.dead_reason",
            },
            where=f"{t}.state = {OUTSTANDING} AND {t}.attempts = v.attempts_read",
            rows=rows,
        )

    # Parked rows

    def parked_behind(self, topic: str) -> Self:
        """The rows that wait for the topic, in the order of writing."""
        # The text is compared by the caller, too: collations take different texts for one.
        return self.filter(due_at=behind_topic(topic), topic=topic).order_by("id")

    def parked_behind_keys(self, order_keys: Sequence[int]) -> Self:
        """The rows that wait for an earlier message of one of the keys, key by key."""
        return self.filter(
            InNumbers("order_key", order_keys), due_at__gte=PARKED, due_at__lt=BEHIND_TOPIC
        ).order_by("order_key", "id")

    def is_first_of_key(self, message_id: int, order_key: int | None) -> bool:
        """Whether no earlier message of the key is outstanding."""
        earlier = self.filter(order_key=order_key, id__lt=message_id, state=OUTSTANDING)
        return order_key is None or not earlier.filter(due_at__isnull=False).exists()

    def come_back(self, ids: Sequence[int]) -> int:
        """Make parked rows due now."""
        parked = self.filter(InNumbers("id", ids), state=OUTSTANDING, due_at__gte=PARKED)
        return parked.update(due_at=ServerTime())
