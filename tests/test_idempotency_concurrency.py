"""The processing log under concurrent deliveries, real processes and kill -9."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_outbox_lock import dberrors, processing
from django_outbox_lock.exceptions import AlreadyProcessed, ProcessingBusy
from django_outbox_lock.idempotency import process_once, run_once
from django_outbox_lock.models import ProcessingLog
from tests.deliveries import Flags, charge, charges
from tests.sessions import SERVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import StartManage, WaitUntil

pytestmark = pytest.mark.django_db(transaction=True)

T = TypeVar("T")

# Where two transactions can write at the same time; SQLite has one writer.
on_servers = pytest.mark.parametrize("name", SERVERS)
DEADLINE = 30

WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}
REPEATABLE_READ = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=8) as executor:
        yield executor


def own_session(job: Callable[[], T]) -> Callable[[], T]:
    """The job for a thread, which leaves no session behind."""

    def run() -> T:
        try:
            return job()
        finally:
            connections.close_all()

    return run


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], bool]:
    """Whether so many deliveries wait for another one's transaction, as the server sees it.

    SQLite does not show who waits: there it is enough that they have set out.
    """
    claim = processing.Processing.claim
    out = threading.Semaphore(0)

    def claim_seen(self: processing.Processing) -> processing.Claim:
        out.release()
        return claim(self)

    monkeypatch.setattr(processing.Processing, "claim", claim_seen)

    def wait(number: int) -> bool:
        if connection.vendor == "sqlite":
            return out._value > number
        # InnoDB renews this view only when it has not been read for 0.1 s.
        time.sleep(0.15 if connection.vendor == "mysql" else 0)
        with connection.cursor() as cursor:
            cursor.execute(WAITING[connection.vendor])
            return bool(cursor.fetchone()[0] >= number)

    return wait


class Gate:
    """A body that is inside until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.inside = threading.Event()
        self.open = threading.Event()
        self.error = error

    def __call__(self) -> str:
        charge()
        self.inside.set()
        assert self.open.wait(DEADLINE)
        if self.error:
            raise self.error
        return "first"


def second() -> str:
    charge()
    return "second"


def test_two_concurrent_deliveries_apply_once(
    pool: ThreadPoolExecutor, waiting: Callable[[int], bool], wait_until: WaitUntil
) -> None:
    """The second waits for the first's commit, then gets its result."""
    gate = Gate()
    one = pool.submit(own_session(lambda: run_once("billing", "m-1", gate)))
    assert gate.inside.wait(DEADLINE)
    two = pool.submit(own_session(lambda: run_once("billing", "m-1", second)))
    wait_until(lambda: waiting(1), what="the second delivery waits")
    gate.open.set()
    assert (one.result(DEADLINE), two.result(DEADLINE)) == ("first", "first")
    assert charges() == 1


def test_a_concurrent_delivery_takes_over_from_a_failed_one(
    pool: ThreadPoolExecutor, waiting: Callable[[int], bool], wait_until: WaitUntil
) -> None:
    gate = Gate(ZeroDivisionError())
    one = pool.submit(own_session(lambda: run_once("billing", "m-1", gate)))
    assert gate.inside.wait(DEADLINE)
    two = pool.submit(own_session(lambda: run_once("billing", "m-1", second)))
    wait_until(lambda: waiting(1), what="the second delivery waits")
    gate.open.set()
    with pytest.raises(ZeroDivisionError):
        one.result(DEADLINE)
    assert two.result(DEADLINE) == "second"
    assert charges() == 1
    assert ProcessingLog.objects.get().status == "done"


def test_a_short_wait_ends_busy(pool: ThreadPoolExecutor) -> None:
    """Deliver again: the first one is still at work, and nothing was done by the second."""
    gate = Gate()
    one = pool.submit(own_session(lambda: run_once("billing", "m-1", gate)))
    assert gate.inside.wait(DEADLINE)
    start = time.monotonic()
    with pytest.raises(ProcessingBusy) as told, process_once("billing", "m-1", wait=0.2):
        pytest.fail("the body ran")
    assert time.monotonic() - start < 4
    assert told.value.__cause__ is not None
    assert dberrors.is_lock_timeout(told.value.__cause__)
    gate.open.set()
    one.result(DEADLINE)
    assert run_once("billing", "m-1", second) == "first"


@on_servers
def test_a_short_wait_leaves_the_callers_transaction_usable(
    name: str, pool: ThreadPoolExecutor
) -> None:
    gate = Gate()
    one = pool.submit(own_session(lambda: run_once("billing", "m-1", gate)))
    assert gate.inside.wait(DEADLINE)
    with transaction.atomic():
        charge("earlier")
        with pytest.raises(ProcessingBusy), process_once("billing", "m-1", wait=0.2):
            pytest.fail("the body ran")
        charge("later")
    gate.open.set()
    one.result(DEADLINE)
    assert (charges("earlier"), charges("later"), charges()) == (1, 1, 1)


def deliver_until_told(key: str, told: list[ProcessingBusy], body: Callable[[], Any]) -> str:
    """What a broker does with a consumer that works in transactions of its own."""
    while True:
        try:
            with transaction.atomic():
                charge("earlier")
                with contextlib.suppress(AlreadyProcessed), process_once("billing", key, wait=20):
                    body()
                charge("later")
        except ProcessingBusy as busy:
            told.append(busy)
        except ZeroDivisionError:
            return "failed"
        else:
            return "done"


@on_servers
def test_four_deliveries_inside_callers_transactions_and_the_first_rolls_back(
    name: str, pool: ThreadPoolExecutor, waiting: Callable[[int], bool], wait_until: WaitUntil
) -> None:
    """E17: InnoDB ends the transaction of some that wait, savepoints and all. They are told.

    Nothing of such a caller is committed; whoever was not told has all of his work.
    """
    told: list[ProcessingBusy] = []
    gate = Gate(ZeroDivisionError())

    def deliver(body: Callable[[], Any]) -> Any:
        return pool.submit(own_session(lambda: deliver_until_told("m-1", told, body)))

    first = deliver(gate)
    assert gate.inside.wait(DEADLINE)
    others = [deliver(charge) for _ in range(3)]
    wait_until(lambda: waiting(3), what="three deliveries wait")
    gate.open.set()
    assert first.result(DEADLINE) == "failed"
    assert [other.result(DEADLINE) for other in others] == ["done"] * 3
    assert charges() == 1
    assert (charges("earlier"), charges("later")) == (3, 3)
    if name != "postgresql":
        assert any(dberrors.ends_transaction(busy) for busy in told)
        assert any("rolled the caller's transaction back" in str(busy) for busy in told)


def test_four_deliveries_and_the_first_fails(
    pool: ThreadPoolExecutor, waiting: Callable[[int], bool], wait_until: WaitUntil
) -> None:
    """Outside a transaction the deadlock among those that wait is settled by trying again."""
    gate = Gate(ZeroDivisionError())

    def deliver(body: Callable[[], Any]) -> Any:
        return pool.submit(own_session(lambda: run_once("billing", "m-1", body)))

    first = deliver(gate)
    assert gate.inside.wait(DEADLINE)
    others = [deliver(second) for _ in range(3)]
    wait_until(lambda: waiting(3), what="three deliveries wait")
    gate.open.set()
    with pytest.raises(ZeroDivisionError):
        first.result(DEADLINE)
    assert [other.result(DEADLINE) for other in others] == ["second"] * 3
    assert charges() == 1


@pytest.fixture
def repeatable_read() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(REPEATABLE_READ[connection.vendor])
    yield
    connection.close()


@on_servers
@pytest.mark.usefixtures("repeatable_read")
def test_a_duplicate_that_the_callers_snapshot_does_not_show(
    name: str, pool: ThreadPoolExecutor
) -> None:
    """Case 099: MySQL's locking read shows it. PostgreSQL has none: the next transaction will."""
    with transaction.atomic():
        assert charges() == 0
        assert pool.submit(own_session(lambda: run_once("billing", "m-1", second))).result() == (
            "second"
        )
        expected = ProcessingBusy if name == "postgresql" else AlreadyProcessed
        with pytest.raises(expected) as told, process_once("billing", "m-1"):
            pytest.fail("the body ran")
        if isinstance(told.value, AlreadyProcessed):
            assert told.value.result == "second"
        charge("later")
    assert charges("later") == 1
    assert run_once("billing", "m-1", second) == "second"


@on_servers
def test_a_deadlock_that_the_body_swallows_is_told(
    name: str, pool: ThreadPoolExecutor, waiting: Callable[[int], bool], wait_until: WaitUntil
) -> None:
    """InnoDB would commit what the body writes next, without the entry and all that came before."""
    first, last, *ballast = [charge() for _ in range(52)]
    locked = threading.Event()

    def update(*ids: int) -> None:
        with connection.cursor() as cursor:
            for number in ids:
                cursor.execute("UPDATE shop_order SET total = 2 WHERE id = %s", [number])

    def heavy() -> None:
        with transaction.atomic():
            if name == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL deadlock_timeout = '60s'")
            update(*ballast, last)
            locked.set()
            wait_until(lambda: waiting(1), what="the body waits for the last")
            update(first)

    other = pool.submit(own_session(heavy))

    def body() -> None:
        charge("before")
        update(first)
        assert locked.wait(DEADLINE)
        with contextlib.suppress(OperationalError):
            update(last)

    with pytest.raises(ProcessingBusy) as told, process_once("billing", "m-1"):
        body()
    other.result(DEADLINE)
    assert dberrors.is_deadlock(told.value)
    assert charges("before") == 0
    assert not ProcessingLog.objects.exists()


@pytest.mark.parametrize(("consumer", "applied"), [("logged", 1), ("naive", 2)])
def test_two_processes_with_a_barrier_before_the_insert(
    consumer: str, applied: int, start_manage: StartManage, tmp_path: Path, wait_until: WaitUntil
) -> None:
    """Case 117; the naive check-then-insert is the negative control: it applies twice."""
    processes = [
        start_manage("shell", "-c", call(consumer, tmp_path, me, other))
        for me, other in (("one", "two"), ("two", "one"))
    ]
    for process in processes:
        assert process.wait(DEADLINE) == 0, process.output
    assert charges() == applied


def test_a_consumer_killed_in_its_body_has_done_nothing(
    start_manage: StartManage, tmp_path: Path, wait_until: WaitUntil
) -> None:
    """Kill -9: the server undoes the transaction, and the next delivery runs."""
    process = start_manage("shell", "-c", call("killed", tmp_path, "inside", ""))
    flags = Flags(tmp_path)
    wait_until(lambda: flags.raised("inside") or process.poll() is not None, timeout=DEADLINE)
    assert process.poll() is None, process.output
    process.kill()
    process.wait(DEADLINE)
    assert run_once("billing", "m-1", second) == "second"
    assert charges() == 1
    assert ProcessingLog.objects.get().attempts == 1


def call(consumer: str, folder: Path, me: str, other: str) -> str:
    arguments = ", ".join(map(repr, (consumer, "m-1", str(folder), me, other)))
    return f"from tests.deliveries import main; main({arguments})"
