"""A lock inside Django: transactions, connections, forks, coroutines."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import close_old_connections, connections, transaction
from django.db.transaction import TransactionManagementError

from django_outbox_lock import LockLost, LockNotObtained, LockTimeout, lock, locks, single_instance
from django_outbox_lock.testing.lock_items.base import LockItems, across_processes, applies

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle


class EmbeddingItems(LockItems):
    """What a Django project does round a lock."""

    @applies(lambda cls: cls.inside_atomic)
    def test_inside_a_transaction(self) -> None:
        """Obtaining works, and a refusal leaves the transaction usable (case 035)."""
        with transaction.atomic(using=self.using):
            handle = self.obtain("nightly-report")
            assert self.backend.obtain("nightly-report") is None
            with connections[self.using].cursor() as cursor:
                cursor.execute("SELECT 1")
            assert handle.release()

    @applies(lambda cls: cls.inside_atomic and cls.across_processes)
    def test_the_token_outlives_a_rollback(self) -> None:
        """A transaction that is rolled back takes no token with it."""
        with transaction.atomic(using=self.using):
            first = self.obtain("nightly-report")
            transaction.set_rollback(True, using=self.using)
        assert self.backend.prove(first)
        assert first.release()
        assert self.obtain("nightly-report").token > first.token

    @applies(lambda cls: not cls.inside_atomic)
    def test_refused_inside_a_transaction(self) -> None:
        """An error says so, and nothing is held."""
        with (
            pytest.raises(TransactionManagementError, match="nightly-report"),
            transaction.atomic(using=self.using),
        ):
            self.backend.obtain("nightly-report")
        assert self.obtain("nightly-report").release()

    def test_inside_a_test_case(self) -> None:
        """The block that a ``TestCase`` puts round each test does not count."""
        block = transaction.atomic(using=self.using)
        setattr(block, "_from_testcase", True)  # noqa: B010 (what TestCase itself does)
        with block:
            handle = self.obtain("nightly-report")
            with pytest.raises(TransactionManagementError):
                handle.fence()
            assert handle.release()

    def test_connection_housekeeping(self) -> None:
        """Whatever Django does with the request's connection, the lock is held."""
        settings = connections[self.using].settings_dict
        before = settings["CONN_MAX_AGE"]
        self._stack.callback(settings.__setitem__, "CONN_MAX_AGE", before)
        handle = self.obtain("nightly-report")
        for age in (0, 60, None):
            settings["CONN_MAX_AGE"] = age
            connections[self.using].close()
            connections[self.using].connect()
            close_old_connections()
            assert self.backend.prove(handle), age
        connections.close_all()
        assert self.backend.prove(handle)
        assert handle.release()

    def test_it_cannot_be_pickled(self) -> None:
        """A handle belongs to its process."""
        with pytest.raises(TypeError, match="process"):
            pickle.dumps(self.obtain("nightly-report"))

    @applies(across_processes)
    def test_fork(self) -> None:
        """The child has no part in the parent's lock, cannot end it, and can lock for itself."""
        handle = self.obtain("nightly-report")
        connections.close_all()  # Django's own must not be shared, lock or no lock
        seen = _in_a_child(lambda: self._look_round_in_the_child(handle))
        assert seen == [True, "LockLost", False, None, True]
        assert self.backend.prove(handle)
        assert handle.release()

    def test_coroutines(self) -> None:
        """The twins of ``obtain`` and ``release``."""

        async def scenario() -> list[bool]:
            handle = await self.backend.aobtain("nightly-report")
            assert handle is not None
            busy = await self.backend.aobtain("nightly-report", timeout=0.1)
            first = await self.backend.arelease("nightly-report", handle.lock_id)
            return [busy is None, first, await handle.arelease()]

        assert async_to_sync(scenario)() == [True, True, False]

    def test_a_cancelled_wait_leaves_no_lock(self) -> None:
        """A task that is cancelled while it waits does not obtain later on."""
        holder = self.obtain("nightly-report")

        async def scenario() -> None:
            waiting = asyncio.create_task(self.backend.aobtain("nightly-report", timeout=60))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await sync_to_async(connections.close_all)()

        asyncio.run(scenario())
        assert holder.release()
        assert self.obtain("nightly-report", timeout=10).release()

    def test_a_cancelled_obtain_leaves_no_lock(self) -> None:
        """A task that is cancelled while the store answers gives back what it is given."""
        asked, go_on, real = threading.Event(), threading.Event(), self.backend.take

        def take(resource: str, lock_id: str) -> Any:
            asked.set()
            assert go_on.wait(30)
            return real(resource, lock_id)

        async def scenario() -> None:
            waiting = asyncio.create_task(self.backend.aobtain("nightly-report"))
            await asyncio.to_thread(asked.wait, 30)
            waiting.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await sync_to_async(connections.close_all)()

        self.backend.take = take  # type: ignore[method-assign]
        asyncio.run(scenario())
        assert self.obtain("nightly-report", timeout=30).release()

    def test_lock(self) -> None:
        """``lock`` holds for the body, and says who holds, since when and until when, if not."""
        until = ", session-bound," if self.backend_class.session_bound else r" until [\d:]+,"
        says = rf"nightly-report is held by .*pid \d+.* since [\d: -]+{until} token"
        with self.in_force():
            self._stack.callback(locks.close)
            with lock("nightly-report", using=self.using) as handle:
                assert locks[self.using].prove(handle)
                with pytest.raises(LockNotObtained, match=says) as busy:
                    lock("nightly-report", using=self.using).__enter__()
                assert not isinstance(busy.value, LockTimeout)
                assert busy.value.holder is not None
                assert busy.value.holder.token == handle.token
                with pytest.raises(LockTimeout, match=r"since .* token .* within 0\.1 s"):
                    lock("nightly-report", timeout=0.1, using=self.using).__enter__()
            assert handle.ended

    def test_single_instance(self) -> None:
        """The decorated function runs where the lock is free, and returns None elsewhere."""

        @single_instance("nightly-report", using=self.using)
        def report(depth: int) -> tuple[int, Any]:
            return depth, report(depth + 1)

        with self.in_force():
            self._stack.callback(locks.close)
            assert report(0) == (0, None)
            assert report(1) == (1, None)

    def test_lock_in_coroutines(self) -> None:
        """``async with lock`` and a decorated coroutine function; a loss shows at the end."""

        @single_instance("nightly-report", using=self.using)
        async def report(depth: int) -> tuple[int, Any]:
            return depth, await report(depth + 1)  # type: ignore[misc]

        async def scenario() -> None:
            assert await report(0) == (0, None)  # type: ignore[misc]
            async with lock("nightly-report", using=self.using) as handle:
                with pytest.raises(LockNotObtained):
                    await lock("nightly-report", using=self.using).__aenter__()
                assert not handle.lost
            with pytest.raises(LockLost):
                async with lock("nightly-report", using=self.using) as handle:
                    await sync_to_async(handle.lose)("for the test")

        with self.in_force():
            self._stack.callback(locks.close)
            async_to_sync(scenario)()

    def _look_round_in_the_child(self, handle: LockHandle) -> list[Any]:
        try:
            handle.ensure_held()
            raised = ""
        except LockLost as error:
            raised = type(error).__name__
        own = self.backend.obtain("the child's own")
        return [
            handle.lost,
            raised,
            handle.release(),
            self.backend.obtain("nightly-report"),
            own is not None and own.release(),
        ]


def _in_a_child(function: Any) -> Any:
    """What the function returns in a forked child, by way of JSON."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads, which is the point here
        child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return json.loads(answer or "null")
