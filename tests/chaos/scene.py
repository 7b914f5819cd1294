"""One backend of the fault matrix between its server, a proxy and a rival, and what must hold."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import pytest
from django.db import Error, connections
from django.utils.module_loading import import_string

from django_outbox_lock import fence, signals
from django_outbox_lock.exceptions import LockLost, LockUnavailable
from django_outbox_lock.models import Lock
from tests.chaos.faults import KILL
from tests.servers.database import DatabaseServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle
    from tests.chaos.proxy import Proxy
    from tests.chaos.subjects import Subject
    from tests.conftest import WaitUntil
    from tests.locks.conftest import AddAlias, Make
    from tests.servers import Server

# What a loaded machine may take on top of a documented bound, in seconds.
MARGIN: Final = 3.0
# As many writes as an old holder tries.
WRITES: Final = 3
# Leases of those who are to keep what they hold, in seconds: a loaded machine may stand still for
# longer than the subject's lease, which is as short as those who wait for its end need it.
STEADY: Final = 4.0
UNHURRIED: Final = 15.0


class Scene:
    """``room()`` is behind the proxy; ``rival()`` is another process, with a way of its own."""

    def __init__(
        self, subject: Subject, server: Server, proxy: Proxy, wait_until: WaitUntil
    ) -> None:
        self.subject, self.server, self.proxy = subject, server, proxy
        self.resource = f"job-{uuid.uuid4()}"
        self.losses: list[int] = []
        self.behind = self.direct = "default"
        self._wait_until = wait_until
        self._options: dict[str, Any] = {}
        self._rooms: list[BaseLockBackend] = []
        self._sessions = self.sessions()

    def furnish(self, make: Make, add_alias: AddAlias, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have what rooms need; the registry is on the server itself if that is a database."""
        self._make, self._monkeypatch = make, monkeypatch
        if self.subject.place is None:
            self.direct = self._alias(add_alias, "direct", self.server.port)
            self.behind = self._alias(add_alias, "behind", self.proxy.port)
            self._make_registry()
        else:
            self._options = self.subject.place(self.server)
        signals.lock_lost.connect(self._hear)

    def clear(self, forget_errors: Callable[[], None]) -> None:
        """Close all, and prove that no connection is left.

        Libraries close a connection with the object that nobody refers to any more; errors that
        were kept refer to it, and the last may come only now.
        """
        signals.lock_lost.disconnect(self._hear)
        for room in self._rooms:
            room.close()
        for alias in {self.behind, self.direct} - {"default"}:
            connections[alias].close()

        def alone() -> bool:
            forget_errors()
            return self.proxy.live == 0

        self._wait_until(alone, what="no connection is left")
        self._wait_until(lambda: self.sessions() <= self._sessions, what="no session is left")

    def room(self, **options: Any) -> BaseLockBackend:
        """The room whose way to the server leads through the proxy."""
        through = {
            name: self.proxy.through(value) if isinstance(value, str) else value
            for name, value in self._options.items()
        }
        return self._build(self.behind, self.proxy.port, {**through, **options})

    def rival(self) -> BaseLockBackend:
        """A room of another process, as far as the server can see."""
        options = {**self._options, "lease": max(UNHURRIED, self.subject.lease)}
        return self._build(self.direct, self.server.port, options)

    def steady(self) -> LockHandle:
        """A lock through the proxy that is to be kept."""
        return self.obtain(self.room(lease=max(STEADY, self.subject.lease)))

    def obtain(self, room: BaseLockBackend, timeout: float = 0.0) -> LockHandle:
        handle = room.obtain(self.resource, timeout=timeout)
        assert handle is not None, f"not obtained within {timeout} s"
        return handle

    def crash(self) -> None:
        """SIGKILL to the server; it comes back with what was on its disk."""
        self.server.kill()
        self.server.start()
        if self.subject.place is None:
            connections[self.direct].close()  # Django would use the dead one again

    def sessions(self) -> int:
        """Sessions that a database's server has, apart from the one that asks."""
        if not isinstance(self.server, DatabaseServer):
            return 0
        return len(self.server.execute(KILL[self.server.name][0]))

    # What must hold.

    def kept(self, handle: LockHandle) -> None:
        """No loss: the store says so anew, nobody else gets it, and the release tells."""
        deadline = handle.deadline
        while handle.deadline == deadline:  # until a proof was made
            self._renew(handle)
        assert not handle.lost
        assert self.rival().obtain(self.resource) is None
        self.fenced_write(handle)
        assert handle.release()
        self.settle()
        assert self.losses == []
        assert self.obtain(self.rival()).token == handle.token + 1

    def lost(self, handle: LockHandle, began: float) -> None:
        """The loss is known within the lease, and final."""
        assert handle.wait_lost(handle.backend.lease + MARGIN)
        assert time.monotonic() - began < handle.backend.lease + MARGIN
        self.reopens_nothing(handle)

    def reopens_nothing(self, handle: LockHandle) -> None:
        """A session lock that was lost has no session; nothing holds what its handle does not.

        The watchdog notes the loss first, and then closes the session.
        """
        if self.subject.session:
            session = vars(handle.backend)["_session"]
            self._wait_until(lambda: not session.is_open, what="the session is closed")
            self.settle()
            assert not session.is_open

    def taken_over(self, handle: LockHandle, more: float = 0.0) -> None:
        """Somebody else comes after, ``more`` seconds later than documented at the latest."""
        within = handle.backend.silence * handle.backend.lease + more
        successor = self.obtain(self.rival(), timeout=within + MARGIN)
        self.proxy.heal()  # what is given back in the background need not wait for its time-out
        self.followed(handle, successor)

    def followed(self, handle: LockHandle, successor: LockHandle) -> None:
        """The old holder writes nothing any more, and its loss is told once."""
        assert handle.wait_lost(handle.backend.lease + MARGIN)
        assert successor.token > handle.token
        for _ in range(WRITES):
            with pytest.raises(LockLost):
                self.fenced_write(handle)
        assert handle.release() is False
        self.told_once(handle)
        self.fenced_write(successor)
        assert successor.release()

    def told_once(self, handle: LockHandle) -> None:
        self._wait_until(lambda: self.losses != [], what="the loss is told")
        self.settle()
        assert self.losses == [handle.token]

    def settle(self) -> None:
        """Wait for everything that was to be told or given back on a thread of its own."""
        ours = ("outbox-lock-lost", "outbox-lock-give-up", "outbox-lock-free")
        self._wait_until(
            lambda: not any(thread.name.startswith(ours) for thread in threading.enumerate()),
            what="the threads in the background end",
        )

    def fenced_write(self, handle: LockHandle) -> None:
        with fence.held(handle.ticket, using=self.direct):
            pass

    def _renew(self, handle: LockHandle) -> None:
        """A failure that says nothing is no loss."""
        try:
            assert handle.backend.renew(handle), "it was lost"
        except (LockUnavailable, Error):
            assert not handle.wait_lost(0.05)

    def _build(self, alias: str, port: int, options: dict[str, Any]) -> BaseLockBackend:
        if self.subject.through:
            self._monkeypatch.setenv(self.subject.through, f"127.0.0.1:{port}")
        given = {"lease": self.subject.lease, **options}
        room = self._make(import_string(self.subject.room), alias, **given)
        if self.subject.through:
            assert vars(type(room))["_client"].fget(room)  # it reads the variable now
        self._rooms.append(room)
        return room

    def _alias(self, add_alias: AddAlias, name: str, port: int) -> str:
        assert isinstance(self.server, DatabaseServer)
        user = self.server.superuser
        return add_alias(name, NAME="outbox", HOST="127.0.0.1", PORT=port, USER=user, PASSWORD="")

    def _make_registry(self) -> None:
        connection = connections[self.direct]
        if Lock._meta.db_table not in connection.introspection.table_names():
            with connection.schema_editor() as editor:
                editor.create_model(Lock)

    def _hear(self, *, token: int, **_: object) -> None:
        self.losses.append(token)
