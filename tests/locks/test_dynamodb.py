"""Leases in DynamoDB: on dynalite, and on AWS's own where its jar is given."""

from __future__ import annotations

import os
import runpy
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock.backends.locks import dynamodb
from django_outbox_lock.backends.locks.dynamodb import DynamoDBLock
from django_outbox_lock.holder import LockState
from django_outbox_lock.testing.lock_items.base import in_threads, no_answer
from tests.locks.dynamodbrooms import Rooms, give_credentials, item, owner, provisioned
from tests.locks.stores import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests import servers
    from tests.conftest import WaitUntil
    from tests.locks.conftest import Make

    RunningServer = Callable[[str], servers.Server]

each_server = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.server(name)) for name in ("dynalite", "dynamodb-local")],
)


class Contract(StoreContract):
    backend_class = DynamoDBLock

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return provisioned(server)

    @pytest.fixture(autouse=True)
    def _credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        give_credentials(monkeypatch)


@pytest.mark.server("dynalite")
class TestContract(Contract):
    server_name = "dynalite"


@pytest.mark.server("dynamodb-local")
class TestContractOnDynamoDBLocal(Contract):
    server_name = "dynamodb-local"


if "DYNAMODB_TABLE" in os.environ:

    @pytest.mark.server("sqlite")
    class TestContractOnTheGivenTable(StoreContract):
        """Region, credentials and another endpoint than AWS's are where boto3 looks for them."""

        backend_class = DynamoDBLock

        def place(self, running_server: RunningServer) -> dict[str, Any]:
            options: dict[str, Any] = {"table": os.environ["DYNAMODB_TABLE"], "timeout": 5.0}
            DynamoDBLock("default", namespace="any", **options).provision()
            return options


@pytest.fixture
def rooms(
    make: Make, monkeypatch: pytest.MonkeyPatch, running_server: RunningServer, name: str
) -> Rooms:
    give_credentials(monkeypatch)
    return Rooms(make, running_server(name))


@each_server
def test_one_winner_of_twenty(rooms: Rooms) -> None:
    """Case 067, for a new item and for the lease of a dead holder that all have watched."""
    twenty = [rooms() for _ in range(20)]
    for round_number in range(3):
        key = twenty[0].store_key(f"new-{round_number}")
        won = in_threads([partial(room.acquire, key, owner()) for room in twenty])
        assert won.count(True) == 1
    dead = rooms(lease=1.0)
    for round_number in range(3):
        key = dead.store_key(f"dead-{round_number}")
        assert dead.acquire(key, owner())
        assert not any(in_threads([partial(room.acquire, key, owner()) for room in twenty]))
        time.sleep(1.0)  # the lease that they watch
        won = in_threads([partial(room.acquire, key, owner()) for room in twenty])
        assert won.count(True) == 1


@each_server
def test_a_condition_that_is_always_true_has_many_winners(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the test above."""
    always = "attribute_not_exists(nothing) OR lock_id = :me OR nonce = :over"
    monkeypatch.setattr(dynamodb, "_IF_FREE", always)
    five = [rooms() for _ in range(5)]
    won = in_threads([partial(room.acquire, "key", owner()) for room in five])
    assert won.count(True) == 5


@each_server
def test_the_late_holder_releases_nothing(rooms: Rooms) -> None:
    """Case 063."""
    late_room = rooms(lease=2.0)
    late_room.prove_once = no_answer  # type: ignore[method-assign]
    late = late_room.obtain("nightly-report")
    assert late is not None
    second = rooms().obtain("nightly-report", timeout=10)
    assert second is not None
    assert late.release() is False
    assert late_room.vacate(late.store_key, late.lock_id) is False
    assert rooms().obtain("nightly-report") is None
    assert second.release()


@each_server
def test_tries_that_do_not_wait_take_over(rooms: Rooms, wait_until: WaitUntil) -> None:
    """Case 073, awslabs 42, 44 and 79: what a try has seen is kept for the next one."""
    dead, watcher = rooms(lease=2.0), rooms()
    begin = time.monotonic()
    assert dead.acquire(dead.store_key("nightly-report"), owner())
    handle = wait_until(lambda: watcher.obtain("nightly-report"), 10, "a try that succeeds")
    assert handle is not None
    assert 2.0 <= time.monotonic() - begin < 5.0
    assert handle.release()


@each_server
def test_a_living_holder_is_never_taken_over(rooms: Rooms) -> None:
    """Its version changes under the eyes of those who watch, whatever the wall clocks say."""
    holder = rooms(lease=2.0).obtain("nightly-report")
    assert holder is not None
    watcher = rooms()
    end = time.monotonic() + 4
    while time.monotonic() < end:
        assert watcher.obtain("nightly-report", timeout=0.2) is None
    assert not holder.lost


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that sets this process's wall clock fast or slow, in seconds."""
    wall_clock = dynamodb._wall_clock

    def by(seconds: float) -> None:
        monkeypatch.setattr(dynamodb, "_wall_clock", lambda: wall_clock() + int(seconds * 1000))

    return by


@each_server
def test_a_fresh_process_goes_by_the_wall_clocks(
    rooms: Rooms, set_clock: Callable[[float], None]
) -> None:
    """Only with a margin, and only if it may."""
    dead = rooms()
    key = dead.store_key("nightly-report")
    assert dead.acquire(key, owner())
    assert not rooms(max_clock_skew=0).acquire(key, owner())
    set_clock(dead.lease + 500)
    assert not rooms().acquire(key, owner())
    set_clock(dead.lease + 700)
    assert not rooms(max_clock_skew=None).acquire(key, owner())
    assert rooms().acquire(key, owner())


@each_server
@pytest.mark.parametrize("minutes", [-9, 9])
def test_a_wall_clock_that_is_off(
    rooms: Rooms, set_clock: Callable[[float], None], minutes: int
) -> None:
    """Within what AWS lets pass it changes nothing: neither an early takeover nor a late one."""
    set_clock(minutes * 60)
    dead = rooms(lease=2.0)
    assert dead.acquire(dead.store_key("nightly-report"), owner())
    set_clock(0)
    watcher = rooms()
    assert watcher.obtain("nightly-report") is None
    assert watcher.obtain("nightly-report", timeout=5) is not None


@each_server
def test_left_to_expire(rooms: Rooms, set_clock: Callable[[float], None]) -> None:
    """Nobody gets it before the lease has passed, then even a fresh process does."""
    handle = rooms(leave_to_expire=True).obtain("nightly-report")
    assert handle is not None
    assert handle.release() is True
    others = [rooms(), rooms(leave_to_expire=True)]
    assert [other.obtain("nightly-report") for other in others] == [None, None]
    (shown,) = others[0].holders()
    assert shown.state is LockState.HELD
    assert 0 < int(item(others[0])["lease_ms"]) <= 30_000  # what watchers have to wait for
    set_clock(31)
    assert rooms().obtain("nightly-report") is not None
    assert handle.release() is False


@each_server
def test_a_renewal_that_comes_after_the_leaving(rooms: Rooms) -> None:
    """It was under way when its lock was left, and lets nobody wait longer."""
    room = rooms(leave_to_expire=True)
    handle = room.obtain("nightly-report")
    assert handle is not None
    assert handle.release() is True
    left = item(room)
    assert room.extend(handle.store_key, handle.lock_id) is False
    assert item(room) == left


@each_server
def test_the_item_stays(rooms: Rooms) -> None:
    """It is never deleted: it counts the acquisitions, and tells who was the last."""
    room = rooms()
    for number in (1, 2):
        handle = room.obtain("nightly-report")
        assert handle is not None
        held = item(room)
        assert held["lock_id"] == handle.lock_id
        assert held["acquisitions"] == str(number)
        assert (held["resource_name"], held["leaseholder_group"]) == (
            "nightly-report",
            room.namespace,
        )
        assert handle.release()
        assert "lock_id" not in item(room)
        assert item(room)["process_id"] == str(os.getpid())


@each_server
def test_groups_do_not_meet(rooms: Rooms) -> None:
    """Neither in what they lock nor in what they list."""
    one, two = rooms(), rooms(namespace="another group")
    assert one.acquire(one.store_key("nightly-report"), owner())
    assert two.acquire(two.store_key("nightly-report"), owner())
    assert [live.store_key for live in two.live()] == [two.store_key("nightly-report")]


@each_server
def test_what_somebody_else_has_written_there(rooms: Rooms) -> None:
    """It keeps the item, so nobody gets it; and it is not taken for a holder."""
    room = rooms()
    lease = {"nonce": {"S": "any"}, "lease_ms": {"N": "1"}, "ends_at_ms": {"N": str(2**53)}}
    for foreign in (
        {},
        {"ends_at_ms": {"N": str(2**53)}},
        {**lease, "lease_ms": {"S": "60000"}},
        {**lease, "lease_ms": {"BOOL": True}},
        {**lease, "nonce": {"BOOL": True}},
        {**lease, "lease_ms": {"N": "1e30"}},
    ):
        room._client.put_item(
            TableName=room.table,
            Item={
                "id": {"S": room.store_key("nightly-report")},
                "lock_id": {"S": "theirs"},
                "leaseholder_group": {"S": room.namespace},
                **foreign,
            },
        )
        assert room.obtain("nightly-report") is None
        assert [live.pid for live in room.live()] == [None] * min(1, len(foreign))
    room._client.put_item(
        TableName=room.table,
        Item={
            "id": {"S": room.store_key("nightly-report")},
            "lock_id": {"S": "theirs"},
            "leaseholder_group": {"S": room.namespace},
            **lease,
            "ends_at_ms": {"S": "soon"},
        },
    )
    assert room.obtain("nightly-report") is None
    assert list(room.live()) == []


def test_the_client_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ImportError, match=r"pip install 'django-outbox-lock\[dynamodb\]'"):
        runpy.run_path(dynamodb.__file__)
