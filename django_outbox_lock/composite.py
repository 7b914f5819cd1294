"""Several resources at once: all of them or none."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from django_outbox_lock import checked, keys
from django_outbox_lock.conf import DEFAULT_ALIAS
from django_outbox_lock.locking import already_entered, locks, refusal
from django_outbox_lock.polling import Polling

if TYPE_CHECKING:
    from types import TracebackType

    from django_outbox_lock.backends.locks.handle import LockHandle


class lock_all:  # noqa: N801 (called like a function)
    """Hold all of ``resources`` for the body of a ``with`` or ``async with``, or none of them.

    Gives a list of their handles, in the order in which they were named. They are obtained in the
    order of their names, so that two callers never wait for each other, and ``timeout`` seconds are
    for all of them together. ``using`` is a database alias.

    Raises what ``lock`` raises: ``LockNotObtained`` tells which of them was busy, and ``LockLost``
    comes at the end, when all of them have been released. Raises ``ValueError`` without a name, for
    one that is named twice, and for what is no name.
    """

    def __init__(self, *resources: str, timeout: float = 0.0, using: str | None = None) -> None:
        self.resources = tuple(keys.canonical_resource(resource) for resource in resources)
        if not resources:
            raise ValueError("lock_all() needs at least one resource.")
        twice = sorted({name for name in self.resources if self.resources.count(name) > 1})
        if twice:
            raise ValueError(f"lock_all() was given {', '.join(map(repr, twice))} more than once.")
        self.timeout = checked.seconds("timeout", timeout)
        self.using = using or DEFAULT_ALIAS
        self._held: contextlib.ExitStack | None = None
        self._aheld: contextlib.AsyncExitStack | None = None

    def __enter__(self) -> list[LockHandle]:
        polling, handles = Polling(self.timeout), {}
        with contextlib.ExitStack() as held:
            for resource in sorted(self.resources):
                left = polling.left
                handle = locks[self.using].obtain(resource, timeout=left)
                if handle is None:
                    raise refusal(self.using, resource, timeout=self.timeout, waited=left)
                try:
                    handles[resource] = held.enter_context(handle)
                except BaseException:  # of a signal's handler
                    handle.release()
                    raise
            for handle in handles.values():
                handle.ensure_held()  # while the others were waited for
            if self._held is not None:
                raise already_entered(self)
            self._held = held.pop_all()
        return [handles[resource] for resource in self.resources]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(kind, error, traceback)

    async def __aenter__(self) -> list[LockHandle]:
        polling, handles = Polling(self.timeout), {}
        backend = await sync_to_async(locks.__getitem__)(self.using)
        async with contextlib.AsyncExitStack() as held:
            for resource in sorted(self.resources):
                left = polling.left
                handle = await backend.aobtain(resource, timeout=left)
                if handle is None:
                    refuse = sync_to_async(refusal)
                    raise await refuse(self.using, resource, timeout=self.timeout, waited=left)
                handles[resource] = await held.enter_async_context(handle)
            for handle in handles.values():
                await sync_to_async(handle.ensure_held)()
            if self._aheld is not None:
                raise already_entered(self)
            self._aheld = held.pop_all()
        return [handles[resource] for resource in self.resources]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        held, self._aheld = self._aheld, None
        if held is not None:
            await held.__aexit__(kind, error, traceback)
