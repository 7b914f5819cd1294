"""Rooms on DynamoDB's servers, for the tests of the lock."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from django_outbox_lock.backends.locks.dynamodb import DynamoDBLock
from django_outbox_lock.backends.locks.store import Owner

if TYPE_CHECKING:
    import pytest

    from tests import servers
    from tests.locks.conftest import Make


class Rooms:
    """Makes rooms of one store, each as a process of its own has it; the table is there."""

    def __init__(self, make: Make, server: servers.Server) -> None:
        self._make = make
        self.options = provisioned(server)

    def __call__(self, **changes: Any) -> DynamoDBLock:
        room = self._make(DynamoDBLock, **{**self.options, **changes})
        assert isinstance(room, DynamoDBLock)
        assert room._client  # made now, so that it does not eat up a short lease
        return room


def provisioned(server: servers.Server) -> dict[str, Any]:
    """Options of a room on the server, whose table exists."""
    options: dict[str, Any] = {
        "table": "outbox-locks",
        "region_name": "eu-central-1",
        "endpoint_url": server.url,
        "namespace": uuid.uuid4().hex,
        "timeout": 5.0,
    }
    room = DynamoDBLock("default", **options)
    room.provision()
    room.close()
    return options


def give_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no emulator checks, but the client must have."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "outbox")


def owner() -> Owner:
    """Somebody new who wants the lease."""
    return Owner(uuid.uuid4().hex, "nightly-report")


def item(room: DynamoDBLock) -> dict[str, Any]:
    """The report's item, its numbers as text."""
    answer = room._client.get_item(
        TableName=room.table,
        Key={"id": {"S": room.store_key("nightly-report")}},
        ConsistentRead=True,
    )
    return {name: next(iter(value.values())) for name, value in answer["Item"].items()}
