"""Answers of DynamoDB that get lost, throttling, and a table that is not there.

No emulator throttles or loses an answer: an HTTP server in between does.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from django_outbox_lock.backends.locks.dynamodb import DynamoDBLock
from django_outbox_lock.exceptions import LockUnavailable
from tests.locks.dynamodbrooms import Rooms, give_credentials, owner
from tests.locks.lossyhttp import EXPIRED, LOST, THROTTLED, UNSENT, LossyHTTP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.backends.locks.store import Owner
    from tests import servers
    from tests.conftest import WaitUntil
    from tests.locks.conftest import Make

    RunningServer = Callable[[str], servers.Server]

# Moto brings the old item in the answer of a condition that failed, as AWS does.
each_server = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.server(name))
        for name in ("dynalite", "moto", "dynamodb-local")
    ],
)


@pytest.fixture
def rooms(
    make: Make, monkeypatch: pytest.MonkeyPatch, running_server: RunningServer, name: str
) -> Rooms:
    give_credentials(monkeypatch)
    return Rooms(make, running_server(name))


@pytest.fixture
def way(running_server: RunningServer, name: str) -> Iterator[LossyHTTP]:
    """A way to the server on which answers get lost."""
    with LossyHTTP(running_server(name).port) as between:
        yield between


def acts(room: DynamoDBLock, key: str, me: Owner) -> list[Callable[[], bool]]:
    """Taking, renewing and ending a lease."""
    return [
        lambda: room.acquire(key, me),
        lambda: room.extend(key, me.lock_id),
        lambda: room.vacate(key, me.lock_id),
    ]


@each_server
@pytest.mark.parametrize("faults", [[LOST], [LOST, LOST], [LOST, UNSENT], [UNSENT], [THROTTLED]])
def test_an_answer_that_got_lost(rooms: Rooms, way: LossyHTTP, faults: list[str]) -> None:
    """Dynamolock 280, KCL 777: repeated by the client or read back, what was done is known."""
    room, me = rooms(endpoint_url=way.url), owner()
    key = room.store_key(me.resource)
    for act in acts(room, key, me):
        way.faults += faults
        assert act() is True
        assert way.faults == []
    assert room.vacate(key, me.lock_id) is False
    assert rooms().acquire(key, owner())


@each_server
def test_somebody_came_before_the_repetition_of_a_release(rooms: Rooms, way: LossyHTTP) -> None:
    """The first try freed it: who released had held it to the end."""
    rival = rooms()
    room = rooms(endpoint_url=way.url)
    handle = room.obtain("nightly-report")
    assert handle is not None
    way.faults += [LOST]
    way.on_lost = lambda: rival.acquire(handle.store_key, owner())
    assert handle.release()
    assert way.faults == []
    assert not rival.acquire(handle.store_key, owner())


@each_server
def test_what_was_not_heard_of_is_unknown(rooms: Rooms, way: LossyHTTP) -> None:
    """Neither busy nor lost: the caller asks again."""
    room, me = rooms(endpoint_url=way.url), owner()
    key = room.store_key(me.resource)
    for act in acts(room, key, me):
        way.faults += [UNSENT, UNSENT]
        with pytest.raises(LockUnavailable, match="DynamoDB failed"):
            act()
        act()


@pytest.mark.parametrize("name", [pytest.param("moto", marks=pytest.mark.server("moto"))])
def test_the_old_item_comes_with_the_refusal(rooms: Rooms, way: LossyHTTP) -> None:
    """One request for a refused try, where the server brings the item (moto, AWS)."""
    key = rooms().store_key("nightly-report")
    assert rooms().acquire(key, owner())
    contender = rooms(endpoint_url=way.url)
    assert not contender.acquire(key, owner())
    assert way.seen == ["UpdateItem"]


@each_server
def test_throttling_is_no_loss(rooms: Rooms, way: LossyHTTP) -> None:
    """Case 069: the proof is made again inside the lease."""
    room, me = rooms(endpoint_url=way.url, lease=4.0), owner()
    key = room.store_key("weekly-report")  # nobody renews it meanwhile
    assert room.acquire(key, me)
    way.faults += [THROTTLED] * 2
    with pytest.raises(LockUnavailable, match="ProvisionedThroughputExceeded"):
        room.extend(key, me.lock_id)
    handle = room.obtain("nightly-report")
    assert handle is not None
    way.faults += [THROTTLED] * 2
    assert not handle.wait_lost(4.5)
    assert way.faults == []
    assert handle.release()


@each_server
def test_credentials_that_expired_are_looked_for_anew(
    rooms: Rooms, way: LossyHTTP, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 reads a profile or the environment once; who rotates them would have to restart."""
    room, me = rooms(endpoint_url=way.url), owner()
    key = room.store_key("nightly-report")
    way.faults += [EXPIRED]
    with pytest.raises(LockUnavailable, match="ExpiredToken"):
        room.acquire(key, me)
    assert "Credential=outbox/" in way.authorization
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "rotated")
    assert room.acquire(key, me)
    assert "Credential=rotated/" in way.authorization


@each_server
def test_a_hanging_server_is_given_up(rooms: Rooms, name: str) -> None:
    """``timeout`` bounds each answer; it is tried twice."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        room = rooms(endpoint_url=f"http://127.0.0.1:{port}", timeout=0.3)
        begin = time.monotonic()
        with pytest.raises(LockUnavailable, match="DynamoDB failed"):
            room.acquire("key", owner())
        assert time.monotonic() - begin < 10


@each_server
def test_the_table_is_missing(rooms: Rooms) -> None:
    """The error says what to run, and running it helps."""
    room = rooms(table=f"locks-{uuid.uuid4().hex}")
    with pytest.raises(
        LockUnavailable, match=f"{room.table}.* the Region 'eu-central-1'.*outbox provision"
    ):
        room.obtain("nightly-report")
    assert room.missing() == f"the DynamoDB table '{room.table}' does not exist"
    assert room.provision() == f"made the DynamoDB table '{room.table}'"
    assert room.missing() is None
    assert room.provision() == f"the DynamoDB table '{room.table}' was there"
    assert room.obtain("nightly-report") is not None


@pytest.mark.server("dynalite")
def test_a_table_that_is_being_made_or_deleted(
    private_server: Callable[..., servers.Server],
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: WaitUntil,
) -> None:
    """It is there, but of no use: provisioning waits for the one and refuses the other."""
    give_credentials(monkeypatch)
    room = Rooms(make, private_server("dynalite", table_delay=1.0))()
    room._client.delete_table(TableName=room.table)
    assert room.missing() == f"the DynamoDB table '{room.table}' is being deleted"
    with pytest.raises(LockUnavailable, match="is being deleted"):
        room.provision()
    wait_until(lambda: "does not exist" in (room.missing() or ""))
    room._client.create_table(
        TableName=room.table,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    assert room.provision() == f"the DynamoDB table '{room.table}' was there"
    assert room.acquire("key", owner())


@each_server
@pytest.mark.parametrize(("key", "kind"), [("name", "S"), ("id", "N")])
def test_a_table_of_another_kind(rooms: Rooms, key: str, kind: str) -> None:
    """It is told, and never taken for the one that is needed."""
    room = rooms(table=f"locks-{uuid.uuid4().hex}")
    room._client.create_table(
        TableName=room.table,
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind}],
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    assert "another key" in (room.missing() or "")
    with pytest.raises(LockUnavailable, match="another key"):
        room.provision()


def test_no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client cannot even be made: unavailable, with boto3's own words."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(LockUnavailable, match="region"):
        DynamoDBLock("default", table="locks").acquire("key", owner())
