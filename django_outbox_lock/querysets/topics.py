"""State changes of holds and topics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from django.db import connections, models
from django.db.models import F, OuterRef, Q, Subquery
from django.utils import timezone

from django_outbox_lock.clock import ServerTime
from django_outbox_lock.querysets import siblings
from django_outbox_lock.querysets.dialect import InNumbers, upsert_each
from django_outbox_lock.querysets.freeing import NOBODY, FreeingVerbs
from django_outbox_lock.querysets.states import DEAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Of the 200 UTF-16 code units that the column has everywhere.
REASON = 100


@dataclass(frozen=True, slots=True)
class NewHold:
    """A key and the message behind which the later ones wait.

    ``later_head_id`` is the head that the key has so far, if that is a later one: a dead one holds
    again when this one is gone.
    """

    order_key: int
    head_id: int
    reason: str
    later_head_id: int | None = None


class HoldQuerySet(FreeingVerbs):
    """Verbs of holds."""

    def begin(self, holds: Sequence[NewHold]) -> None:
        """Put each key on hold behind its head; a hold that is there gets the new head."""
        connection = connections[self.db]
        message = siblings.model("OutboxMessage")
        messages = connection.ops.quote_name(message._meta.db_table)
        since = self.model._meta.get_field("since").get_db_prep_value(timezone.now(), connection)
        upsert_each(
            connection,
            self.model._meta.db_table,
            unique="order_key",
            columns={
                "order_key": "number",
                "head_id": "number",
                "later_head_id": "number",
                "reason": "text",
            },
            insert={
                "order_key": "v.order_key",
                "head_id": "v.head_id",
                "later_head_id": f"(SELECT id FROM {messages} WHERE id = v.later_head_id "  # noqa: S608
                f"AND state = {DEAD})",
                "reason": "v.reason",
                "since": "%s",
            },
            update=["head_id", "reason"],
            keep=["later_head_id"],
            rows=[
                {**asdict(hold), "reason": hold.reason[:REASON]}
                for hold in sorted(holds, key=lambda hold: hold.order_key)
            ],
            params=[since],
        )

    def let_go(self, heads: Sequence[int]) -> int:
        """Let the holds behind these heads end: their parked rows come back page by page."""
        return self.filter(InNumbers("head_id", heads)).update(head_id=NOBODY)

    def ending(self, limit: int) -> dict[int, int | None]:
        """The keys whose parked rows may come back, with the dead head up to which they may."""
        message = siblings.model("OutboxMessage")
        dead = message.objects.using(self.db).filter(id=OuterRef("later_head_id"), state=DEAD)
        rows = self.filter(head_id=NOBODY).order_by("order_key")
        return dict(rows.values_list("order_key", Subquery(dead.values("id")))[:limit])

    def end(self, order_keys: Sequence[int]) -> None:
        """Remove holds behind which nothing is parked any more."""
        self.filter(InNumbers("order_key", order_keys), head_id=NOBODY).delete()

    def resume(self, order_keys: Sequence[int]) -> None:
        """Put keys on hold again behind the dead head that an earlier message had displaced."""
        rows = self.filter(InNumbers("order_key", order_keys), head_id=NOBODY)
        rows.update(head_id=F("later_head_id"), later_head_id=None)

    def move(self, order_key: int, head_id: int, dead: int | None) -> None:
        """Let the key's rows up to ``head_id`` go; the later ones stay parked behind it.

        ``dead`` is the dead head that is to hold again when they are gone.
        """
        rows = self.filter(order_key=order_key, head_id=NOBODY)
        rows.update(head_id=head_id, later_head_id=dead)


class TopicStateQuerySet(models.QuerySet[Any]):
    """Verbs of topics."""

    def notable(self) -> Self:
        """The topics whose state is not simply "closed, without failures"."""
        return self.exclude(Q(breaker="closed", failures=0, open_until=None, unroutable_since=None))

    def waiting(self) -> Self:
        """The topics whose messages wait: the circuit is not closed, no route, or paused."""
        closed = Q(breaker="closed", unroutable_since=None, paused_at=None)
        return self.exclude(closed).order_by("topic")

    def record(self, topics: Sequence[Mapping[str, Any]]) -> None:
        """Write what the breaker decided; ``open_in`` is in microseconds from the server's now."""
        connection = connections[self.db]
        now = ServerTime.sql(connection)
        columns = {
            "id": "v.id",
            "topic": "v.topic",
            "breaker": "v.breaker",
            "failures": "v.failures",
            "openings": "v.openings",
            "open_until": f"CASE WHEN v.open_in IS NULL THEN v.open_until "
            f"ELSE {now} + v.open_in END",
            "probe_id": "v.probe_id",
            "unroutable_since": f"CASE WHEN v.unroutable_in IS NULL THEN v.unroutable_since "
            f"ELSE {now} + v.unroutable_in END",
            "last_error": "v.last_error",
        }
        text = {"id", "topic", "breaker", "last_error"}
        given = [*(name for name in columns), "open_in", "unroutable_in"]
        upsert_each(
            connection,
            self.model._meta.db_table,
            unique="id",
            columns={name: "text" if name in text else "number" for name in given},
            insert=columns,
            update=[name for name in columns if name not in {"id", "topic"}],
            rows=sorted(topics, key=lambda topic: str(topic["id"])),
        )
