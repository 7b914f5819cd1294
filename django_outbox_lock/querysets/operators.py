"""What operators do to messages. They hold no lock, so each change names the state they saw."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.db import DatabaseError, connections, models, transaction
from django.db.models import Case, CharField, F, Func, Max, When

from django_outbox_lock import conf, dberrors
from django_outbox_lock.clock import ServerTime
from django_outbox_lock.querysets import siblings
from django_outbox_lock.querysets.dialect import InNumbers
from django_outbox_lock.querysets.states import DEAD, OUTSTANDING
from django_outbox_lock.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

BY_OPERATOR = "by operator"
BATCH = 1000
# Ids of one read: a few megabytes, and so many that reading the rest again costs little.
READ = 50_000
_TRIES = 5
# Else the one that was ended may come before the one that it let go on, and be ended again.
_PAUSES = Backoff(base=0.05, cap=1.0)
# A literal, as in the condition of the index: a plan without parameters matches it.
_EMPTY = Func(template="''", output_field=CharField())
_UNEXPIRED = Case(When(expires_at__gt=ServerTime(), then=F("expires_at")), default=None)


class OperatorVerbs(models.QuerySet[Any]):
    """Requeue, mark dead, let a key go. The order of writing is kept: the oldest are changed first.

    Each batch of 1,000 is one conditional UPDATE and commits by itself, unless the caller has a
    transaction open: what a sweeper decided meanwhile is never undone, and no sweeper waits long.
    """

    def dead(self) -> Self:
        """The dead ones of these rows, found through their index: a dead row has a reason."""
        return self.filter(dead_reason__gt=_EMPTY)

    def requeue(self, *, limit: int | None = None) -> int:
        """Make the dead ones of these rows outstanding and due now, with all attempts left.

        At most ``limit``; returns how many. An ``expires_at`` that has passed is cleared: it is
        asked for now. A head that held its key stays its head: it alone may be sent, and the later
        messages of the key stay parked until it is gone.
        """
        rows = self._where_written()
        return sum(rows._requeue(ids) for ids in rows._batches(DEAD, limit))  # noqa: SLF001

    def kill(self, reason: str = BY_OPERATOR, *, limit: int | None = None) -> int:
        """Make the outstanding ones of these rows dead, at most ``limit``; returns how many.

        A head that held its key goes on holding it, unless the policy of its topic is to skip:
        ``let_go`` ends that.
        """
        rows = self._where_written()
        return sum(
            rows._kill(ids, reason)  # noqa: SLF001
            for ids in rows._batches(OUTSTANDING, limit)  # noqa: SLF001
        )

    def holding(self) -> Self:
        """The dead ones of these rows behind which their key waits."""
        return self.filter(state=DEAD, pk__in=self._holds().values("head_id"))

    def let_go(self, *, limit: int | None = None) -> int:
        """Let the keys go on that the dead ones of these rows hold; those rows stay dead.

        At most ``limit`` keys; returns how many. The messages behind each come back to be sent, a
        page at a time, in order: later ones of a key overtake the dead one for good.
        """
        rows = self._where_written()
        dead = rows.filter(state=DEAD).order_by().values("pk")
        return int(rows._holds().filter(head_id__in=dead).let_keys_go(limit=limit))  # noqa: SLF001

    def _where_written(self) -> Any:
        """These rows on the alias that is written to: a router may send reads to a replica."""
        rows: Any = self.all()
        rows._for_write = True  # noqa: SLF001 (what Django's own verbs set)
        return rows.using(rows.db)

    def _batches(self, state: int, limit: int | None) -> Iterator[list[int]]:
        # By an expression: an ORDER BY of the key itself, with a LIMIT, makes MariaDB walk along
        # the whole primary key instead of the index of the few.
        rows = self.filter(state=state).order_by(F("pk") + 0).values_list("pk", flat=True)

        def read(after: int | None, until: int | None, count: int) -> list[int]:
            further = rows if after is None else rows.filter(pk__gt=after, pk__lte=until)
            return list(further[:count])

        newest = self._fresh().aggregate
        return batches(read, lambda: newest(newest=Max("pk"))["newest"], limit)

    def _requeue(self, ids: Sequence[int]) -> int:
        rows = self._rows(ids, DEAD)
        return repeated(
            self.db,
            lambda: rows.update(
                state=OUTSTANDING,
                due_at=ServerTime(),
                expires_at=_UNEXPIRED,
                settled_at=None,
                attempts=0,
                dead_reason="",
            ),
        )

    def _kill(self, ids: Sequence[int], reason: str) -> int:
        rows = self._rows(ids, OUTSTANDING)
        skipped = self._skipped(ids)

        def change() -> Any:
            with transaction.atomic(using=self.db):
                if skipped:  # before the messages, as every sweeper does
                    self._holds().let_go(skipped)
                return rows.update(
                    state=DEAD,
                    due_at=None,
                    settled_at=ServerTime(),
                    dead_reason=reason[:100] or BY_OPERATOR,
                )

        return repeated(self.db, change)

    def _skipped(self, ids: Sequence[int]) -> list[int]:
        """Those that hold their key and whose policy is to let the later ones go."""
        heads = self._holds().filter(InNumbers("head_id", ids)).values_list("head_id", flat=True)
        found = self._fresh().filter(InNumbers("id", list(heads))).values_list("pk", "topic")
        topics = conf.outbox_settings(self.db).topics
        return [pk for pk, topic in found if _skips(topics, topic)]

    def _rows(self, ids: Sequence[int], state: int) -> Any:
        return self._fresh().filter(InNumbers("id", ids), state=state)

    def _fresh(self) -> Any:
        return self.model.objects.using(self.db)

    def _holds(self) -> Any:
        hold = siblings.model("Hold")
        return hold.objects.using(self.db)


def batches(
    read: Callable[[T | None, T | None, int], list[T]], newest: Callable[[], T], limit: int | None
) -> Iterator[list[T]]:
    """In ascending order what ``read`` gives, at most ``limit``, 1,000 at a time.

    ``read(after, until, count)`` gives at most ``count`` from a bound to another; the first time
    there are none. What arrives after the first read, beyond ``newest``, was not seen by the
    operator and is left alone.
    """
    left = READ if limit is None else limit
    found = read(None, None, min(READ, left))
    until = newest() if len(found) == READ else None
    while found:
        for start in range(0, len(found), BATCH):
            yield found[start : start + BATCH]
        if limit is not None:
            left -= len(found)
        if len(found) < READ or not left:
            return
        found = read(found[-1], until, min(READ, left))


def repeated(using: str, change: Callable[[], Any]) -> int:
    """Try again what a deadlock with a sweeper, or a lock that came too late, has undone."""
    tries = 1 if connections[using].in_atomic_block else _TRIES
    for number in range(1, tries):
        try:
            return int(change())
        except DatabaseError as error:
            if not dberrors.is_transient(error):
                raise
        time.sleep(_PAUSES.delay(number))
    return int(change())


def _skips(topics: Any, topic: str) -> bool:
    policy = next((found for name, found in topics.items() if fnmatchcase(topic, name)), None)
    return policy is not None and policy.options.get("dead_head") == "skip"
