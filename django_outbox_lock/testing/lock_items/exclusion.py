"""At most one holder, and nobody but the holder lets go."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from django_outbox_lock.testing.lock_items.base import (
    SLACK,
    LockItems,
    across_processes,
    applies,
    in_threads,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.base import BaseLockBackend

FAILED_TRIES = 1000


class ExclusionItems(LockItems):
    """Obtain and release."""

    def test_exclusive(self) -> None:
        """Threads that read and write one number under the lock lose no addition."""
        other = self.make_backend() if self.backend_class.across_processes else self.backend
        total = [0]

        def adder(backend: BaseLockBackend) -> Callable[[], None]:
            def add() -> None:
                for _ in range(5):
                    with self.obtain("counter", backend, timeout=30):
                        seen = total[0]
                        time.sleep(0.002)
                        total[0] = seen + 1

            return add

        in_threads([adder(backend) for backend in (self.backend, other) * 2])
        assert total == [20]

    def test_busy_is_none(self) -> None:
        """A resource that is held is not obtained, and that is no error."""
        self.obtain("nightly-report")
        assert self.backend.obtain("nightly-report") is None

    @applies(across_processes)
    def test_another_backend_is_refused(self) -> None:
        """Another process that comes by the store is refused there."""
        self.obtain("nightly-report")
        assert self.make_backend().obtain("nightly-report") is None

    def test_reobtain_after_release(self) -> None:
        """After the release the resource can be had again, with a new lock id."""
        first = self.obtain("nightly-report")
        assert first.release()
        second = self.obtain("nightly-report")
        assert second.lock_id != first.lock_id

    def test_not_reentrant_in_one_thread(self) -> None:
        """Who holds is refused like everybody else, although a server may count holds."""
        first = self.obtain("nightly-report")
        assert self.backend.obtain("nightly-report") is None
        assert first.release()
        assert self.obtain("nightly-report").release()

    def test_not_reentrant_in_another_thread(self) -> None:
        """Another thread of the holder's process is refused."""
        self.obtain("nightly-report")
        assert in_threads([lambda: self.backend.obtain("nightly-report")]) == [None]

    def test_one_winner_of_a_new_name(self) -> None:
        """Case 067: many come at once for a name that nobody ever used, without any set-up."""
        rivals = [self.backend]
        if self.backend_class.across_processes:
            rivals += [self.make_backend() for _ in range(5)]
        won = in_threads([lambda rival=rival: rival.obtain("new") for rival in rivals])  # type: ignore[misc]
        assert len([handle for handle in won if handle]) == 1

    def test_independent_names(self) -> None:
        """Two names have nothing to do with each other."""
        one, two = self.obtain("one"), self.obtain("two")
        assert one.release()
        assert not two.lost
        assert two.release()

    def test_timeout_is_honoured(self) -> None:
        """``obtain`` waits for as long as it was told to, and not longer."""
        self.obtain("nightly-report")
        begin = time.monotonic()
        assert self.backend.obtain("nightly-report", timeout=0.4) is None
        assert 0.4 <= time.monotonic() - begin < 0.4 + SLACK

    def test_waiting_is_rewarded(self) -> None:
        """Who waits gets what is released meanwhile."""
        first = self.obtain("nightly-report")

        def wait() -> bool:
            return self.obtain("nightly-report", timeout=30).release()

        def end() -> bool:
            time.sleep(0.2)
            return first.release()

        assert in_threads([wait, end]) == [True, True]

    def test_double_release(self) -> None:
        """A second release does nothing, even when somebody else holds by then."""
        first = self.obtain("nightly-report")
        assert first.release()
        second = self.obtain("nightly-report")
        assert not first.release()
        assert self.backend.prove(second)
        assert second.release()

    def test_foreign_release(self) -> None:
        """Case 063: a lock id that is not the holder's releases nothing."""
        holder = self.obtain("nightly-report")
        assert not self.backend.release("nightly-report", "0" * 32)
        assert not self.make_backend().release("nightly-report", holder.lock_id)
        assert self.backend.prove(holder)
        assert self.backend.release("nightly-report", holder.lock_id)

    def test_release_from_another_thread(self) -> None:
        """The handle is not bound to the thread that obtained it."""
        handle = self.obtain("nightly-report")
        assert in_threads([handle.release]) == [True]
        assert self.obtain("nightly-report").release()

    @applies(across_processes)
    def test_failed_tries_leave_nothing(self) -> None:
        """A thousand refusals leave no connection, file or thread behind."""
        # The holder is elsewhere: its renewals open connections of their own.
        assert self.make_peer().do("obtain", "nightly-report")
        assert self.backend.obtain("nightly-report") is None
        before = (_open_files(), threading.active_count())
        for _ in range(FAILED_TRIES):
            assert self.backend.obtain("nightly-report") is None
        wait_until(
            lambda: _open_files() <= before[0] and threading.active_count() <= before[1],
            10,
            "as many files and threads as before",
        )


def _open_files() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 (pathlib would open one more)
