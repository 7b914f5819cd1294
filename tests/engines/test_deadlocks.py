"""Case 093: transactions that wait for each other. The server ends one, and nothing is lost.

In the first part a transaction of nobody's locks the last row of a verb, waits until the verb
waits for it, and asks for the first one: the server has to end the verb. In the second part the
package's own parts meet.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connection, connections, transaction

from django_outbox_lock import dberrors
from django_outbox_lock.backends.archives.base import BaseArchive
from django_outbox_lock.engines.archiver import Archiver
from django_outbox_lock.engines.marking import Marker
from django_outbox_lock.engines.results import Record
from django_outbox_lock.locking import locks
from django_outbox_lock.models import ArchivedMessage, Hold, OutboxMessage, ProcessingLog
from django_outbox_lock.outcomes import Sent
from django_outbox_lock.querysets.messages import Change
from django_outbox_lock.querysets.parking import behind_key
from django_outbox_lock.querysets.topics import NewHold
from tests.factories import (
    ArchivedMessageFactory,
    HoldFactory,
    OutboxMessageFactory,
    ProcessingLogFactory,
)
from tests.sessions import SERVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.conftest import WaitUntil
    from tests.engines.conftest import Outbox

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.parametrize("name", SERVERS)]

OUTSTANDING, SENT, DEAD = OutboxMessage.State.values


def lock(row: Any) -> None:
    type(row).objects.select_for_update().get(pk=row.pk)


def archive(row: Any) -> None:
    """Lock it in the archive, where it is not yet."""
    ArchivedMessageFactory.create(message_id=row.message_id)


class Adversary:
    """Locks ``last``, waits until somebody waits for it, then locks ``first``; changes nothing."""

    def __init__(
        self, wait_until: WaitUntil, first: Any, last: Any, lock: Callable[[Any], None]
    ) -> None:
        self._wait_until = wait_until
        self._first, self._last = first, last
        self._lock = lock
        self._locked = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with self._pool:
            done = self._pool.submit(self._act)
            assert self._locked.wait(10), done.result()
            yield
            done.result()

    def _act(self) -> None:
        try:
            with transaction.atomic():
                self._stay_alive()
                self._lock(self._last)
                self._locked.set()
                self._wait_until(_somebody_waits)
                self._lock(self._first)
                transaction.set_rollback(True)
        finally:
            connections.close_all()

    def _stay_alive(self) -> None:
        """PostgreSQL ends whoever notices, InnoDB whoever has changed fewer rows."""
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL deadlock_timeout = '1min'")
        else:
            ProcessingLog.objects.bulk_create(ProcessingLogFactory.build_batch(50))


def _somebody_waits() -> bool:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT 0, count(*) FROM pg_locks WHERE NOT granted")
        else:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        return int(cursor.fetchone()[1]) > 0


@contextmanager
def ended() -> Iterator[None]:
    """The server ends transactions of this thread, because of deadlocks."""
    errors: list[DatabaseError] = []

    def note(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        try:
            return execute(sql, params, many, context)
        except DatabaseError as error:
            errors.append(error)
            raise

    with connection.execute_wrapper(note):
        yield
    assert errors
    assert all(map(dberrors.is_deadlock, errors))


@pytest.fixture
def deadlock(wait_until: WaitUntil) -> Callable[..., None]:
    """A function that runs a verb whose first try meets the adversary at these rows."""

    def run(
        rows: Sequence[Any], verb: Callable[[], Any], lock: Callable[[Any], None] = lock
    ) -> Any:
        with Adversary(wait_until, rows[0], rows[-1], lock).at_work(), ended():
            return verb()

    return run


def write(record: Record) -> None:
    handle = locks["default"].obtain("OutboxSweeper")
    assert handle is not None
    with handle:
        Marker("default").write(handle, record)


def archiver(**options: Any) -> Archiver:
    return Archiver.from_settings("default", **{"minimum_age": 0, **options})


def messages(**columns: Any) -> list[Any]:
    return [OutboxMessageFactory.create(**columns) for _ in range(3)]


def states() -> list[tuple[int, int]]:
    return list(OutboxMessage.objects.order_by("pk").values_list("state", "attempts"))


def test_a_page_is_marked(name: str, deadlock: Any) -> None:
    rows = messages()
    deadlock(rows, lambda: write(Record(sent=[row.pk for row in reversed(rows)])))
    assert states() == [(SENT, 1)] * 3


def test_failures_are_written(name: str, deadlock: Any) -> None:
    rows = messages()
    changes = [Change(row.pk, 0, OUTSTANDING, 1, due_in=5, error="no") for row in reversed(rows)]
    deadlock(rows, lambda: write(Record(changes=changes)))
    assert states() == [(OUTSTANDING, 1)] * 3


def test_holds_begin(name: str, deadlock: Any) -> None:
    keys = (1, 2, 3)
    heads = messages()
    rows = [HoldFactory.create(order_key=key, head_id=99) for key in keys]
    holds = [NewHold(key, row.pk, "no") for key, row in zip(keys, heads, strict=True)]
    deadlock(rows, lambda: write(Record(holds=holds[::-1])))
    found = Hold.objects.order_by("order_key").values_list("head_id", flat=True)
    assert list(found) == [row.pk for row in heads]


def test_messages_are_killed(name: str, deadlock: Any) -> None:
    rows = messages()
    assert deadlock(rows, OutboxMessage.objects.kill) == 3
    assert states() == [(DEAD, 0)] * 3


def test_messages_are_requeued(name: str, deadlock: Any) -> None:
    rows = messages(dead=True)
    assert deadlock(rows, OutboxMessage.objects.requeue) == 3
    assert states() == [(OUTSTANDING, 0)] * 3


def test_keys_are_let_go(name: str, deadlock: Any) -> None:
    rows = [HoldFactory.create(head_id=row.pk) for row in messages(dead=True)]
    assert deadlock(rows, OutboxMessage.objects.all().let_go) == 3
    assert set(Hold.objects.values_list("head_id", flat=True)) == {0}


def test_parked_messages_return(name: str, deadlock: Any, outbox: Outbox) -> None:
    HoldFactory.create(order_key=7, head_id=0)
    rows = messages(order_key=7, key="7", due_at=behind_key(7))
    deadlock(rows, outbox.sweeper().tick)
    assert len(outbox.sent) == 3
    assert states() == [(SENT, 1)] * 3
    assert not Hold.objects.exists()


class Elsewhere(BaseArchive):
    """An archive outside of the database."""

    stored: list[int] = []

    def store(self, records: Sequence[Any]) -> list[Sent]:
        self.stored.extend(record.id for record in records)
        return [Sent()] * len(records)


@pytest.mark.parametrize("outside", [False, True])
def test_dispatched_messages_are_archived(
    name: str, deadlock: Any, settings: Any, monkeypatch: pytest.MonkeyPatch, *, outside: bool
) -> None:
    monkeypatch.setattr(Elsewhere, "stored", [])
    if outside:
        archive = {"BACKEND": f"{__name__}.Elsewhere"}
        settings.OUTBOX_LOCK = {"default": {"ARCHIVE": archive}}
    rows = messages(dispatched=True)
    work = archiver()
    deadlock(rows, work.tick)
    assert not OutboxMessage.objects.exists()
    assert ArchivedMessage.objects.count() == (0 if outside else 3)
    assert Elsewhere.stored == ([row.pk for row in rows] if outside else [])
    assert work.tally.archived == 3


def test_messages_are_stored_in_the_archive(name: str, deadlock: Any) -> None:
    rows = messages(dispatched=True)
    work = archiver()
    deadlock(rows, work.tick, archive)
    assert not OutboxMessage.objects.exists()
    assert ArchivedMessage.objects.count() == work.tally.archived == 3


def test_dead_letters_are_pruned(name: str, deadlock: Any) -> None:
    work = archiver(dead_minimum_age=0)
    deadlock(messages(dead=True), work.tick)
    assert not OutboxMessage.objects.exists()
    assert work.tally.pruned_dead == 3


def test_the_log_is_pruned(name: str, deadlock: Any) -> None:
    work = archiver(log_minimum_age=0)
    deadlock([ProcessingLogFactory.create() for _ in range(3)], work.tick)
    assert not ProcessingLog.objects.exists()
    assert work.tally.pruned_log == 3
