"""Whether there is anything to do for a sweeper, in one statement that no row is locked by."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django_outbox_lock.clock import ServerTime
from django_outbox_lock.querysets import siblings
from django_outbox_lock.querysets.messages import OUTSTANDING

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class Glance(NamedTuple):
    """``now`` is the server's clock. ``due``: messages; ``holds``, ``topics``: parked ones."""

    now: int
    due: bool
    holds: bool
    topics: bool


def glance(connection: BaseDatabaseWrapper) -> Glance:
    """Look whether anything is due, a hold is ending, or a topic may want attention."""
    now = f"(SELECT {ServerTime.sql(connection)}{connection.features.bare_select_suffix})"
    questions = (
        ("OutboxMessage", f"due_at <= {now} AND state = {OUTSTANDING}"),
        ("Hold", "head_id = 0"),
        ("TopicState", f"open_until <= {now} OR unroutable_since IS NOT NULL"),
    )
    answers = ", ".join(_exists(connection, model, where) for model, where in questions)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {now}, {answers}{connection.features.bare_select_suffix}")
        return Glance._make(cursor.fetchone())


def _exists(connection: BaseDatabaseWrapper, model: str, where: str) -> str:
    cls = siblings.model(model)
    table = connection.ops.quote_name(cls._meta.db_table)
    return f"CASE WHEN EXISTS (SELECT 1 FROM {table} WHERE {where}) THEN 1 ELSE 0 END"  # noqa: S608 (our names)
