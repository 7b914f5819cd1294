"""Fencing tokens, the fence, and the holder that came too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError

from django_outbox_lock import fence, signals
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.exceptions import LockLost, LockUnavailable
from django_outbox_lock.holder import LockState
from django_outbox_lock.models import Hold, Lock
from django_outbox_lock.testing.lock_items.base import (
    LockItems,
    across_processes,
    applies,
    no_answer,
    on_a_lease,
    on_a_session,
    wait_until,
)

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle


class TokenItems(LockItems):
    """The token of a resource only ever grows, and the fence knows the last one."""

    def test_tokens_grow_through_releases(self) -> None:
        """Each acquisition has a higher token than all before it."""
        tokens = []
        for _ in range(5):
            handle = self.obtain("nightly-report")
            tokens.append(handle.token)
            handle.release()
        assert tokens == sorted(set(tokens))

    def test_tokens_of_other_resources_do_not_matter(self) -> None:
        """Each resource counts for itself."""
        first = self.obtain("one").token
        self.obtain("two")
        self.backend.close()
        assert self.obtain("one").token == first + 1

    @applies(on_a_lease)
    def test_tokens_grow_through_expiry(self) -> None:
        """Who takes over an expired lease has a higher token."""
        silent = self.make_backend(lease=self.short)
        first = self.obtain("nightly-report", silent)
        silent.prove_once = no_answer  # type: ignore[method-assign]
        assert self.obtain("nightly-report", timeout=self.takeover).token > first.token
        assert first.lost

    @applies(on_a_session)
    def test_tokens_grow_through_the_end_of_a_session(self) -> None:
        """Who comes after a session that was ended has a higher token."""
        first = self.obtain("nightly-report")
        self.end_session(first)
        rival = self.make_backend()
        assert self.obtain("nightly-report", rival, timeout=10).token > first.token

    def test_tokens_grow_through_force(self) -> None:
        """Who comes after a forced release has a higher token."""
        first = self.obtain("nightly-report")
        assert self.backend.force_release("nightly-report", first.token, by="an operator")
        assert self.obtain("nightly-report", timeout=10).token > first.token

    def test_the_fence_inside_a_transaction(self) -> None:
        """A holder's transaction commits; ``fence`` outside of one is refused."""
        handle = self.obtain("nightly-report")
        with transaction.atomic(using=self.using):
            Hold.objects.using(self.using).create(order_key=1, head_id=1)
            handle.fence()
        assert self.written() == [1]
        with pytest.raises(TransactionManagementError, match="atomic"):
            handle.fence()

    def test_a_stale_holder_writes_nothing(self) -> None:
        """Its fenced transaction is rolled back as a whole, although it does not know yet."""
        stale = self.obtain("nightly-report")
        # Behind the backend's back: what a taker-over or an operator elsewhere would do.
        Lock.objects.using(self.using).update(token=stale.token + 1, owner="f" * 32)
        with pytest.raises(LockLost), fence.held(stale.ticket, using=self.using):
            Hold.objects.using(self.using).create(order_key=1, head_id=1)
        with pytest.raises(LockLost):
            self._write_and_fence(stale)
        assert self.written() == []
        assert stale.lost
        wait_until(lambda: self.heard.tokens(signals.lock_lost) == [stale.token], 10, "told")

    def test_forced_release(self) -> None:
        """It acts on the token that was seen only, fences at once, and tells the holder once."""
        holder = self.obtain("nightly-report")
        assert not self.backend.force_release("nightly-report", holder.token - 1, by="late")
        assert not holder.lost
        assert self.backend.force_release("nightly-report", holder.token, by="an operator")
        with pytest.raises(LockLost), fence.held(holder.ticket, using=self.using):
            pass
        assert holder.wait_lost(10)
        assert not self.backend.force_release("nightly-report", holder.token, by="twice")
        wait_until(lambda: self.heard.tokens(signals.lock_lost) == [holder.token], 10, "told")
        (forced,) = self.heard.told[signals.lock_forced]
        assert (forced["token"], forced["forced_by"]) == (holder.token, "an operator")
        assert not holder.release()
        assert self.obtain("nightly-report", timeout=10).release()

    @applies(across_processes)
    def test_forced_release_of_another_process(self) -> None:
        """The holder elsewhere finds out at its next proof; the resource is free before that."""
        elsewhere = self.make_backend(lease=self.short)
        holder = self.obtain("nightly-report", elsewhere)
        assert self.backend.force_release("nightly-report", holder.token, by="an operator")
        successor = self.obtain("nightly-report", timeout=10)
        assert holder.wait_lost(self.takeover)
        assert self.backend.prove(successor)
        wait_until(lambda: self.heard.tokens(signals.lock_lost) == [holder.token], 10, "told")

    def test_two_backends_side_by_side(self) -> None:
        """E16: another backend is refused while one is in force, and served afterwards."""
        same = self.backend.label == LeaseTableLock.label
        strange = (MemoryLock if same else LeaseTableLock)(self.using, lease=30)
        self._stack.callback(strange.close)
        holder = self.obtain("nightly-report")
        assert strange.obtain("nightly-report") is None
        assert self.backend.prove(holder)
        assert holder.release()
        stranger = self.obtain("nightly-report", strange)
        assert stranger.token > holder.token
        assert self.backend.obtain("nightly-report") is None
        assert strange.prove(stranger)

    def test_holders(self) -> None:
        """The list tells who holds, and what is free."""
        handle = self.obtain("nightly-report")
        self.obtain("yesterday").release()
        rows = sorted(self.backend.holders(), key=lambda row: row.state)
        assert len(rows) == 2
        free, held = rows
        assert (free.resource, free.state) == ("yesterday", LockState.FREE)
        assert (held.resource, held.state) == ("nightly-report", LockState.HELD)
        assert (held.token, held.lock_id) == (handle.token, handle.lock_id)
        assert (held.expires_at is None) == self.backend_class.session_bound
        assert held.host
        assert held.acquired_at is not None

    @applies(on_a_lease)
    def test_holders_tell_what_expired(self) -> None:
        """A lease that has passed and that nobody took over stands as expired."""
        silent = self.make_backend(lease=self.short)
        self.obtain("nightly-report", silent)
        silent.prove_once = no_answer  # type: ignore[method-assign]
        wait_until(
            lambda: [row.state for row in self.backend.holders()] == [LockState.EXPIRED],
            self.takeover,
            "expired",
        )

    @applies(on_a_session)
    def test_holders_tell_what_is_stale(self) -> None:
        """A row whose session is gone stands as stale."""
        handle = self.obtain("nightly-report")
        self.end_session(handle)
        rival = self.make_backend()
        wait_until(lambda: [row.state for row in rival.holders()] == [LockState.STALE], 10, "stale")

    def test_holders_tell_what_could_not_be_verified(self) -> None:
        """When the store may not be looked at, the registry is shown as it is."""
        self.obtain("nightly-report")

        def refuse() -> None:
            raise LockUnavailable("the store gives no answer")

        self.backend.live = refuse  # type: ignore[method-assign, assignment]
        assert [row.state for row in self.backend.holders()] == [LockState.UNVERIFIED]

    def _write_and_fence(self, handle: LockHandle) -> None:
        with transaction.atomic(using=self.using):
            Hold.objects.using(self.using).create(order_key=1, head_id=1)
            handle.fence()
