"""What the stores outside the database have in common, shown with a real Redis."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.db import connections, transaction

from django_outbox_lock import fence, registry, signals
from django_outbox_lock.backends.locks.redis import RedisLock
from django_outbox_lock.exceptions import LockLost, LockUnavailable
from django_outbox_lock.holder import LockState
from django_outbox_lock.models import Lock
from django_outbox_lock.testing.lock_items.base import SLACK, in_threads
from tests.chaos.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.backends.locks.store import Owner
    from tests import servers
    from tests.conftest import WaitUntil
    from tests.locks.conftest import AddAlias, Make

    Rooms = Callable[..., "RoomWithHooks"]

pytestmark = [
    pytest.mark.server("redis"),
    pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"]),
]

SHORT = 1.0


def nothing() -> None:
    """The hook of whoever does not wait for anything."""


class RoomWithHooks(RedisLock):
    """Something happens between the steps of a take."""

    granted: Callable[[], None] = staticmethod(nothing)
    bumped: Callable[[], None] = staticmethod(nothing)

    def acquire(self, key: str, owner: Owner) -> bool:
        granted = super().acquire(key, owner)
        self.granted()
        return granted

    def _bump(self, resource: str, lock_id: str, seen: int) -> int | None:
        token = super()._bump(resource, lock_id, seen)
        self.bumped()
        return token


@pytest.fixture
def redis_url(running_server: Callable[[str], servers.Server]) -> str:
    return running_server("redis").url


@pytest.fixture
def rooms(make: Make, redis_url: str) -> Rooms:
    namespace = uuid.uuid4().hex

    def build(**options: Any) -> RoomWithHooks:
        given = {"url": redis_url, "namespace": namespace, **options}
        room = make(RoomWithHooks, **given)
        assert isinstance(room, RoomWithHooks)
        return room

    return build


@pytest.fixture
def losses() -> Iterator[list[int]]:
    told: list[int] = []

    def hear(*, token: int, **_: object) -> None:
        told.append(token)

    signals.lock_lost.connect(hear)
    yield told
    signals.lock_lost.disconnect(hear)


def row() -> Any:
    found = registry.holder(connections["default"], "nightly-report")
    assert found is not None
    return found


@pytest.mark.parametrize("was_here_before", [False, True])
def test_a_late_claimant_gives_up(rooms: Rooms, *, was_here_before: bool) -> None:
    """K1, case 065: asleep between grant and bump, it does not fence the true holder off."""
    late, rival = rooms(lease=SHORT), rooms()
    if was_here_before:
        handle = late.obtain("nightly-report")
        assert handle
        handle.release()
    asleep, wake = threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        assert wake.wait(30)

    def come_late() -> LockHandle | None:
        late.granted = sleep
        return late.obtain("nightly-report")

    def overtake() -> LockHandle | None:
        assert asleep.wait(30)
        try:
            return rival.obtain("nightly-report", timeout=SHORT + SLACK)
        finally:
            wake.set()

    came_late, holder = in_threads([come_late, overtake])
    assert came_late is None
    assert holder is not None
    assert (row().token, row().lock_id) == (holder.token, holder.lock_id)
    with fence.held(holder.ticket, using="default"):
        pass
    assert rival.prove(holder)


def test_a_turn_after_others_had_theirs(rooms: Rooms) -> None:
    """A token that was remembered from the last turn is history: the take succeeds all the same."""
    one, two = rooms(), rooms()
    for expected in (1, 2, 3):
        for room in (one, two):
            handle = room.obtain("nightly-report")
            assert handle is not None
            assert handle.release()
        assert row().token == 2 * expected


def test_a_lease_that_passed_while_the_registry_was_asked(rooms: Rooms) -> None:
    """The token is spent, the row is free at once, and nobody is told of a lock."""
    slow = rooms(lease=SHORT)
    slow.bumped = lambda: time.sleep(SHORT + 0.2)
    told: list[object] = []
    signals.lock_obtained.connect(lambda **named: told.append(named), weak=False, dispatch_uid=told)
    try:
        assert slow.obtain("nightly-report") is None
    finally:
        signals.lock_obtained.disconnect(dispatch_uid=told)
    assert told == []
    successor = rooms().obtain("nightly-report", timeout=SLACK)
    assert successor is not None
    assert successor.token == 2


def test_the_store_is_gone_after_the_bump(
    rooms: Rooms, redis_url: str, running_server: Any, losses: list[int], wait_until: WaitUntil
) -> None:
    """It is ours until the lease runs out by itself, as if the store had gone a little later."""
    with Proxy(running_server("redis").port) as proxy:
        # The grant, the bump and a proof in vain have to be done within the lease.
        room = rooms(url=proxy.through(redis_url), lease=3 * SHORT, timeout=2.0)

        def cut() -> None:
            proxy.down()

        room.bumped = cut
        handle = room.obtain("nightly-report")
        assert handle is not None
        assert handle.wait_lost(3 * SHORT + SLACK)
        successor = rooms().obtain("nightly-report", timeout=3 * SHORT + SLACK)
        assert successor is not None
        assert successor.token == 2
        wait_until(lambda: losses == [handle.token])


def test_a_store_that_forgets_after_the_grant(
    rooms: Rooms, redis_url: str, losses: list[int], wait_until: WaitUntil
) -> None:
    """Decision 10: the first proof comes early and finds it out, whatever the lease."""
    room = rooms(lease=600)

    def forget() -> None:
        redis.Redis.from_url(redis_url).delete(room.store_key("nightly-report"))

    room.granted = forget
    handle = room.obtain("nightly-report")
    assert handle is not None
    assert handle.wait_lost(room.first_proof + SLACK)
    wait_until(lambda: losses == [handle.token])


def test_a_rival_after_a_store_that_forgot(rooms: Rooms, redis_url: str) -> None:
    """It gets a newer token, and the fence keeps the forgotten holder out at once."""
    room, rival = rooms(), rooms()
    found: list[LockHandle | None] = []

    def overtake() -> None:
        redis.Redis.from_url(redis_url).delete(room.store_key("nightly-report"))
        found.append(rival.obtain("nightly-report"))

    room.bumped = overtake
    late = room.obtain("nightly-report")
    [holder] = found
    assert late is not None
    assert holder is not None
    assert holder.token > late.token
    with pytest.raises(LockLost), fence.held(late.ticket, using="default"):
        pass
    with fence.held(holder.ticket, using="default"):
        pass


def test_left_to_expire(rooms: Rooms) -> None:
    """A release ends the renewal only: until the lease is over nobody enters, whoever asks."""
    room, rival = rooms(lease=2.0, leave_to_expire=True), rooms()
    begin = time.monotonic()
    handle = room.obtain("nightly-report")
    assert handle is not None
    assert handle.release()
    assert handle.ended
    assert room.obtain("nightly-report") is None
    assert [held.state for held in rival.holders()] == [LockState.HELD]
    successor = rival.obtain("nightly-report", timeout=2 + SLACK)
    assert successor is not None
    assert time.monotonic() - begin >= 1.9
    assert successor.token > handle.token


def test_left_to_expire_after_a_loss(
    rooms: Rooms, losses: list[int], wait_until: WaitUntil
) -> None:
    """Leaving it does not hide that it was lost meanwhile."""
    room = rooms(leave_to_expire=True)
    handle = room.obtain("nightly-report")
    assert handle is not None
    Lock.objects.update(token=handle.token + 1, owner="f" * 32)
    assert not handle.release()
    wait_until(lambda: losses == [handle.token])


def test_the_row_is_busy_at_renewal(rooms: Rooms) -> None:
    """A fenced transaction that takes its time does not cost the lock."""
    room = rooms()
    handle = room.obtain("nightly-report")
    assert handle is not None
    with fence.held(handle.ticket, using="default"):
        assert in_threads([lambda: room.renew(handle)]) == [True]
    assert room.renew(handle)


def test_a_busy_row_at_obtain(rooms: Rooms) -> None:
    """The wait for it is bounded, and the store's lease is given back."""
    room, holder = rooms(), rooms()
    first = holder.obtain("nightly-report")
    assert first is not None
    assert first.release()
    with transaction.atomic():
        Lock.objects.update(application="busy")
        begin = time.monotonic()
        assert in_threads([lambda: room.obtain("nightly-report")]) == [None]
        assert time.monotonic() - begin < 2 + SLACK
    second = holder.obtain("nightly-report", timeout=SLACK)
    assert second is not None


class TestRegistryThroughAProxy:
    """The registry's own connection leads through a proxy; Django's does not."""

    pytestmark = [pytest.mark.server("postgresql")]

    @pytest.fixture
    def proxy(self, server: servers.Server) -> Iterator[Proxy]:
        with Proxy(server.port) as proxy:
            yield proxy

    @pytest.fixture
    def room(self, rooms: Rooms, add_alias: AddAlias, proxy: Proxy) -> RoomWithHooks:
        return rooms(session_using=add_alias("proxied", HOST="127.0.0.1", PORT=proxy.port))

    def test_the_registry_is_gone_at_renewal(
        self, room: RoomWithHooks, proxy: Proxy, losses: list[int]
    ) -> None:
        """Nobody knows whether the row is ours, so the lock is not lost, and it comes back."""
        handle = room.obtain("nightly-report")
        assert handle is not None
        with proxy.down(), pytest.raises(LockUnavailable):
            room.renew(handle)
        assert not handle.lost
        assert room.renew(handle)
        assert handle.release()
        assert losses == []

    def test_the_registry_is_gone_at_release(
        self, room: RoomWithHooks, rooms: Rooms, proxy: Proxy, losses: list[int]
    ) -> None:
        """The store knows that it was held; the next holder takes the row over."""
        handle = room.obtain("nightly-report")
        assert handle is not None
        with proxy.down():
            assert handle.release()
        successor = rooms().obtain("nightly-report")
        assert successor is not None
        assert successor.token > handle.token
        assert losses == []

    def test_the_answer_to_the_bump_is_lost(self, room: RoomWithHooks, proxy: Proxy) -> None:
        """One token is spent in vain; the take goes on from there."""
        first = room.obtain("nightly-report")
        assert first is not None
        assert first.release()
        proxy.truncate_reply(request=b'SET "token"')
        handle = room.obtain("nightly-report")
        assert proxy.wait_struck()
        assert handle is not None
        assert (handle.token, row().lock_id) == (first.token + 2, handle.lock_id)
        assert room.prove(handle)

    def test_a_session_that_died_of_idleness(self, room: RoomWithHooks, proxy: Proxy) -> None:
        first = room.obtain("nightly-report")
        assert first is not None
        assert first.release()
        assert proxy.cut() == 1
        second = room.obtain("nightly-report")
        assert second is not None
        assert second.token > first.token
