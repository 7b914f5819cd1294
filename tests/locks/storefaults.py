"""What may happen between a room and its store, the same for every store: to be subclassed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from django_outbox_lock import fence, signals
from django_outbox_lock.exceptions import LockLost, LockUnavailable
from django_outbox_lock.testing.lock_items.base import SLACK
from tests.chaos.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.backends.locks.store import StoreLockBackend
    from tests import servers
    from tests.conftest import WaitUntil
    from tests.locks.conftest import Make


@pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])
class StoreFaults:
    """One room, ``room()``, whose way to the server leads through a proxy, and direct ones."""

    backend_class: ClassVar[type[StoreLockBackend]]
    server_name: ClassVar[str]
    short: ClassVar[float] = 2.0
    requests: ClassVar[dict[str, bytes]]
    """What is in the request of each step, and in no other."""

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        """The room's options that lead to the server."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _scene(self, make: Make, running_server: Callable[[str], servers.Server]) -> Iterator[None]:
        self.server = running_server(self.server_name)
        self.make, self.namespace = make, uuid.uuid4().hex
        self.losses: list[int] = []
        signals.lock_lost.connect(self._hear)
        with Proxy(self.server.port) as self.proxy:
            yield
        signals.lock_lost.disconnect(self._hear)

    def _hear(self, *, token: int, **_: object) -> None:
        self.losses.append(token)

    def direct(self, **options: Any) -> StoreLockBackend:
        """A room of another process, as far as the store can see."""
        given = {"namespace": self.namespace, **self.options_for(self.server), **options}
        room = self.make(self.backend_class, **given)
        assert isinstance(room, self.backend_class)
        return room

    def room(self, **options: Any) -> StoreLockBackend:
        """The room behind the proxy."""
        address = {
            name: self.proxy.through(value) if isinstance(value, str) else value
            for name, value in self.options_for(self.server).items()
        }
        return self.direct(**address, timeout=3.0, **options)

    def test_the_answer_to_a_take_is_lost(self) -> None:
        """The lease was granted, and nobody heard: it is found out, and kept."""
        room = self.room()
        self.proxy.truncate_reply(request=self.requests["acquire"])
        handle = room.obtain("nightly-report")
        assert self.proxy.wait_struck()
        assert handle is not None
        assert self.direct().obtain("nightly-report") is None
        assert handle.release()

    def test_no_answer_to_a_take(self) -> None:
        """The store cannot be reached: an error says so, and nothing is left behind."""
        room = self.room()
        with self.proxy.down(), pytest.raises(LockUnavailable):
            room.obtain("nightly-report")
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert handle.release()

    def test_what_is_missing_is_asked_of_the_store(self) -> None:
        """Nobody says that nothing is missing of a store that does not answer."""
        room = self.room()
        assert room.provision()
        assert room.missing() is None
        with self.proxy.down():
            for ask in (room.missing, room.provision):
                with pytest.raises(LockUnavailable):
                    ask()

    def test_the_answer_to_a_renewal_is_lost(self) -> None:
        """Nobody knows whether it is held, so it is not lost, and the next proof tells."""
        room = self.room()
        handle = room.obtain("nightly-report")
        assert handle is not None
        self.proxy.truncate_reply(request=self.requests["extend"])
        try:
            assert room.renew(handle)  # a client that the server lets repeat has repeated it
        except LockUnavailable:
            assert not handle.lost
        assert self.proxy.wait_struck()
        assert room.renew(handle)
        assert handle.release()
        assert self.losses == []

    def test_the_answer_to_a_release_is_lost(self) -> None:
        """It was held, it is free now, and nobody is told of a loss."""
        room = self.room()
        handle = room.obtain("nightly-report")
        assert handle is not None
        self.proxy.truncate_reply(request=self.requests["vacate"])
        assert handle.release()
        assert self.proxy.wait_struck()
        successor = self.direct().obtain("nightly-report")
        assert successor is not None
        assert successor.release()
        assert self.losses == []

    def test_cut_off_for_good(self, wait_until: WaitUntil) -> None:
        """The holder learns at its deadline, once; another takes over; the fence keeps it out."""
        room, rival = self.room(lease=self.short), self.direct()
        handle = room.obtain("nightly-report")
        assert handle is not None
        with self.proxy.blackhole():
            assert handle.wait_lost(self.short + SLACK)
            successor = rival.obtain("nightly-report", timeout=self.short + SLACK)
        assert successor is not None
        assert successor.token > handle.token
        with pytest.raises(LockLost), fence.held(handle.ticket, using="default"):
            pass
        assert not handle.release()
        wait_until(lambda: self.losses == [handle.token])
        assert rival.prove(successor)
