"""No thread can be started: a container's limit of processes, or the end of the interpreter."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from django_outbox_lock import LockLost, signals
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.polling import HandOver, in_background

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle
    from tests.conftest import WaitUntil

pytestmark = [
    pytest.mark.server("sqlite"),
    pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"]),
]


@pytest.fixture(params=[MemoryLock, LeaseTableLock])
def backend(request: pytest.FixtureRequest) -> Iterator[BaseLockBackend]:
    backend: BaseLockBackend = request.param("default", lease=30)
    yield backend
    backend.close()


@pytest.fixture
def handle(backend: BaseLockBackend) -> LockHandle:
    handle = backend.obtain("nightly-report")
    assert handle is not None
    return handle


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on those of this package do not start."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("outbox-lock"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.usefixtures("no_threads")
def test_what_nobody_would_renew_is_given_back(backend: BaseLockBackend) -> None:
    with pytest.raises(RuntimeError, match="new thread"):
        backend.obtain("nightly-report")
    assert [row.lock_id for row in backend.holders()] == [None]
    assert len(backend._held) == 0


def test_a_loss_is_told_all_the_same(handle: LockHandle, request: pytest.FixtureRequest) -> None:
    """By the thread that notices it; the error is the loss and not that of the thread."""
    told: list[object] = []

    def receive(*, reason: str, **_: object) -> None:
        told.append(reason)

    handle.on_lost(told.append)
    request.getfixturevalue("no_threads")
    signals.lock_lost.connect(receive)
    try:
        assert handle.lose("test")
    finally:
        signals.lock_lost.disconnect(receive)
    assert told == [handle, "test"]
    with pytest.raises(LockLost, match="is lost: test"):
        handle.ensure_held()


def test_it_is_lost_when_it_was_held_for_too_long(
    handle: LockHandle,
    backend: BaseLockBackend,
    request: pytest.FixtureRequest,
    wait_until: WaitUntil,
) -> None:
    """And the register knows, too: it would be busy for ever in this process."""
    request.getfixturevalue("no_threads")
    handle.hold_at_most(0.000001)
    assert handle.lost
    wait_until(lambda: len(backend._held) == 0)  # the watchdog may have been the first to look


def test_a_coroutine_that_is_cancelled_in_its_release(
    handle: LockHandle, backend: BaseLockBackend, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("no_threads")

    async def scenario() -> None:
        handle.hold_at_least(60)
        task = asyncio.create_task(handle.arelease())
        await asyncio.sleep(0.01)
        task.cancel()
        handle.hold_at_least(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert handle.ended
    assert backend._keeper.handles() == []


@pytest.mark.usefixtures("no_threads")
def test_what_nobody_takes_is_disposed_of() -> None:
    disposed: list[int] = []
    hand_over = HandOver(lambda: 1, disposed.append)
    hand_over.run()
    hand_over.abandon()
    assert disposed == [1]


@pytest.mark.usefixtures("no_threads")
def test_what_fails_here_is_logged(package_log: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("of the work")

    assert in_background(fail, "outbox-lock-test")
    assert "of the work" in package_log.text
    assert not in_background(fail, "outbox-lock-test", or_here=False)
