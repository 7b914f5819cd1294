"""The rooms of the virtual world, the registry behind them, and rooms that are wrong on purpose."""

from __future__ import annotations

import contextlib
import sqlite3
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.db import OperationalError, connections

from django_outbox_lock import fence, fence_sql, signals
from django_outbox_lock.backends.locks import base, handle, keeper, lease, store, watched
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.backends.locks.store import StoreLockBackend
from django_outbox_lock.clock import ServerTime
from django_outbox_lock.models import Hold, Lock
from tests.locks.virtual_world import LEASE, Threading, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Expression

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.backends.locks.store import Owner
    from django_outbox_lock.dedicated import LockSession

MODULES = (base, handle, keeper, watched)


class Busy(OperationalError):
    """Somebody else has the row for longer than the wait; known by SQLite's number for it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.__cause__ = sqlite3.OperationalError(message)
        self.__cause__.sqlite_errorcode = sqlite3.SQLITE_BUSY


class Leases:
    """The pure store: leases by key, on a clock that nobody sets."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leases: dict[str, tuple[str, float]] = {}

    def owner(self, key: str) -> str | None:
        lock_id, until = self._leases.get(key, ("", 0.0))
        return lock_id if until > self._world.now else None

    def acquire(self, key: str, lock_id: str, lease: float) -> bool:
        if self.owner(key) not in {None, lock_id}:
            return False
        self._leases[key] = (lock_id, self._world.now + lease)
        return True

    def extend(self, key: str, lock_id: str, lease: float) -> bool:
        return self.owner(key) == lock_id and self.acquire(key, lock_id, lease)

    def vacate(self, key: str, lock_id: str) -> bool:
        return self.owner(key) == lock_id and self._leases.pop(key) is not None

    def forget(self) -> None:
        """A restart without persistence."""
        self._leases.clear()


class VirtualStore(StoreLockBackend):
    """The room of the pure store; the way to it has the world's faults."""

    label = "virtual"
    extra: ClassVar[str] = ""
    seams: ClassVar[dict[str, tuple[str, ...]]] = {
        "obtain": ("acquire", "bump", "extend", "current_token"),
        "renew": ("extend", "touch"),
        "release": ("vacate", "free"),
    }

    def __init__(self, world: World, leases: Leases) -> None:
        self.world, self.leases = world, leases
        super().__init__("default", namespace="virtual", lease=LEASE)
        self._registry = cast("LockSession", RegistrySession())

    def live(self) -> list[base.Live]:
        return []

    def acquire(self, key: str, owner: Owner) -> bool:
        return self._reach("acquire", lambda: self.leases.acquire(key, owner.lock_id, self.lease))

    def extend(self, key: str, owner_id: str) -> bool:
        return self._reach("extend", lambda: self.leases.extend(key, owner_id, self.lease))

    def vacate(self, key: str, owner_id: str) -> bool:
        return self._reach("vacate", lambda: self.leases.vacate(key, owner_id))

    def _reach(self, seam: str, apply: Callable[[], bool]) -> bool:
        return self.world.call(seam, apply)


class RegistrySession:
    """Stands for ``LockSession``: the virtual world has one connection only."""

    is_open = True

    @contextlib.contextmanager
    def use(self, timeout: float) -> Iterator[BaseDatabaseWrapper]:
        yield connections["default"]

    def close_if_unused(self) -> None:
        """Nothing to close."""


class BlindRelease(VirtualStore):
    """Wrong: frees the lease of whoever has it."""

    def vacate(self, key: str, owner_id: str) -> bool:
        owner = self.leases.owner(key)
        return self._reach("vacate", lambda: self.leases.vacate(key, owner or ""))


class BlindBump(VirtualStore):
    """Wrong: bumps the token whatever it is by now."""

    def _bump(self, resource: str, lock_id: str, seen: int) -> int | None:
        row, claim = connections["default"], self.claim(resource, lock_id)
        return fence.bump(row, claim)


class VirtualLeaseTable(LeaseTableLock):
    """The lease table itself; its faults are the fence's."""

    seams: ClassVar[dict[str, tuple[str, ...]]] = {
        "obtain": ("bump",),
        "renew": ("touch",),
        "release": ("free",),
    }

    def __init__(self, world: World, leases: Leases) -> None:
        self.world = world
        super().__init__("default", lease=LEASE)


class LateDeadline(VirtualLeaseTable):
    """Wrong: the local deadline runs from the answer."""

    def _prove(self, handle: LockHandle) -> float | None:
        return super()._prove(handle) and self.world.now + self.lease


@contextlib.contextmanager
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[BaseDatabaseWrapper]:
    """``connections["default"]`` leads to an SQLite database in memory with the tables needed."""
    before = connections["default"]
    settings = {**before.settings_dict, "NAME": ":memory:", "ATOMIC_REQUESTS": False}
    connection = type(before)(settings, alias="default")
    connections["default"] = connection
    monkeypatch.setattr(fence_sql, "_compiled", {})
    monkeypatch.setattr(ServerTime, "as_sqlite", _virtual_clock)
    try:
        with connection.schema_editor() as editor:
            editor.create_model(Lock)
            editor.create_model(Hold)
        yield connection
    finally:
        connections["default"] = before
        connection.connection.close()  # Django itself never closes a database in memory


def _virtual_clock(self: Expression, compiler: object, connection: object) -> tuple[str, tuple[()]]:
    return "virtual_now()", ()


def enter(world: World, connection: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the real classes run in the world, with empty tables."""
    Hold.objects.all().delete()
    Lock.objects.all().delete()
    connection.connection.create_function("virtual_now", 0, world.server_now)
    for module in MODULES:
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=world.monotonic))
    for module in (base, handle, lease, store, watched):
        monkeypatch.setattr(module, "in_background", world.in_background)
    monkeypatch.setattr(keeper, "threading", Threading(world))
    _pass_faults(world, monkeypatch)


def _pass_faults(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **named: world.call(name, lambda: real(*args, **named))

    def bump(connection: Any, claim: fence.Claim, expected: int | None = None) -> int | None:
        token: int | None = _REAL.bump(connection, claim, expected)
        if token is not None:
            world.bumped(token, claim.lock_id)
        return token

    monkeypatch.setattr(fence, "bump", faulty("bump", bump))
    for name in ("touch", "free", "current_token"):
        monkeypatch.setattr(fence, name, faulty(name, getattr(_REAL, name)))


_REAL = SimpleNamespace(
    bump=fence.bump, touch=fence.touch, free=fence.free, current_token=fence.current_token
)


@contextlib.contextmanager
def hearing(world: World) -> Iterator[None]:
    """Note each loss that is signalled."""

    def hear(*, handle: LockHandle, **named: object) -> None:
        world.losses.append(handle.lock_id)

    signals.lock_lost.connect(hear)
    try:
        yield
    finally:
        signals.lock_lost.disconnect(hear)
