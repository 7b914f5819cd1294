"""One conditional write and one kept record in every store, through the official clients.

What the suite's servers are asked to prove about themselves before a lock is built on them.
"""

from __future__ import annotations

import abc
import contextlib
import os
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast
from unittest import mock

from tests.servers.azurite import Azurite
from tests.servers.dynalite import Dynalite
from tests.servers.firestore import PROJECT, Firestore
from tests.servers.moto import Moto
from tests.servers.redis import Redis
from tests.servers.secantusdb import SecantusDB

if TYPE_CHECKING:
    from tests.servers import Server

S = TypeVar("S", bound="Server")


class Store(abc.ABC, Generic[S]):
    """A client of its own for one thread; what a client raises for "taken" is False here."""

    def __init__(self, server: S) -> None:
        self.server = server

    def create(self) -> None:
        """Make the table or container that the store needs first, if it is not there."""

    @abc.abstractmethod
    def take(self, name: str, owner: str) -> bool:
        """Whether ``owner`` is the one who wrote the record ``name``, which did not exist."""

    @abc.abstractmethod
    def owner(self, name: str) -> str | None:
        """Who wrote the record, read from the store."""

    def close(self) -> None:
        """Close the client."""


class RedisStore(Store[Redis]):
    def __init__(self, server: Redis) -> None:
        import redis

        super().__init__(server)
        self.client = redis.Redis.from_url(server.url, socket_timeout=10, decode_responses=True)

    def take(self, name: str, owner: str) -> bool:
        return bool(self.client.set(name, owner, nx=True, px=60_000))

    def owner(self, name: str) -> str | None:
        return cast("str | None", self.client.get(name))

    def close(self) -> None:
        self.client.close()


class DynamoDBStore(Store[Dynalite | Moto]):
    table = "harness"

    def __init__(self, server: Dynalite | Moto) -> None:
        import boto3

        super().__init__(server)
        self.client: Any = boto3.session.Session().client(
            "dynamodb",
            endpoint_url=server.url,
            region_name="eu-central-1",
            aws_access_key_id="outbox",
            aws_secret_access_key="outbox",
        )

    def create(self) -> None:
        with contextlib.suppress(self.client.exceptions.ResourceInUseException):
            self.client.create_table(
                TableName=self.table,
                AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                BillingMode="PAY_PER_REQUEST",
            )
        self.client.get_waiter("table_exists").wait(
            TableName=self.table, WaiterConfig={"Delay": 0.1}
        )

    def take(self, name: str, owner: str) -> bool:
        try:
            self.put(name, owner, ConditionExpression="attribute_not_exists(id)")
        except self.client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    def put(self, name: str, owner: str, **options: Any) -> None:
        item = {"id": {"S": name}, "owner": {"S": owner}}
        self.client.put_item(TableName=self.table, Item=item, **options)

    def owner(self, name: str) -> str | None:
        found = self.client.get_item(
            TableName=self.table, Key={"id": {"S": name}}, ConsistentRead=True
        )
        return str(found["Item"]["owner"]["S"]) if "Item" in found else None

    def close(self) -> None:
        self.client.close()


class AzureStore(Store[Azurite]):
    """The record is a lease on a blob that ``create`` made; its id is the owner."""

    shortest: ClassVar[int] = 15

    def __init__(self, server: Azurite) -> None:
        from azure.storage.blob import ContainerClient

        super().__init__(server)
        self.client = ContainerClient.from_connection_string(server.connection_string, "harness")

    def create(self) -> None:
        from azure.core.exceptions import ResourceExistsError

        with contextlib.suppress(ResourceExistsError):
            self.client.create_container()

    def take(self, name: str, owner: str) -> bool:
        from azure.core.exceptions import ResourceExistsError

        with contextlib.suppress(ResourceExistsError):
            self.client.upload_blob(name, b"")
        try:
            self.lease(name, owner)
        except ResourceExistsError:
            return False
        return True

    def lease(self, name: str, owner: str) -> None:
        self.client.get_blob_client(name).acquire_lease(self.shortest, lease_id=owner)

    def owner(self, name: str) -> str | None:
        """The lease's state: Azure tells nobody the id."""
        state = self.client.get_blob_client(name).get_blob_properties().lease.state
        return None if state == "available" else state

    def close(self) -> None:
        self.client.close()


class MongoDBStore(Store[SecantusDB]):
    def __init__(self, server: SecantusDB) -> None:
        from pymongo import MongoClient, WriteConcern

        super().__init__(server)
        self.client = MongoClient[dict[str, Any]](server.url, timeoutMS=10_000)
        concern = WriteConcern("majority", j=True)
        self.locks = self.client.harness.get_collection("locks", write_concern=concern)

    def take(self, name: str, owner: str) -> bool:
        from pymongo.errors import DuplicateKeyError

        try:
            # As a lock does it: only an expired record matches, so a living one collides.
            self.locks.find_one_and_update(
                {"_id": name, "expires": {"$lt": 0}},
                {"$set": {"owner": owner, "expires": 1}},
                upsert=True,
            )
        except DuplicateKeyError:
            return False
        return True

    def owner(self, name: str) -> str | None:
        found = self.locks.find_one({"_id": name})
        return found["owner"] if found else None

    def close(self) -> None:
        self.client.close()


class FirestoreStore(Store[Firestore]):
    def __init__(self, server: Firestore) -> None:
        from google.cloud import firestore

        super().__init__(server)
        with mock.patch.dict(os.environ, FIRESTORE_EMULATOR_HOST=server.host):
            self.client = firestore.Client(PROJECT)

    def take(self, name: str, owner: str) -> bool:
        from google.api_core.exceptions import AlreadyExists

        try:
            self.client.collection("harness").document(name).create({"owner": owner})
        except AlreadyExists:
            return False
        return True

    def owner(self, name: str) -> str | None:
        found = self.client.collection("harness").document(name).get().to_dict()
        return found["owner"] if found else None

    def close(self) -> None:
        self.client.close()  # type: ignore[no-untyped-call]  # typed packages leave it untyped


STORES: dict[str, type[Store[Any]]] = {
    "redis": RedisStore,
    "dynalite": DynamoDBStore,
    "moto": DynamoDBStore,
    "azurite": AzureStore,
    "secantusdb": MongoDBStore,
    "firestore": FirestoreStore,
}
