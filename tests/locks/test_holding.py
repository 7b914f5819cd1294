"""Limits of a hold, warnings, callbacks and names of holders: what the contract leaves open."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections, transaction

from django_outbox_lock import (
    LockLost,
    LockNotObtained,
    fence,
    lock,
    locks,
    registry,
    single_instance,
)
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.testing.lock_items.base import in_threads, no_answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.backends.locks.handle import LockHandle
    from tests.conftest import WaitUntil
    from tests.locks.conftest import Make

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])

once = pytest.mark.server("sqlite")


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    locks.close()


def obtain(resource: str = "nightly-report") -> LockHandle:
    handle = locks["default"].obtain(resource)
    assert handle is not None
    return handle


# Who holds


def lost_inside(handle: LockHandle, statement: str) -> LockLost:
    """What is raised in a transaction, after a statement that may have broken it."""
    with transaction.atomic():
        with connections["default"].cursor() as cursor, contextlib.suppress(DatabaseError):
            cursor.execute(statement)
        with pytest.raises(LockLost) as lost:
            handle.ensure_held()
        transaction.set_rollback(True)
    return lost.value


@pytest.mark.parametrize("statement", ["SELECT 1", "SELECT 1 FROM no_such_table"])
def test_a_loss_in_a_transaction_says_who_holds(statement: str) -> None:
    """Even in one that is broken: another connection is asked."""
    old = obtain()
    assert locks["default"].force_release("nightly-report", old.token, by="a test")
    new = locks["default"].obtain("nightly-report", timeout=30)
    assert new is not None
    lost = lost_inside(old, statement)
    assert lost.holder is not None
    assert lost.holder.lock_id == new.lock_id
    assert f"token {new.token}" in str(lost)


def test_a_loss_at_the_fence_says_who_holds(make: Make) -> None:
    """The takeover is found out by the fence itself, inside the transaction."""
    old = make(LeaseTableLock).obtain("nightly-report")
    assert old is not None
    operator = make(LeaseTableLock)
    assert operator.force_release("nightly-report", old.token, by="a test")
    new = operator.obtain("nightly-report")
    assert new is not None
    with pytest.raises(LockLost, match="another holder came after it") as lost:
        _fence(old)
    assert lost.value.holder is not None
    assert lost.value.holder.lock_id == new.lock_id
    assert old.lost


def _fence(handle: LockHandle) -> None:
    with transaction.atomic():
        handle.fence()


def test_a_lease_that_has_run_out_and_that_nobody_took(make: Make) -> None:
    backend = make(LeaseTableLock, lease=1)
    backend.prove_once = no_answer  # type: ignore[method-assign]
    handle = backend.obtain("nightly-report")
    assert handle is not None
    assert handle.wait_lost(math.inf)
    with pytest.raises(LockLost, match="Nobody has taken it over yet") as lost:
        handle.ensure_held()
    assert lost.value.holder is not None
    assert lost.value.holder.expires_at is not None


def test_a_refusal_in_a_transaction_leaves_it_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up fails, and neither the error nor the transaction suffers from it."""

    def fail(*_: object) -> None:
        raise DatabaseError("no such table")

    nightly = lock("nightly-report")
    with nightly:
        monkeypatch.setattr(registry, "holder", fail)
        with (
            pytest.raises(LockNotObtained, match="held by somebody else") as refused,
            lock("nightly-report"),
        ):
            pass
        monkeypatch.undo()
        assert refused.value.holder is None
        with transaction.atomic():
            assert registry.look_up("default", "nightly-report") is not None
            with connections["default"].cursor() as cursor:
                cursor.execute("SELECT 1")


@once
def test_a_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(registry, "holder", lambda *_: go_on.wait(60))
    monkeypatch.setattr(registry, "PATIENCE", 0.1)
    begin = time.monotonic()
    assert registry.look_up("default", "nightly-report", aside=True) is None
    assert time.monotonic() - begin < 30
    go_on.set()


@once
def test_an_event_loop_is_not_kept_waiting() -> None:
    async def look() -> Any:
        return registry.look_up("default", "nightly-report")

    with lock("nightly-report"):
        assert async_to_sync(look)() is None
        assert registry.look_up("default", "nightly-report") is not None


# Waiting


@pytest.mark.timeout(180)
def test_fifty_waiters(make: Make) -> None:
    """Each of them has it once, alone, and none waits for much longer than it was told to."""
    inside, most, done = [0], [0], [0]

    def work() -> None:
        with lock("nightly-report", timeout=120):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.001)
            inside[0] -= 1
            done[0] += 1

    in_threads([work] * 50)
    assert (most, done) == ([1], [50])


# Limits


@once
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"minimum_hold": -1}, "minimum_hold must be a number of at least 0, not -1"),
        ({"minimum_hold": math.nan}, "minimum_hold"),
        ({"minimum_hold": math.inf}, "minimum_hold"),
        ({"maximum_hold": 0}, "maximum_hold must be a number above 0, not 0"),
        ({"maximum_hold": math.nan}, "maximum_hold"),
        ({"minimum_hold": 9, "maximum_hold": 8}, r"maximum_hold \(8 s\) is below minimum_hold"),
    ],
)
def test_wrong_limits_are_told_where_they_are_written(limits: Any, message: str) -> None:
    for make in (lock, single_instance):
        with pytest.raises(ValueError, match=message):
            make("nightly-report", **limits)


@once
@pytest.mark.parametrize("name", ["on_lost", "on_risk"])
def test_a_callback_that_cannot_be_called(name: str) -> None:
    """Told where it is written, not at the loss."""
    for make in (lock, single_instance):
        with pytest.raises(TypeError, match=f"{name} must be a function, not 3"):
            make("nightly-report", **{name: 3})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callback must be a function, not None"):
        getattr(obtain(), name)(None)


@once
def test_wrong_limits_of_a_handle() -> None:
    handle = obtain()
    with pytest.raises(ValueError, match="seconds must be a number of at least 0, not -1"):
        handle.hold_at_least(-1)
    with pytest.raises(ValueError, match="seconds must be a number above 0, not 0"):
        handle.hold_at_most(0)


def test_a_short_job_is_not_run_twice() -> None:
    """By a replica whose clock is a little behind."""
    runs: list[float] = []
    done = threading.Event()

    @single_instance("nightly-report", minimum_hold=2)
    def report() -> bool:
        runs.append(time.monotonic())
        done.set()
        return True

    def late() -> bool | None:
        assert done.wait(30)
        return report()

    assert in_threads([report, late]) == [True, None]
    assert len(runs) == 1


def test_a_job_that_fails_holds_for_the_minimum() -> None:
    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError), lock("nightly-report", minimum_hold=0.3):
        raise ZeroDivisionError
    assert time.monotonic() - begin >= 0.3


def test_an_interrupted_wait_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the minimum ends the wait and gives the lock back."""
    handle = obtain()
    handle.hold_at_least(60)

    def interrupt(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(handle, "wait_lost", interrupt)
    with pytest.raises(KeyboardInterrupt):
        handle.release()
    assert handle.ended
    assert not handle.lost
    assert obtain().release()


def test_a_limit_that_is_set_later_is_kept(wait_until: WaitUntil) -> None:
    """The watchdog waits for the deadline, and is told of the nearer end."""
    handle = obtain()
    handle.hold_at_most(0.2)
    begin = time.monotonic()
    wait_until(lambda: handle.ended)
    assert time.monotonic() - begin < 5
    with pytest.raises(LockLost, match=r"held for the 0\.2 s"):
        handle.ensure_held()


def test_what_was_held_too_long_is_free_at_once() -> None:
    """Its lease would last for a minute."""
    handle = obtain()
    handle.hold_at_most(0.1)
    assert handle.wait_lost(10)
    again = locks["default"].obtain("nightly-report", timeout=10)
    assert again is not None
    assert again.token > handle.token


def test_a_decorated_function_that_takes_too_long() -> None:
    @single_instance("nightly-report", maximum_hold=0.1)
    def report() -> None:
        time.sleep(0.3)

    with pytest.raises(LockLost, match=r"held for the 0\.1 s"):
        report()


# Warnings


@once
def test_each_spell_is_told_once(make: Make, wait_until: WaitUntil) -> None:
    """After a proof the next spell is another one; without one there is no second warning."""
    told: list[LockHandle] = []
    backend, answers = make(LeaseTableLock, lease=3), threading.Event()
    real = backend.prove_once

    def prove_once(handle: LockHandle) -> bool:
        return real(handle) if answers.is_set() else no_answer(handle)

    backend.prove_once = prove_once  # type: ignore[method-assign]
    handle = backend.obtain("nightly-report")
    assert handle is not None
    handle.on_risk(told.append)
    for spell in (1, 2):
        wait_until(lambda spell=spell: len(told) == spell)  # type: ignore[misc]
        assert [handle.at_risk] == [True]
        answers.set()
        wait_until(lambda: not handle.at_risk)
        answers.clear()
    assert told == [handle, handle]
    assert handle.release()


@once
def test_who_asks_during_a_spell_is_told_at_once(make: Make, wait_until: WaitUntil) -> None:
    late: list[LockHandle] = []
    backend = make(LeaseTableLock, lease=3)
    backend.prove_once = no_answer  # type: ignore[method-assign]
    handle = backend.obtain("nightly-report")
    assert handle is not None
    wait_until(lambda: handle.at_risk)
    handle.on_risk(late.append)
    wait_until(lambda: late == [handle])
    assert not handle.lost


@once
def test_a_callback_that_raises_is_logged(
    caplog: pytest.LogCaptureFixture, wait_until: WaitUntil
) -> None:
    def fail(handle: LockHandle) -> None:
        raise RuntimeError("a callback's own fault")

    handle = obtain()
    handle.on_lost(fail)
    handle.lose("for the test")
    wait_until(lambda: "a callback's own fault" in caplog.text)
    assert "nightly-report: the callback" in caplog.text


@pytest.mark.parametrize("native", [True, False], ids=["native", "lease table"])
def test_a_lease_of_some_months(make: Make, *, native: bool) -> None:
    """As milliseconds it is more than the time-outs of a server take; ``leave_to_expire`` asks."""
    room = make(type(locks["default"]) if native else LeaseTableLock, lease=100 * 86400.0)
    handle = room.obtain("nightly-report")
    assert handle is not None
    assert room.renew(handle)
    with transaction.atomic():
        handle.fence()
    with fence.held(handle.ticket, using="default", idle_limit=room.lease):
        pass
    assert handle.release()
