"""The backends of the fault matrix: where each keeps its locks, and what is in its requests."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from django_outbox_lock.backends.locks.azure import AzureBlobLock
from django_outbox_lock.backends.locks.dynamodb import DynamoDBLock
from tests.servers.firestore import PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import Server
    from tests.servers.azurite import Azurite

ROOMS: Final = "django_outbox_lock.backends.locks"
LEASE_ROOM: Final = f"{ROOMS}.lease.LeaseTableLock"


def _by_url(server: Server) -> dict[str, Any]:
    return {"url": server.url, "namespace": uuid.uuid4().hex}


def _dynamodb(server: Server) -> dict[str, Any]:
    options: dict[str, Any] = {
        "table": "outbox-locks",
        "region_name": "eu-central-1",
        "endpoint_url": server.url,
        "namespace": uuid.uuid4().hex,
    }
    room = DynamoDBLock("default", **options)
    room.provision()
    room.disconnect()
    return options


def _azure(server: Server) -> dict[str, Any]:
    options: dict[str, Any] = {
        "connection_string": cast("Azurite", server).connection_string,
        "namespace": uuid.uuid4().hex,
    }
    room = AzureBlobLock("default", **options)
    room.provision()
    room.disconnect()
    return options


def _firestore(_server: Server) -> dict[str, Any]:
    return {"project": PROJECT, "namespace": uuid.uuid4().hex, "collection": uuid.uuid4().hex}


@dataclass(frozen=True)
class Subject:
    """A backend on a server.

    ``place`` gives the room's options for a store; None where the locks are in the database
    itself. ``lease`` is in seconds. ``requests`` tells what is in the request of each step, and
    in no other. ``through`` names a variable in which the client finds the server's address.
    """

    server: str
    room: str
    place: Callable[[Server], dict[str, Any]] | None = None
    lease: float = 2.0
    session: bool = False
    requests: dict[str, bytes] = field(default_factory=dict)
    through: str = ""


_USER_LOCK: Final = {
    "obtain": b"= GET_LOCK(",
    "renew": b"SELECT IS_USED_LOCK(",
    "release": b"RELEASE_LOCK(",
}
_LEASE_MYSQL: Final = {
    "obtain": b"SET `token`",
    "renew": b"SET `expires_at`",
    "release": b"SET `owner`",
}
SUBJECTS: Final = {
    "postgresql": Subject(
        "postgresql",
        f"{ROOMS}.postgresql.PostgreSQLLock",
        session=True,
        requests={
            "obtain": b"SELECT pg_try_advisory_lock",
            "renew": b"pg_is_in_recovery",
            "release": b"pg_advisory_unlock",
        },
    ),
    "mariadb": Subject("mariadb", f"{ROOMS}.mysql.MySQLLock", session=True, requests=_USER_LOCK),
    "mysql": Subject("mysql", f"{ROOMS}.mysql.MySQLLock", session=True, requests=_USER_LOCK),
    "lease-postgresql": Subject(
        "postgresql",
        LEASE_ROOM,
        # Each step is a transaction: without its end the server has done nothing.
        requests=dict.fromkeys(_LEASE_MYSQL, b"COMMIT"),
    ),
    "lease-mariadb": Subject("mariadb", LEASE_ROOM, requests=_LEASE_MYSQL),
    "lease-mysql": Subject("mysql", LEASE_ROOM, requests=_LEASE_MYSQL),
    "redis": Subject("redis", f"{ROOMS}.redis.RedisLock", _by_url),
    "mongodb": Subject("secantusdb", f"{ROOMS}.mongodb.MongoDBLock", _by_url),
    "dynamodb": Subject("dynalite", f"{ROOMS}.dynamodb.DynamoDBLock", _dynamodb),
    "dynamodb-moto": Subject("moto", f"{ROOMS}.dynamodb.DynamoDBLock", _dynamodb),
    "azure": Subject("azurite", f"{ROOMS}.azure.AzureBlobLock", _azure, lease=15.0),
    "firestore": Subject(
        "firestore",
        f"{ROOMS}.firestore.FirestoreLock",
        _firestore,
        lease=3.0,
        through="FIRESTORE_EMULATOR_HOST",
    ),
}
