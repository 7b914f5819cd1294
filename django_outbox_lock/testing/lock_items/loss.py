"""How a loss shows, and what renewal does against it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from django.db import InterfaceError, OperationalError

from django_outbox_lock import signals
from django_outbox_lock.exceptions import LockLost, LockUnavailable
from django_outbox_lock.testing.lock_items.base import (
    SLACK,
    LockItems,
    across_processes,
    applies,
    fail,
    no_answer,
    on_a_lease,
    on_a_session,
    wait_until,
)

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle


class LossItems(LockItems):
    """A loss is noticed in time, told once, and final."""

    def test_a_held_lock(self) -> None:
        """``lost`` is a bool, not an object that is always true."""
        handle = self.obtain("nightly-report")
        assert handle.lost is False
        assert handle.wait_lost(0.01) is False
        handle.ensure_held()
        assert (handle.expires_at is None) == (handle.remaining is None)
        assert (handle.expires_at is None) == self.backend_class.session_bound

    def test_a_released_lock(self) -> None:
        """It is not lost, but holds nothing any more; nobody waits for its loss for ever."""
        handle = self.obtain("nightly-report")
        handle.release()
        assert handle.lost is False
        assert handle.wait_lost() is False
        with pytest.raises(LockLost, match="released"):
            handle.ensure_held()

    def test_a_lost_lock(self) -> None:
        """It is lost for ever, and told once."""
        handle = self._lose_one()
        assert handle.lost is True
        assert handle.wait_lost() is True
        with pytest.raises(LockLost, match=r"nightly-report.*lost"):
            handle.ensure_held()
        assert handle.release() is False
        handle.extend(time.monotonic() + 1000)
        assert handle.lost is True
        assert self.heard.tokens(signals.lock_lost) == [handle.token]
        assert self.heard.tokens(signals.lock_released) == []

    def test_signals(self) -> None:
        """They carry the handle, its names and the alias; a receiver that raises harms nobody."""

        def fail(**_: object) -> None:
            raise RuntimeError("a receiver's own fault")

        every = (signals.lock_obtained, signals.lock_released)
        for signal in every:
            signal.connect(fail)
        try:
            handle = self.obtain("nightly-report")
            assert handle.release()
        finally:
            for signal in every:
                signal.disconnect(fail)
        for signal in every:
            (told,) = self.heard.told[signal]
            assert told["sender"] is self.backend_class
            assert told["handle"] is handle
            assert (told["resource"], told["token"]) == ("nightly-report", handle.token)
            assert told["using"] == self.using

    def test_an_error_in_the_body_is_not_masked(self) -> None:
        """It is raised as it is, and the lock is released."""
        with pytest.raises(ZeroDivisionError), self.obtain("nightly-report"):
            fail()
        assert self.obtain("nightly-report").release()

    def test_leaving_after_a_loss(self) -> None:
        """It raises ``LockLost``, unless the body is raising already."""
        silent = self.obtain("nightly-report")
        silent.lose("for the test")
        with pytest.raises(LockLost), silent:
            pass
        raising = self.obtain("weekly-report")
        raising.lose("for the test")
        with pytest.raises(ZeroDivisionError), raising:
            fail()

    @applies(on_a_session)
    def test_the_session_is_ended_while_held(self) -> None:
        """It is lost with all the locks of the session, and never quietly opened again."""
        backend = self.make_backend(lease=self.short)
        handles = [self.obtain(name, backend) for name in ("one", "two")]
        self.end_session(handles[0])
        for handle in handles:
            assert handle.wait_lost(self.takeover)
            assert not backend.prove(handle)
        told = sorted(handle.token for handle in handles)
        wait_until(lambda: sorted(self.heard.tokens(signals.lock_lost)) == told, 10, "told")
        assert self.obtain("one", timeout=10).session_id != handles[0].session_id
        assert self.obtain("two", backend, timeout=10).session_id != handles[0].session_id

    @applies(on_a_lease)
    def test_renewal_extends(self) -> None:
        """A lease is held for as long as its process lives."""
        holder = self.obtain("nightly-report", self.make_backend(lease=self.steady))
        assert self.backend.obtain("nightly-report", timeout=1.5 * self.steady) is None
        assert not holder.lost
        assert holder.release()

    @applies(on_a_lease)
    def test_renewal_never_accumulates(self) -> None:
        """Case 075: after many renewals a lease still ends within one lease."""
        silent = self.make_backend(lease=self.short)
        handle = self.obtain("nightly-report", silent)
        for _ in range(20):
            assert silent.renew(handle)
            assert handle.remaining is not None
            assert handle.remaining <= self.short
        silent.prove_once = no_answer  # type: ignore[method-assign]
        self.obtain("nightly-report", timeout=self.takeover)

    @applies(across_processes)
    def test_a_proof_that_fails_for_a_moment(self) -> None:
        """Cases 069 and 071: no answer is no loss; it is asked again inside the lease."""
        backend = self.make_backend(lease=self.steady)
        real, failures = backend.prove_once, [2]

        def prove_once(handle: LockHandle) -> bool:
            if failures[0]:
                failures[0] -= 1
                return no_answer(handle)
            return real(handle)

        backend.prove_once = prove_once  # type: ignore[method-assign]
        handle = self.obtain("nightly-report", backend)
        assert not handle.wait_lost(1.25 * self.steady)
        assert failures == [0]
        assert handle.release()

    @pytest.mark.parametrize("kind", [OperationalError, InterfaceError, LockUnavailable])
    def test_a_proof_that_gets_no_answer(self, kind: type[Exception]) -> None:
        """Whoever asks is told so, by one error for every store; and that is no loss."""

        def silent(_handle: LockHandle) -> bool:
            raise kind("the server is gone")

        backend = self.make_backend()
        handle = self.obtain("nightly-report", backend)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(backend, "prove_once", silent)
            for ask in (backend.prove, backend.renew):
                with pytest.raises(LockUnavailable, match="the server is gone"):
                    ask(handle)
        assert not handle.lost
        assert handle.release()

    def test_a_proof_that_hangs(self) -> None:
        """The lock is lost at its deadline, whatever the store does; the next one is kept."""
        backend, go_on = self.make_backend(lease=self.short), threading.Event()
        self._stack.callback(go_on.set)
        real = backend.prove_once
        backend.prove_once = lambda handle: go_on.wait(60) and not handle.ended  # type: ignore[method-assign]
        begin = time.monotonic()
        handle = self.obtain("nightly-report", backend)
        assert handle.wait_lost(self.short + SLACK)
        assert time.monotonic() - begin >= self.short
        wait_until(lambda: self.heard.tokens(signals.lock_lost) == [handle.token], 10, "told")
        backend.prove_once = real  # type: ignore[method-assign]
        successor = self.obtain("nightly-report", backend, timeout=self.takeover)
        assert not successor.wait_lost(1.25 * self.short)
        assert successor.release()

    def test_stalled_work_gives_up(self) -> None:
        """A worker that shows no progress does not hold for ever."""
        handle = self.obtain("nightly-report", self.make_backend(lease=self.short))
        handle.expect_progress(within=0.1)
        assert handle.wait_lost(self.short)
        assert self.obtain("nightly-report", timeout=self.takeover).release()

    def test_work_that_goes_on_is_kept(self) -> None:
        """A worker that shows progress keeps its lock."""
        handle = self.obtain("nightly-report", self.make_backend(lease=self.steady))
        handle.expect_progress(within=self.steady)
        end = time.monotonic() + 1.25 * self.steady
        while time.monotonic() < end:
            handle.progress()
            assert not handle.wait_lost(0.05)
        assert handle.release()

    def _lose_one(self) -> LockHandle:
        handle = self.obtain("nightly-report")
        assert handle.lose("for the test")
        assert not handle.lose("twice")
        wait_until(lambda: self.heard.tokens(signals.lock_lost), 10, "told")
        return handle
