"""What application code calls to do a job exactly one at a time."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.db import connections

from django_outbox_lock import checked, handlers, keys, process
from django_outbox_lock.conf import DEFAULT_ALIAS, BackendSettings, outbox_aliases, outbox_settings
from django_outbox_lock.exceptions import InvalidSettings, LockNotObtained, LockTimeout
from django_outbox_lock.polling import refuse_hold

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.backends.locks.watched import Callback
    from django_outbox_lock.holder import Holder

logger = logging.getLogger("django_outbox_lock.locks")

_ROOMS = "django_outbox_lock.backends.locks"
LEASE_TABLE = f"{_ROOMS}.lease.LeaseTableLock"
IN_MEMORY = f"{_ROOMS}.memory.MemoryLock"
# By vendor, never by class: a subclass of PostgreSQL's wrapper may have locks that are stubs.
BY_VENDOR = {
    "postgresql": f"{_ROOMS}.postgresql.PostgreSQLLock",
    "mysql": f"{_ROOMS}.mysql.MySQLLock",
    "microsoft": f"{_ROOMS}.microsoft.SQLServerLock",
}
# Options of the base class, which hold for whichever backend the vendor chooses.
COMMON_OPTIONS = frozenset({"namespace", "lease", "session_using"})


class Locks:
    """The lock backends by database alias, made at first use and kept for the process."""

    def __init__(self) -> None:
        self._backends: dict[str, tuple[object, BaseLockBackend]] = {}
        self._mutex = threading.Lock()
        process.in_forked_children(self._reset_mutex)

    def __getitem__(self, alias: str) -> BaseLockBackend:
        """The backend in force for ``alias``.

        Raises ``InvalidSettings`` for wrong settings, or when a backend that was set by hand turns
        out to be unsafe; ``LockUnavailable`` when the database could not be asked.
        """
        settings = outbox_settings(alias)
        database = connections[alias].settings_dict
        made_from = (settings.lock, *(database[key] for key in ("NAME", "HOST", "PORT", "USER")))
        with self._mutex:
            kept = self._backends.get(alias)
            if kept is not None and kept[0] == made_from:
                return kept[1]
            backend = choose(alias, settings.lock)
            if kept is not None:
                kept[1].close()
            self._backends[alias] = (made_from, backend)
            return backend

    def __iter__(self) -> Iterator[str]:
        return iter(outbox_aliases())

    def close(self) -> None:
        """Release what this process holds, close the connections, and choose anew at next use."""
        with self._mutex:
            while self._backends:
                self._backends.popitem()[1][1].close()

    def _reset_mutex(self) -> None:
        self._mutex = threading.Lock()


locks = Locks()


def choose(alias: str, settings: BackendSettings) -> BaseLockBackend:
    """The backend that is set, else the one native to the database if its probe succeeds."""
    backend = build(alias, settings)
    try:
        result = backend.probe()
    except BaseException:
        backend.close()
        raise
    if result.usable:
        return backend
    backend.close()
    if settings.backend is not None:
        raise InvalidSettings(f"{settings.path}['BACKEND'] cannot be used: {result.reason}.")
    logger.warning("The lock of %r is the lease table, because %s.", alias, result.reason)
    return build(alias, BackendSettings(settings.path, LEASE_TABLE, settings.options))


def build(alias: str, settings: BackendSettings) -> BaseLockBackend:
    """The backend of the settings or the vendor, not probed yet; raises ``InvalidSettings``."""
    from django_outbox_lock.backends.locks.base import BaseLockBackend

    path = f"{settings.path}['OPTIONS']"
    if settings.backend is None:
        for name in settings.options:
            if name not in COMMON_OPTIONS:
                meant = handlers.misspelt(name, COMMON_OPTIONS)
                foreign = f" belongs to one backend: set {settings.path}['BACKEND'] too."
                raise InvalidSettings(f"{path}[{name!r}]{meant or foreign}")
    dotted = settings.backend or backend_by_vendor(alias)
    cls = handlers.load(settings.path, dotted, BaseLockBackend)
    if misfit := cls.misfit(alias):
        raise InvalidSettings(f"{settings.path}['BACKEND']: {misfit}")
    return handlers.construct(cls, settings.options, path, alias)


def backend_by_vendor(alias: str) -> str:
    """Dotted path of the lock that is native to the database of ``alias``."""
    connection = connections[alias]
    in_memory = getattr(connection, "is_in_memory_db", None)  # SQLite's alone has it
    if in_memory is not None and in_memory():
        return IN_MEMORY
    return BY_VENDOR.get(connection.vendor, LEASE_TABLE)


class lock:  # noqa: N801 (called like a function)
    """Hold ``resource`` for the body of a ``with`` or ``async with``.

    Raises ``LockNotObtained`` when it is busy, ``LockTimeout`` when it stayed busy for ``timeout``
    seconds, and at the end ``LockLost`` if it was lost meanwhile. ``using`` is a database alias.

    The end waits until ``minimum_hold`` seconds have passed since the lock was obtained; after
    ``maximum_hold`` seconds the lock is given up, as lost. ``on_lost`` and ``on_risk`` are called
    with the handle, each on a thread of its own (see ``LockHandle``). Raises ``ValueError`` or
    ``TypeError`` for a name and for times that are none.
    """

    def __init__(
        self,
        resource: str,
        *,
        timeout: float = 0.0,
        using: str | None = None,
        minimum_hold: float = 0.0,
        maximum_hold: float | None = None,
        on_lost: Callback | None = None,
        on_risk: Callback | None = None,
    ) -> None:
        keys.canonical_resource(resource)
        self.resource = resource
        self.timeout = checked.seconds("timeout", timeout)
        self.using = using or DEFAULT_ALIAS
        refuse_hold(minimum_hold, maximum_hold)
        for name, callback in (("on_lost", on_lost), ("on_risk", on_risk)):
            if callback is not None:
                checked.function(name, callback)
        self.minimum_hold = minimum_hold
        self.maximum_hold = maximum_hold
        self.on_lost = on_lost
        self.on_risk = on_risk
        self._handle: LockHandle | None = None

    def __enter__(self) -> LockHandle:
        handle = locks[self.using].obtain(self.resource, timeout=self.timeout)
        if handle is None:
            raise refusal(self.using, self.resource, timeout=self.timeout)
        try:
            return self._entered(handle)
        except BaseException:  # of a signal's handler: the block is not entered, nor left
            handle.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.__exit__(kind, error, traceback)

    async def __aenter__(self) -> LockHandle:
        backend = await sync_to_async(locks.__getitem__)(self.using)
        handle = await backend.aobtain(self.resource, timeout=self.timeout)
        if handle is None:
            raise await sync_to_async(refusal)(self.using, self.resource, timeout=self.timeout)
        try:
            return self._entered(handle)
        except BaseException:
            await handle.arelease()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.__aexit__(kind, error, traceback)

    def _entered(self, handle: LockHandle) -> LockHandle:
        if self._handle is not None:
            raise already_entered(self)
        handle.hold_at_least(self.minimum_hold)
        if self.maximum_hold is not None:
            handle.hold_at_most(self.maximum_hold)
        if self.on_lost is not None:
            handle.on_lost(self.on_lost)
        if self.on_risk is not None:
            handle.on_risk(self.on_risk)
        self._handle = handle
        return handle


def already_entered(held: object) -> RuntimeError:
    """The first block has lost its lock and is not over: it would release the second one's."""
    kind = type(held).__name__
    return RuntimeError(f"This {kind}() is in a block already: give each block one of its own.")


def refusal(
    using: str, resource: str, *, timeout: float, waited: float | None = None
) -> LockNotObtained:
    """The error that says who holds the resource.

    ``waited`` is how much of the ``timeout`` was spent on this resource; None: all of it.
    """
    from django_outbox_lock import registry

    holder = registry.look_up(using, resource)
    by = holder if holder and holder.lock_id else "somebody else"
    seconds = timeout if waited is None else waited
    after = f" It did not come free within {seconds:g} s." if seconds > 0 else ""
    kind = LockTimeout if timeout > 0 else LockNotObtained
    message = f"{resource} is held by {by}.{after}{_strange(using, resource, holder)}"
    return kind(message, resource=resource, holder=holder)


def _strange(using: str, resource: str, holder: Holder | None) -> str:
    arbiter = locks[using].arbiter(resource)
    if holder is None or not holder.lock_id or holder.backend == arbiter:
        return ""
    return (
        f" That holder was given it by {holder.backend!r} and this process uses {arbiter!r}: "
        "two backends do not shut each other out, so this one waits until that holder is gone."
    )
