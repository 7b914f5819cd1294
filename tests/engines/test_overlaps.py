"""Case 093: 500 rounds in which those who change the same 500 rows really meet.

Sweepers are fenced one at a time by their lock. Two at once stand for a holder that has lost it and
has not noticed yet: each has a lock of its own here, so that the fence keeps none of them away.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import pytest
from django.db import connection, connections

from django_outbox_lock import dberrors
from django_outbox_lock.backends.archives.base import ArchiveRecord, BaseArchive
from django_outbox_lock.engines import fenced
from django_outbox_lock.engines.archiver import Archiver
from django_outbox_lock.engines.marking import Marker
from django_outbox_lock.engines.results import Record
from django_outbox_lock.locking import locks
from django_outbox_lock.models import ArchivedMessage, OutboxMessage
from django_outbox_lock.outcomes import Sent
from django_outbox_lock.querysets.messages import Change
from tests.factories import OutboxMessageFactory
from tests.sessions import SERVERS

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Iterator, Sequence


# 500 rounds: most with an archive that costs little, some with the usual one.
ROUNDS = {"Kept": 400, "TableArchive": 100}
LOW, HIGH = list(range(1, 251)), list(range(251, 501))
IDS = LOW + HIGH
TABLE = OutboxMessage._meta.db_table
OUTSTANDING, SENT, DEAD = OutboxMessage.State.values

# What a row may be in the end: its state and its attempts.
NEW, TRIED, ONCE, TWICE = (OUTSTANDING, 0), (OUTSTANDING, 1), (SENT, 1), (SENT, 2)


def retried(ids: Iterable[int]) -> list[Change]:
    return [Change(id_, 0, OUTSTANDING, 1, due_in=5, error="not now") for id_ in ids]


ALL = Record(sent=IDS)
LLA = Record(sent=IDS[::-1])
LOW_SENT = Record(sent=LOW, changes=retried(HIGH))
HIGH_SENT = Record(sent=HIGH[::-1], changes=retried(LOW[::-1]))

# Two records, or a record and the operator (None), and in what the low and the high ids may end.
# The operator kills and requeues: a statement passes those over that are dead when it comes along,
# so what becomes of a message that was requeued meanwhile is settled for each by itself.
MEETINGS: list[tuple[Record, Record | None, list[tuple[set[Any], set[Any]]]]] = [
    (ALL, LLA, [({ONCE}, {ONCE})]),
    (LOW_SENT, HIGH_SENT, [({ONCE}, {TWICE}), ({TWICE}, {ONCE})]),
    (LLA, None, [({ONCE, NEW}, {ONCE, NEW})]),
    (HIGH_SENT, None, [({NEW, TRIED}, {NEW, ONCE})]),
]


class Kept(BaseArchive):
    """An archive in memory."""

    rows: list[tuple[uuid.UUID, int]] = []

    def store(self, records: Sequence[ArchiveRecord]) -> Sequence[Sent]:
        self.rows.extend((record.envelope.message_id, record.attempts) for record in records)
        return [Sent()] * len(records)


class Meeting:
    """Three threads with connections of their own, which begin at the same moment."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(3)
        self._barrier = threading.Barrier(3, timeout=100)
        self._over = threading.Event()
        self._archiver = Archiver("default")
        self._marker = Marker("default")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._pool)
        self._handles = [self._obtain(name) for name in ("first", "second", "Archiver")]
        self._together(*[notice_deadlocks_at_once] * 3)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._stack:
            self._together(*[connections.close_all] * 3)

    def meet(self, one: Record, other: Record | None) -> None:
        """Let both write, or one and the operator, while the archiver deletes the low ids."""
        first, second, third = self._handles
        opposite = operate if other is None else lambda: self._marker.write(second, other)
        self._over.clear()
        self._together(
            lambda: self._marker.write(first, one), opposite, lambda: self._archive(third)
        )

    def _obtain(self, resource: str) -> Any:
        handle = locks["default"].obtain(resource)
        assert handle is not None
        return self._stack.enter_context(handle)

    def _together(self, *work: Callable[[], Any]) -> None:
        *two, third = [self._pool.submit(self._begin, each) for each in work]
        try:
            for future in two:
                future.result(100)
        finally:
            self._over.set()
        third.result(100)

    def _begin(self, work: Callable[[], Any]) -> None:
        self._barrier.wait()
        work()

    def _archive(self, handle: Any) -> None:
        """As soon as some are dispatched, and once more when the others are ready."""
        dispatched = OutboxMessage.objects.filter(id__lte=LOW[-1], state=SENT)
        while not self._over.wait(0.004):
            if dispatched.exists():
                self._archiver._move(handle, LOW)
        self._archiver._move(handle, LOW)


def operate() -> None:
    OutboxMessage.objects.kill("by the test")
    OutboxMessage.objects.requeue()


def notice_deadlocks_at_once() -> None:
    if connection.vendor == "postgresql":
        execute("SET deadlock_timeout = '10ms'")


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Those that the package meets; it waits less than usual before it tries again."""
    met: list[BaseException] = []
    is_transient = dberrors.is_transient

    def note(error: BaseException) -> bool:
        met.extend([error] if dberrors.is_deadlock(error) else [])
        return is_transient(error)

    monkeypatch.setattr(dberrors, "is_transient", note)
    monkeypatch.setattr(fenced, "PAUSES", (0.005, 0.02, 0.1, 0.5))
    return met


class Rows:
    """The 500 rows, which can be written again as they were at first."""

    def __init__(self) -> None:
        OutboxMessage.objects.bulk_create(OutboxMessageFactory.build(id=id_) for id_ in IDS)
        execute(f"CREATE TABLE rows_at_first AS SELECT * FROM {TABLE}")
        self._ids = dict(OutboxMessage.objects.values_list("message_id", "id"))

    def write_anew(self) -> None:
        Kept.rows.clear()
        if connection.vendor == "postgresql":  # which would only mark them as deleted
            execute(f"TRUNCATE {TABLE}, {ArchivedMessage._meta.db_table}")
        for model in (ArchivedMessage, OutboxMessage):
            model.objects.all()._raw_delete("default")
        execute(f"INSERT INTO {TABLE} SELECT * FROM rows_at_first")

    def states(self) -> dict[int, tuple[int, int]]:
        """State and attempts of each by id. Fails if one is lost, or in two places."""
        left = OutboxMessage.objects.values_list("id", "state", "attempts")
        found = [(id_, (state, attempts)) for id_, state, attempts in left]
        assert not {id_ for id_, (state, _) in found if state == SENT}.intersection(LOW)
        archived = [*Kept.rows, *ArchivedMessage.objects.values_list("message_id", "attempts")]
        found += [(self._ids[message_id], (SENT, attempts)) for message_id, attempts in archived]
        assert sorted(id_ for id_, _ in found) == IDS
        return dict(found)


@pytest.fixture
def rows(transactional_db: None) -> Iterator[Rows]:
    yield Rows()
    execute("DROP TABLE rows_at_first")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("archive", ROUNDS)
@pytest.mark.parametrize("name", SERVERS)
def test_case_093_nothing_is_lost_where_rows_are_locked_in_opposite_order(
    name: str, archive: str, rows: Rows, deadlocks: list[BaseException], settings: Any
) -> None:
    """No exception escapes, and no message is half of what its transactions made of it."""
    if archive == "Kept":
        settings.OUTBOX_LOCK = {"default": {"ARCHIVE": {"BACKEND": f"{__name__}.Kept"}}}
    with Meeting() as meeting:
        for number in range(ROUNDS[archive]):
            one, other, outcomes = MEETINGS[number % len(MEETINGS)]
            rows.write_anew()
            meeting.meet(one, other)
            states = rows.states()
            low, high = ({states[id_] for id_ in half} for half in (LOW, HIGH))
            assert any(low <= lows and high <= highs for lows, highs in outcomes), (low, high)
    assert deadlocks
