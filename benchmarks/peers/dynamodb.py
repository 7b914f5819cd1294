"""Locks in DynamoDB: by the library of that name, and by hand."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import LEASE, MINE, NAME

if TYPE_CHECKING:
    from benchmarks.peers.base import Work

REGION = "eu-central-1"
BY_HAND = "by-hand"


def libraries(url: str) -> dict[str, Work]:
    """python-dynamodb-lock reads, puts and deletes; by hand the read is saved."""
    client = connect(url)
    return {
        "by python-dynamodb-lock": python_dynamodb_lock(url),
        "by hand (put, delete)": by_hand(client),
        "one proof": proof(client),
    }


def connect(url: str) -> Any:
    """A client of the emulator, which checks no credentials, and the table by hand."""
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ[name] = "outbox"
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=url)
    if BY_HAND not in client.list_tables()["TableNames"]:
        client.create_table(
            TableName=BY_HAND,
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        client.get_waiter("table_exists").wait(TableName=BY_HAND, WaiterConfig={"Delay": 1})
    return client


def python_dynamodb_lock(url: str) -> Work:
    """Its own table is made without TTL, which not every emulator has."""
    import boto3
    from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient

    resource = boto3.resource("dynamodb", region_name=REGION, endpoint_url=url)
    if "by-library" not in [table.name for table in resource.tables.all()]:
        names = {"lock_key": "HASH", "sort_key": "RANGE"}
        resource.create_table(
            TableName="by-library",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in names.items()],
            BillingMode="PAY_PER_REQUEST",
        ).wait_until_exists()
    locks = DynamoDBLockClient(resource, table_name="by-library")
    return lambda: locks.acquire_lock(NAME).release()


def by_hand(client: Any) -> Work:
    """An item that is put if none is there or the one there has expired, and then deleted."""

    def once() -> None:
        now = time.time()
        item = {"id": {"S": NAME}, "me": {"S": MINE}, "ends": {"N": str(now + LEASE)}}
        client.put_item(
            TableName=BY_HAND,
            Item=item,
            ConditionExpression="attribute_not_exists(id) OR ends < :now",
            ExpressionAttributeValues={":now": {"N": str(now)}},
        )
        client.delete_item(
            TableName=BY_HAND,
            Key={"id": {"S": NAME}},
            ConditionExpression="me = :me",
            ExpressionAttributeValues={":me": {"S": MINE}},
        )

    return once


def proof(client: Any) -> Work:
    """A renewal that compares the owner."""
    client.put_item(TableName=BY_HAND, Item={"id": {"S": "proof"}, "me": {"S": MINE}})

    def once() -> None:
        client.update_item(
            TableName=BY_HAND,
            Key={"id": {"S": "proof"}},
            UpdateExpression="SET ends = :ends",
            ConditionExpression="me = :me",
            ExpressionAttributeValues={
                ":ends": {"N": str(time.time() + LEASE)},
                ":me": {"S": MINE},
            },
        )

    return once


def options(url: str) -> dict[str, Any]:
    """Of our room, whose table is made."""
    from django_outbox_lock.backends.locks.dynamodb import DynamoDBLock

    place: dict[str, Any] = {
        "table": "ours",
        "region_name": REGION,
        "endpoint_url": url,
        "namespace": "bench",
    }
    room = DynamoDBLock("default", **place)
    room.provision()
    room.close()
    return place
