"""What a signal's handler raises, Ctrl-C or a time limit, comes between any two steps."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_outbox_lock import fence, lock, lock_all, locks, single_instance
from django_outbox_lock.backends.locks.handle import LockHandle
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.backends.locks.mysql import MySQLLock
from django_outbox_lock.backends.locks.postgresql import PostgreSQLLock
from django_outbox_lock.backends.locks.redis import RedisLock
from django_outbox_lock.dedicated import LockSession
from django_outbox_lock.testing.lock_items.base import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from tests import servers
    from tests.locks.conftest import Make

    Rooms = Callable[[], BaseLockBackend]

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])

NATIVE = {"postgresql": PostgreSQLLock, "mysql": MySQLLock}
PATIENCE = 15.0


class InterruptError(BaseException):
    """As KeyboardInterrupt, which pytest would take for one."""


@pytest.fixture(
    params=["native", "lease table", pytest.param("redis", marks=pytest.mark.server("redis"))]
)
def rooms(request: pytest.FixtureRequest, make: Make) -> Rooms:
    """Makes rooms that shut each other out; a lease that nobody gives back is over soon."""
    if request.param == "native":
        native = NATIVE.get(connections["default"].vendor, LeaseTableLock)
        return lambda: make(native, lease=4.0)
    if request.param == "lease table":
        return lambda: make(LeaseTableLock, lease=4.0)
    running: Callable[[str], servers.Server] = request.getfixturevalue("running_server")
    options: dict[str, Any] = {
        "url": running("redis").url,
        "namespace": uuid.uuid4().hex,
        "lease": 4.0,
    }
    return lambda: make(RedisLock, **options)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets a method raise once, before or after it does what it does."""

    def set_up(owner: object, method: str, *, before: bool) -> None:
        original, calls = getattr(owner, method), []

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            calls.append(method)
            if before and len(calls) == 1:
                raise InterruptError
            result = original(*args, **kwargs)
            if len(calls) == 1:
                raise InterruptError
            return result

        monkeypatch.setattr(owner, method, interrupted)

    return set_up


def parts_of(room: BaseLockBackend) -> dict[str, object]:
    return {"room": room, "keeper": room._keeper, "register": room._held}


def is_free_for_all(room: BaseLockBackend, rival: BaseLockBackend) -> None:
    for who in (room, rival):
        handle = who.obtain("nightly-report", timeout=PATIENCE)
        assert handle is not None
        assert handle.release()


when = pytest.mark.parametrize("before", [True, False], ids=["before", "after"])


@when
@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("register", "reserve"),
        ("room", "_take"),
        ("room", "take"),
        ("register", "enter"),
        ("keeper", "add"),
        ("room", "adopted"),
        ("room", "_send"),
    ],
)
def test_an_interrupted_obtain(
    rooms: Rooms, interrupt: Callable[..., None], part: str, method: str, *, before: bool
) -> None:
    """Nobody has the handle, so the lock is given back; else the process would hold for ever."""
    room, rival = rooms(), rooms()
    other = room.obtain("weekly-report")
    interrupt(parts_of(room)[part], method, before=before)
    with pytest.raises(InterruptError):
        room.obtain("nightly-report")
    is_free_for_all(room, rival)
    assert other is not None
    assert other.release()


def test_an_interrupted_answer_of_the_lease_table(
    make: Make, interrupt: Callable[..., None]
) -> None:
    """The lease was granted, and nobody has read it: it is given back long before its end."""
    room, rival = (make(LeaseTableLock, lease=600.0) for _ in range(2))
    interrupt(fence, "bump", before=False)
    with pytest.raises(InterruptError):
        room.obtain("nightly-report")
    is_free_for_all(room, rival)


@when
@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("handle", "_end"),
        ("handle", "_give_back"),
        ("keeper", "discard"),
        ("room", "give_back"),
        ("room", "drop"),
        ("register", "forget"),
        ("room", "_send"),
    ],
)
def test_an_interrupted_release(
    rooms: Rooms, interrupt: Callable[..., None], part: str, method: str, *, before: bool
) -> None:
    """It is carried out all the same, for nobody will call it again."""
    room, rival = rooms(), rooms()
    handle, other = room.obtain("nightly-report"), room.obtain("weekly-report")
    assert handle is not None
    assert other is not None
    interrupt({**parts_of(room), "handle": handle}[part], method, before=before)
    with pytest.raises(InterruptError):
        handle.release()
    assert handle.ended
    assert handle.wait_lost(PATIENCE) is False
    is_free_for_all(room, rival)
    assert other.release()


@when
@pytest.mark.parametrize(
    ("part", "method"), [("keeper", "discard"), ("room", "report_lost"), ("room", "abandon")]
)
def test_an_interrupted_loss(
    rooms: Rooms, interrupt: Callable[..., None], part: str, method: str, *, before: bool
) -> None:
    """Who looks may be the one that notices the loss."""
    room, rival = rooms(), rooms()
    handle = room.obtain("nightly-report")
    assert handle is not None
    interrupt(parts_of(room)[part], method, before=before)
    with pytest.raises(InterruptError):
        handle.lose("it was said so")
    assert handle.lost
    is_free_for_all(room, rival)


def test_a_lock_of_another_thread_is_not_given_back(
    rooms: Rooms, interrupt: Callable[..., None]
) -> None:
    """The release was complete, and another thread came before the interruption."""
    room, rival = rooms(), rooms()
    handle, successors = room.obtain("nightly-report"), []
    assert handle is not None
    forget = room._held.forget

    def forget_and_succeed(key: str, lock_id: str) -> None:
        forget(key, lock_id)
        room._held.forget = forget  # type: ignore[method-assign]
        successors.append(room.obtain("nightly-report"))
        raise InterruptError

    room._held.forget = forget_and_succeed  # type: ignore[method-assign]
    with pytest.raises(InterruptError):
        handle.release()
    [successor] = successors
    assert successor is not None
    assert rival.obtain("nightly-report") is None
    assert successor.release()


@pytest.mark.parametrize("enter", [lock, lock_all])
def test_an_interrupted_entrance(
    enter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was obtained and the block was not entered."""

    def interrupted(*_: object) -> None:
        raise InterruptError

    with monkeypatch.context() as patched:
        patched.setattr(LockHandle, "hold_at_least", interrupted)
        patched.setattr(LockHandle, "__enter__", interrupted)
        with pytest.raises(InterruptError), enter("nightly-report"):
            pass
    assert len(locks["default"]._held) == 0
    locks.close()


class Abandoned:
    """A coroutine that a closed event loop leaves suspended."""

    def __init__(self, enter: Callable[[str], Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self.coroutine = self._hold(enter)
        self.has_entered = False

    def run_until(self, begun: Callable[[], bool]) -> None:
        task = self.loop.create_task(self.coroutine)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

        async def wait() -> None:
            while not begun():  # noqa: ASYNC110 (threads make it true)
                await asyncio.sleep(0.01)

        self.loop.run_until_complete(asyncio.wait_for(wait(), PATIENCE))
        self.loop.close()

    async def _hold(self, enter: Callable[[str], Any]) -> None:
        async with enter("nightly-report"):
            self.has_entered = True
            await asyncio.sleep(60)


@pytest.mark.parametrize("enter", [lock, lock_all])
def test_an_event_loop_that_is_closed_while_a_coroutine_holds(
    enter: Callable[[str], Any],
) -> None:
    """Nobody can wait for the release any more: it is carried out all the same."""
    abandoned, room = Abandoned(enter), locks["default"]
    abandoned.run_until(lambda: abandoned.has_entered)
    with pytest.raises(RuntimeError, match="no running event loop"):
        abandoned.coroutine.close()
    handle = room.obtain("nightly-report", timeout=PATIENCE)
    assert handle is not None
    assert handle.release()
    locks.close()


@pytest.mark.parametrize("enter", [lock, lock_all])
def test_an_event_loop_that_is_closed_while_a_coroutine_obtains(
    enter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its thread then gets is nobody's."""
    abandoned, room = Abandoned(enter), locks["default"]
    asked, go_on, original = threading.Event(), threading.Event(), room.take

    def slow(resource: str, lock_id: str) -> Any:
        asked.set()
        go_on.wait(PATIENCE)
        return original(resource, lock_id)

    with monkeypatch.context() as patched:
        patched.setattr(room, "take", slow)
        abandoned.run_until(asked.is_set)
        abandoned.coroutine.close()
        go_on.set()
        handle = room.obtain("nightly-report", timeout=PATIENCE)
    assert handle is not None
    assert handle.release()
    locks.close()


def test_an_interrupted_entrance_of_a_single_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the lock was obtained, and before the function has begun."""
    room, original = locks["default"], lock.__enter__

    def entered_and_interrupted(held: lock) -> Any:
        original(held)
        raise InterruptError

    with monkeypatch.context() as patched:
        patched.setattr(lock, "__enter__", entered_and_interrupted)
        with pytest.raises(InterruptError):
            single_instance("nightly-report")(lambda: None)()
    assert len(room._held) == 0
    locks.close()


class Interrupted:
    """A mutex that is acquired, and then a signal's handler raises, once."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._calm = False

    def acquire(self, *, timeout: float) -> bool:
        acquired = self._mutex.acquire(timeout=timeout)
        if not self._calm:
            self._calm = True
            raise InterruptError
        return acquired

    def release(self) -> None:
        self._mutex.release()


@pytest.mark.parametrize(
    "ask", [LockSession.close_if_unused, lambda session: session.use(PATIENCE).__enter__()]
)
def test_an_interrupted_wait_for_a_session_leaves_it_to_other_threads(
    ask: Callable[[LockSession], object],
) -> None:
    """Between the acquisition and whatever could note it."""
    session = LockSession("default", {}, lambda _: "1")
    session._turn._mutex = Interrupted()  # type: ignore[assignment]
    with pytest.raises(InterruptError):
        ask(session)
    used: list[bool] = []

    def use() -> None:
        with session.use(PATIENCE):
            used.append(True)

    in_threads([use])
    assert used
    session.close()
