"""What the people who use a lock are told, and the limits that they set."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest
from asgiref.sync import async_to_sync

from django_outbox_lock import LockLost, LockNotObtained, lock, lock_all, locks, signals
from django_outbox_lock.testing.lock_items.base import SLACK, LockItems, fail, wait_until

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle


class Told:
    """A callback that notes with what, and on which thread, it was called."""

    def __init__(self) -> None:
        self.handles: list[LockHandle] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, handle: LockHandle) -> None:
        self.threads.add(threading.current_thread())
        self.handles.append(handle)

    def wait(self, *handles: LockHandle) -> None:
        """Return when it was called with these and no others, each time on another thread."""
        wait_until(lambda: self.handles == list(handles), 10, "told")
        assert threading.current_thread() not in self.threads
        assert len(self.threads) == len(handles)


class HoldingItems(LockItems):
    """Who holds, how long, what is told of a loss and before it, and several locks at once."""

    # Errors say who holds.

    def test_a_loss_says_who_holds_now(self) -> None:
        """Who was succeeded is told by whom, since when, until when."""
        old = self.obtain("nightly-report")
        assert self.backend.force_release("nightly-report", old.token, by="the contract")
        with pytest.raises(LockLost, match="Nobody holds it now") as free:
            old.ensure_held()
        assert free.value.holder is not None
        new = self.obtain("nightly-report", timeout=self.takeover)
        until = ", session-bound" if self.backend_class.session_bound else " until "
        says = f"It is held by .*pid.* since .*{until}.*token {new.token}"
        with pytest.raises(LockLost, match=says) as lost:
            old.ensure_held()
        assert lost.value.holder is not None
        assert lost.value.holder.lock_id == new.lock_id
        assert lost.value.holder.acquired_at is not None
        assert (lost.value.holder.expires_at is None) == self.backend_class.session_bound

    # How long.

    def test_minimum_hold(self) -> None:
        """A release that comes too early waits, and nobody else obtains meanwhile."""
        with self.in_force():
            self._stack.callback(locks.close)
            begin = time.monotonic()
            with lock("nightly-report", using=self.using, minimum_hold=0.5) as handle:
                assert time.monotonic() - begin < 0.5 + SLACK
            assert time.monotonic() - begin >= 0.5
            assert handle.ended
            assert not handle.lost
            assert self.obtain("nightly-report").release()

    def test_minimum_hold_of_what_is_lost(self) -> None:
        """Nobody waits for what is gone."""
        with self.in_force():
            self._stack.callback(locks.close)
            handle = lock("nightly-report", using=self.using, minimum_hold=60).__enter__()
            timer = threading.Timer(0.2, handle.lose, ["for the test"])
            timer.start()
            begin = time.monotonic()
            assert not handle.release()
            assert time.monotonic() - begin < 30
            timer.join()

    def test_minimum_hold_in_coroutines(self) -> None:
        """The loop goes on while the release waits; a cancelled task releases all the same."""

        async def hold() -> None:
            async with lock("nightly-report", using=self.using, minimum_hold=0.4):
                pass

        async def scenario() -> float:
            begin = time.monotonic()
            waiting = asyncio.create_task(hold())
            while not waiting.done():  # noqa: ASYNC110 (does the loop go on?)
                await asyncio.sleep(0.01)
            took = time.monotonic() - begin
            cancelled = asyncio.create_task(hold())
            await asyncio.sleep(0.1)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            return took

        with self.in_force():
            self._stack.callback(locks.close)
            assert async_to_sync(scenario)() >= 0.4
            wait_until(lambda: not locks[self.using]._held, 10, "released")  # noqa: SLF001
        assert self.obtain("nightly-report").release()

    def test_maximum_hold(self) -> None:
        """What is held for too long is given up without any proof, and told as lost."""
        told = Told()
        with self.in_force():
            self._stack.callback(locks.close)
            nightly = lock(
                "nightly-report", using=self.using, maximum_hold=2, on_lost=told, on_risk=told
            )
            handle = nightly.__enter__()
            assert [handle.at_risk] == [False]
            assert handle.wait_lost(2 + SLACK)
            assert [handle.at_risk] == [True]
            told.wait(handle, handle)
            with pytest.raises(LockLost, match="held for the 2 s"):
                nightly.__exit__(None, None, None)
            assert self.obtain("nightly-report", timeout=self.takeover).release()

    # What is told.

    def test_on_lost(self) -> None:
        """Once, on a thread of its own, also to who asks too late; what it raises harms nobody."""
        told, late = Told(), Told()
        handle = self.obtain("nightly-report")
        handle.on_lost(lambda _: fail())
        handle.on_lost(told)
        assert told.handles == []
        handle.lose("for the test")
        handle.on_lost(late)
        told.wait(handle)
        late.wait(handle)

    def test_a_release_is_no_loss(self) -> None:
        """Nobody is told of it as of one."""
        told = Told()
        handle = self.obtain("nightly-report")
        handle.on_lost(told)
        handle.on_risk(told)
        assert handle.release()
        handle.on_lost(told)
        assert not handle.at_risk
        assert self.heard.tokens(signals.lock_released) == [handle.token]
        assert (told.handles, self.heard.tokens(signals.lock_at_risk)) == ([], [])

    def test_at_risk(self) -> None:
        """Warned once before the end of the lease, although the proof hangs; then it is proved."""
        lease = max(5.0, self.backend_class.minimum_lease)
        backend, go_on, told = self.make_backend(lease=lease), threading.Event(), Told()
        self._stack.callback(go_on.set)
        real = backend.prove_once
        backend.prove_once = lambda handle: go_on.wait(60) and real(handle)  # type: ignore[method-assign]
        handle = self.obtain("nightly-report", backend)
        handle.on_risk(told)
        assert [handle.at_risk] == [False]
        told.wait(handle)
        assert [handle.at_risk] == [True]
        go_on.set()
        wait_until(lambda: not handle.at_risk, lease, "proved again")
        assert not handle.lost
        assert told.handles == [handle]
        wait_until(lambda: self.heard.told[signals.lock_at_risk], 10, "told")
        (signalled,) = self.heard.told[signals.lock_at_risk]
        assert signalled["handle"] is handle
        assert 0 <= signalled["left"] <= lease / 3
        assert handle.release()

    def test_signals_of_waiting_and_of_an_overrun(self) -> None:
        """What was waited, in vain or not, and how long the work went on after a loss."""
        handle = self.obtain("nightly-report")
        assert self.backend.obtain("nightly-report", timeout=0.2) is None
        (obtained,) = self.heard.told[signals.lock_obtained]
        (contended,) = self.heard.told[signals.lock_contended]
        assert 0 <= obtained["waited"] < SLACK
        assert 0.2 <= contended["waited"] < 0.2 + SLACK
        assert contended["backend"] is self.backend
        assert (contended["resource"], contended["using"]) == ("nightly-report", self.using)
        handle.lose("for the test")
        time.sleep(0.1)
        for _ in range(2):
            assert not handle.release()
        (left,) = self.heard.told[signals.lock_left]
        assert 0.1 <= left["overrun"] < 0.1 + SLACK

    # Several at once.

    def test_all_or_none(self) -> None:
        """One that is busy is named, and the others are free again."""
        with self.in_force():
            self._stack.callback(locks.close)
            busy = self.obtain("two", locks[self.using])
            with pytest.raises(LockNotObtained, match="two is held by") as refused:
                lock_all("three", "two", "one", using=self.using).__enter__()
            assert refused.value.resource == "two"
            assert busy.release()
            with lock_all("three", "two", "one", using=self.using, timeout=10) as handles:
                assert [handle.resource for handle in handles] == ["three", "two", "one"]
                assert all(locks[self.using].prove(handle) for handle in handles)
            assert [handle.ended for handle in handles] == [True] * 3
            assert not any(handle.lost for handle in handles)

    def test_one_of_all_is_lost(self) -> None:
        """The end raises ``LockLost`` for it, after all of them were released."""
        with self.in_force():
            self._stack.callback(locks.close)
            with (
                pytest.raises(LockLost, match="two") as lost,
                lock_all("one", "two", using=self.using) as handles,
            ):
                handles[1].lose("for the test")
            assert lost.value.resource == "two"
            assert all(handle.ended for handle in handles)
            assert not handles[0].lost

    def test_all_in_coroutines(self) -> None:
        """``async with lock_all``."""

        async def scenario() -> None:
            async with lock_all("two", "one", using=self.using) as handles:
                assert [handle.resource for handle in handles] == ["two", "one"]
                with pytest.raises(LockNotObtained, match="one is held by"):
                    await lock_all("a", "one", using=self.using).__aenter__()
            assert all(handle.ended and not handle.lost for handle in handles)

        with self.in_force():
            self._stack.callback(locks.close)
            async_to_sync(scenario)()
        assert self.obtain("a").release()
