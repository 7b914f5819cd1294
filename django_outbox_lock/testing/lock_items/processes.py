"""Other processes: killed, stopped, frozen in the middle of a transaction."""

from __future__ import annotations

from django.db import connections

from django_outbox_lock import fence
from django_outbox_lock.testing.lock_items.base import (
    LockItems,
    across_processes,
    applies,
    wait_until,
)


class ProcessItems(LockItems):
    """What becomes of a lock whose process meets its end, or its beginning."""

    @applies(across_processes)
    def test_two_interpreters_agree_on_names(self) -> None:
        """Case 037: Python's own hashes differ between processes, the keys of names do not."""
        one, two = self.make_peer(PYTHONHASHSEED="1"), self.make_peer(PYTHONHASHSEED="2")
        assert one.do("store_key", "nightly-report") == two.do("store_key", "nightly-report")
        assert one.do("obtain", "nightly-report")
        assert two.do("obtain", "nightly-report") is None
        assert one.do("release")
        assert two.do("obtain", "nightly-report")

    @applies(across_processes)
    def test_the_holder_is_killed(self) -> None:
        """Cases 059 and 073: after kill -9 the lock is free within its bound, without any help."""
        peer = self.make_peer(lease=self.short)
        token = peer.do("obtain", "nightly-report")
        assert self.backend.obtain("nightly-report") is None
        peer.kill()
        assert self.obtain("nightly-report", timeout=self.takeover).token > token

    @applies(across_processes)
    def test_the_holder_stands_still(self) -> None:
        """Case 065: a process that was stopped for longer than its lease is the holder no more."""
        peer = self.make_peer(lease=self.short)
        token = peer.do("obtain", "nightly-report")
        peer.do("mark", 1)
        peer.stop()
        successor = self.obtain("nightly-report", timeout=self.takeover)
        assert successor.token > token
        peer.resume()
        # LockLost, unless the server has ended the work session, too (MySQL's wait_timeout).
        assert str(peer.do("mark", 2)).startswith("!")
        assert self.written() == [1]
        assert peer.do("lost", 10)
        assert peer.do("release") is False
        wait_until(lambda: peer.do("told_losses") == [token], 10, "told")
        assert self.backend.prove(successor)

    @applies(across_processes)
    def test_the_holder_is_frozen_between_fence_and_commit(self) -> None:
        """E14: a server that can ends the transaction; elsewhere it stays until the process dies.

        On SQLite such a process keeps every writer out, and there is no time-out against it.
        """
        peer = self.make_peer(lease=self.short)
        peer.do("obtain", "nightly-report")
        peer.start("mark_slowly", 1)
        assert peer.answer() == "fenced"
        peer.stop()
        if fence.bounds_idle(connections[self.using]):
            self.obtain("nightly-report", timeout=self.takeover)
            peer.resume()
            peer.go_on()
            assert str(peer.answer()).startswith("!")
        else:
            assert self.backend.obtain("nightly-report", timeout=1.5 * self.short) is None
            peer.kill()
            self.obtain("nightly-report", timeout=self.takeover)
        assert self.written() == []
