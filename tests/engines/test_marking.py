"""Outcomes are written as the holder, or not at all; what is in doubt is written again."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox_lock import fence, keys
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.exceptions import LockLost
from django_outbox_lock.models import Hold, Lock, OutboxMessage, TopicState
from django_outbox_lock.outcomes import Rejected, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.envelope import Envelope
    from tests.conftest import WaitUntil
    from tests.engines.conftest import Outbox

OUTSTANDING, SENT, DEAD = OutboxMessage.State.values
TABLE = OutboxMessage._meta.db_table


def steal(resource: str = "OutboxSweeper") -> None:
    """What a successor does: take the registry's row over."""
    row = Lock.objects.get(resource=resource)
    fence.force(connection, resource, row.token, "test")


def steal_and_retry(envelope: Envelope) -> Retry:
    steal()
    return Retry("no")


@contextmanager
def failing_updates(error: Callable[[], Exception], times: int = 1) -> Iterator[list[str]]:
    """The first ``times`` marks of messages fail."""
    failed: list[str] = []

    def fail(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        marks = "settled_at" in sql and sql.startswith("UPDATE")
        if marks and len(failed) < times:
            failed.append(sql)
            raise error()
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(fail):
        yield failed


def deadlock() -> Exception:
    """As the driver of the database in use reports one."""
    return driver_error({"postgresql": "40P01", "mysql": 1213, "sqlite": 5})


def refused() -> Exception:
    return driver_error({"postgresql": "42501", "mysql": 1142, "sqlite": 8})


def lost() -> Exception:
    return driver_error({"postgresql": "57P01", "mysql": 2013, "sqlite": 8})


def driver_error(codes: dict[str, Any]) -> Exception:
    code = codes[connection.vendor]
    module: Any = connection.Database  # type: ignore[attr-defined]
    cause = module.OperationalError(code, "said the test")
    if connection.vendor == "sqlite":
        cause.sqlite_errorcode = code
    elif connection.vendor == "postgresql":
        cause.sqlstate = code
    error = OperationalError("said the test")
    error.__cause__ = cause
    return error


def test_a_holder_that_lost_the_lock_changes_nothing(outbox: Outbox) -> None:
    """Case 065, in one process: the row is somebody else's when the outcomes are written."""
    outbox.write("a1", "a2", key="a")
    outbox.write("b1", topic="u")
    before = list(OutboxMessage.objects.order_by("id").values())

    def behave(envelope: Envelope) -> Any:
        if envelope.json() == "b1":
            steal()
            return Rejected("never")
        return Retry("no")

    outbox.behave = behave
    with pytest.raises(LockLost):
        outbox.sweeper().tick()
    assert list(OutboxMessage.objects.order_by("id").values()) == before
    assert not Hold.objects.exists()
    assert not TopicState.objects.exists()


def test_what_a_loser_knew_is_forgotten(outbox: Outbox) -> None:
    """Another holder may have gone on meanwhile: a hold of the past would never end."""
    outbox.write("a1", key="a")
    outbox.behave = steal_and_retry
    sweeper = outbox.sweeper()
    with pytest.raises(LockLost):
        sweeper.tick()
    outbox.behave = None
    sweeper.tick()
    assert outbox.sent == ["a1"]
    assert not Hold.objects.exists()


def test_the_negative_control_without_a_fence_would_be_wrong(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above must fail when the fence does nothing."""
    monkeypatch.setattr(fence, "check", lambda *_, **__: None)
    outbox.write(1)
    outbox.behave = lambda _: steal()
    with pytest.raises(LockLost, match="before its release"):
        outbox.sweeper().tick()
    assert outbox.row(1).state == SENT


def test_the_fence_comes_first_and_the_order_is_the_same_for_all(outbox: Outbox) -> None:
    """K3: fence, topics, holds, messages."""
    outbox.write("a1", "a2", key="a")
    outbox.write(1, 2, 3)
    outbox.behave = lambda e: Retry("no") if e.json() in {"a1", 3} else None
    with CaptureQueriesContext(connections["default"]) as queries:
        outbox.sweeper().tick()
    names = {m._meta.db_table: m.__name__ for m in (Lock, TopicState, Hold, OutboxMessage)}
    statements = [
        q["sql"] for q in queries.captured_queries if q["sql"][:6] in {"UPDATE", "INSERT"}
    ]
    tables = [next(n for t, n in names.items() if t in sql) for sql in statements]
    if tables[-1] == "Lock":  # the lease table gives its lock back in the same session
        tables.pop()
    assert tables[-5:] == ["Lock", "TopicState", "Hold", "OutboxMessage", "OutboxMessage"]


@pytest.mark.parametrize("error", [deadlock, lost])
def test_a_mark_that_a_deadlock_or_a_lost_session_ended_is_made_again(
    outbox: Outbox, error: Callable[[], Exception]
) -> None:
    """Case 093; nothing is sent again."""
    if error is lost and connection.vendor == "sqlite":
        error = deadlock  # a file has no session to lose
    outbox.write("a1", "a2", key="a")
    outbox.write(1)
    outbox.behave = lambda e: Retry("no") if e.json() == "a1" else None
    with failing_updates(error, times=2) as failed:
        outbox.sweeper().tick()
    assert len(failed) == 2
    assert outbox.seen == ["a1", 1]
    assert outbox.states() == {"a1": OUTSTANDING, "a2": OUTSTANDING, 1: SENT}
    assert outbox.row("a1").attempts == 1


def test_a_commit_whose_answer_was_lost_is_not_counted_twice(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.write("a1", key="a")
    outbox.write(1)
    outbox.behave = lambda e: Retry("no") if e.json() == "a1" else None
    sweeper = outbox.sweeper()
    write, answers = sweeper._marker._once, iter([deadlock()])

    def commit_and_fail(*args: Any) -> None:
        write(*args)
        for error in answers:
            raise error

    monkeypatch.setattr(sweeper._marker, "_once", commit_and_fail)
    sweeper.tick()
    assert outbox.row("a1").attempts == 1
    assert outbox.row(1).attempts == 1


def test_a_database_that_reads_but_does_not_write_costs_one_page(
    outbox: Outbox, package_log: pytest.LogCaptureFixture
) -> None:
    """What was sent is remembered; nothing more is sent before that is written."""
    outbox.write(*range(10))
    sweeper = outbox.sweeper(batch_size=4)
    with failing_updates(refused, times=3) as failed:
        for _ in range(3):
            with pytest.raises(DatabaseError):
                sweeper.tick()
    assert len(failed) == 3
    assert outbox.seen == [0, 1, 2, 3]
    sweeper.tick()
    assert outbox.seen == list(range(10))
    assert [len(call) for call in outbox.calls] == [4, 1, 2, 3]
    assert set(outbox.states().values()) == {SENT}


def test_without_memory_of_the_page_one_message_per_step_is_risked(outbox: Outbox) -> None:
    outbox.write(*range(10))
    outbox.behave = lambda _: Retry("no", 0)
    sweeper = outbox.sweeper(batch_size=4, breaker_threshold=100)
    for expected in (4, 5, 6):
        with failing_updates(refused), pytest.raises(DatabaseError):
            sweeper.tick()
        assert len(outbox.seen) == expected


def test_nothing_is_sent_before_a_write_has_succeeded(outbox: Outbox) -> None:
    outbox.write(1)

    def fail(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        if sql.startswith("UPDATE") and TABLE in sql:
            raise refused()
        return execute(sql, params, many, context)

    sweeper = outbox.sweeper()
    with connections["default"].execute_wrapper(fail), pytest.raises(DatabaseError):
        sweeper.tick()
    assert outbox.seen == []


def test_an_operators_change_is_not_undone(
    outbox: Outbox, package_log: pytest.LogCaptureFixture
) -> None:
    outbox.write(1, 2)

    def behave(envelope: Envelope) -> Any:
        OutboxMessage.objects.filter(pk=outbox.row(envelope.json()).pk).kill("by hand")
        return Retry("no") if envelope.json() == 2 else None

    outbox.behave = behave
    outbox.sweeper().tick()
    assert [outbox.row(n).dead_reason for n in (1, 2)] == ["by hand", "by hand"]
    assert [outbox.row(n).state for n in (1, 2)] == [DEAD, DEAD]
    assert "2 of 2 messages were changed meanwhile" in package_log.text


def test_the_work_goes_on_in_a_transaction_of_the_caller_and_commits_nothing(
    outbox: Outbox,
) -> None:
    """Case 079: a single cycle inside atomic()."""
    outbox.configure(LOCK={"BACKEND": "django_outbox_lock.backends.locks.memory.MemoryLock"})
    with transaction.atomic():
        outbox.write(1)
        outbox.sweeper().tick()
        assert connection.in_atomic_block
        assert outbox.row(1).state == SENT
        transaction.set_rollback(True)
    assert outbox.sent == [1]
    assert not OutboxMessage.objects.exists()


def test_a_loop_inside_a_transaction_is_refused(outbox: Outbox) -> None:
    """Case 087: on MySQL it would never see a new row."""
    with transaction.atomic(), pytest.raises(transaction.TransactionManagementError, match="loop"):
        outbox.sweeper().run()


def test_without_autocommit_even_one_cycle_is_refused(outbox: Outbox) -> None:
    """Case 087: nothing would ever be committed."""
    outbox.write(1)
    connection.set_autocommit(False)
    try:
        with pytest.raises(transaction.TransactionManagementError, match="autocommit"):
            outbox.sweeper().tick()
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert outbox.seen == []


def test_rows_that_are_written_later_are_seen_by_the_next_cycle(outbox: Outbox) -> None:
    """Case 087: no snapshot is kept between two cycles."""
    sweeper = outbox.sweeper()
    sweeper.tick()
    outbox.write(1)
    sweeper.tick()
    assert outbox.sent == [1]


def test_a_lock_that_another_process_holds_is_no_trouble(
    outbox: Outbox, package_log: pytest.LogCaptureFixture
) -> None:
    """Case 011: others log at DEBUG and skip."""
    outbox.write(1)
    sweeper = outbox.sweeper()
    handle = sweeper.backend.obtain(sweeper.resource)
    assert handle is not None
    with handle:
        assert 0 < sweeper.tick() <= 6
        assert outbox.seen == []
    assert "is held by another process" in package_log.text
    levels = {r.levelno for r in package_log.records if r.name.endswith("engines")}
    assert levels == {logging.DEBUG}


def test_two_sweepers_at_once_send_everything_once(outbox: Outbox, wait_until: WaitUntil) -> None:
    """Cases 017 and 027: a slow publisher, everything due at one moment."""
    outbox.write(*range(60))
    outbox.behave = lambda _: time.sleep(0.002)
    sweepers = [outbox.sweeper(batch_size=7, interval=0.02, linger=0.0) for _ in range(2)]
    threads = [threading.Thread(target=run_and_close, args=(s,)) for s in sweepers]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(outbox.sent) >= 60, timeout=30)
    finally:
        for sweeper in sweepers:
            sweeper.stop()
        for thread in threads:
            thread.join(20)
    assert sorted(outbox.seen) == list(range(60))


def run_and_close(sweeper: Any) -> None:
    try:
        sweeper.run()
    finally:
        connections.close_all()


def test_a_second_sweeper_under_another_lock_is_fenced(outbox: Outbox) -> None:
    """Case 027: the fence is the second line of defence: whoever comes later wins."""
    outbox.write(1)
    resource = "OutboxSweeper"
    second = MemoryLock("default", namespace="another")

    def take_over(envelope: Envelope) -> None:
        steal()
        assert second.obtain(resource) is not None

    outbox.behave = take_over
    with pytest.raises(LockLost):
        outbox.sweeper().tick()
    assert outbox.row(1).state == OUTSTANDING
    assert Lock.objects.get(pk=keys.resource_id(resource)).token == 3
    second.close()
