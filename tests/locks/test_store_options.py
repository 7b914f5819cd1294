"""Options of the stores that are wrong: refused where they are written, with their names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_outbox_lock.backends.locks.azure import AzureBlobLock
from django_outbox_lock.backends.locks.dynamodb import DynamoDBLock
from django_outbox_lock.backends.locks.firestore import FirestoreLock
from django_outbox_lock.backends.locks.mongodb import MongoDBLock
from django_outbox_lock.backends.locks.redis import RedisLock
from django_outbox_lock.exceptions import InvalidSettings
from django_outbox_lock.handlers import construct

PATH = "OUTBOX_LOCK['default']['LOCK']['OPTIONS']"
RIGHT: dict[type, dict[str, Any]] = {
    AzureBlobLock: {"account_url": "https://outbox.blob.core.windows.net"},
    DynamoDBLock: {"table": "locks"},
    FirestoreLock: {},
    MongoDBLock: {"url": "mongodb://outbox:p%40ss@a.example,b.example/?replicaSet=rs0"},
    RedisLock: {"url": "rediss://outbox:p%40ss@redis.example.com:6379/0"},
}
AZURITE = {"account_url": None, "connection_string": "UseDevelopmentStorage=true"}


def refusal(cls: type, **wrong: Any) -> str:
    with pytest.raises(InvalidSettings) as caught:
        construct(cls, {"namespace": "any", **RIGHT[cls], **wrong}, PATH, "default")
    return str(caught.value)


@pytest.mark.parametrize("cls", RIGHT)
def test_what_is_right_is_taken(cls: type) -> None:
    construct(cls, {"namespace": "any", **RIGHT[cls]}, PATH, "default")


@pytest.mark.parametrize("cls", RIGHT)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("timeout", value) for value in (None, "2", True, 0, -1, float("nan"), float("inf"))),
        *(("lease", value) for value in (None, "60", True, 0.5, float("nan"), float("inf"))),
        ("leave_to_expire", "yes"),
        ("namespace", None),
        ("namespace", 3),
        ("session_using", "nowhere"),
    ],
)
def test_what_every_store_has(cls: type, name: str, value: object) -> None:
    message = refusal(cls, **{name: value})
    assert message.startswith(f"{PATH}: {name}")


@pytest.mark.parametrize(
    ("cls", "wrong", "words"),
    [
        (AzureBlobLock, {"lease": 14}, "lease must be a number of at least 15"),
        (AzureBlobLock, {"lease": 61}, "lease must be a whole number from 15 to 60"),
        (AzureBlobLock, {"lease": 15.5}, "lease must be a whole number from 15 to 60"),
        (AzureBlobLock, {"account_url": None}, "give either connection_string or account_url"),
        (AzureBlobLock, {"connection_string": "any"}, "give either"),
        (AzureBlobLock, {**AZURITE, "connection_string": "junk"}, "Connection string is"),
        (AzureBlobLock, {"account_url": 3}, "account_url must be a str"),
        (AzureBlobLock, {"container": ""}, "container must be a str"),
        (AzureBlobLock, {"credential": 3}, "credential"),
        (DynamoDBLock, {"table": None}, "table must be a str"),
        (DynamoDBLock, {"region_name": ""}, "region_name must be a str"),
        (DynamoDBLock, {"endpoint_url": "localhost:8000"}, "endpoint_url must be a URL"),
        (DynamoDBLock, {"max_clock_skew": -1}, "max_clock_skew must be a number of at least 0"),
        (DynamoDBLock, {"max_clock_skew": "2"}, "max_clock_skew must be"),
        (FirestoreLock, {"project": 3}, "project must be a str"),
        (FirestoreLock, {"database": ""}, "database must be a str"),
        (FirestoreLock, {"collection": None}, "collection must be a str"),
        (MongoDBLock, {"url": None}, "url must be a str"),
        (MongoDBLock, {"url": "http://127.0.0.1"}, "url: .*mongodb://"),
        (MongoDBLock, {"url": "mongodb://h/?nonsense=1"}, "url: Unknown option"),
        (MongoDBLock, {"url": "mongodb://h/?connectTimeoutMS=x"}, "url: connecttimeoutms must"),
        (MongoDBLock, {"database": 3}, "database must be a str"),
        (MongoDBLock, {"collection": ""}, "collection must be a str"),
        (RedisLock, {"url": None}, "url must be a str"),
        (RedisLock, {"url": "http://127.0.0.1"}, "url: .*redis://"),
        (RedisLock, {"url": "redis://h?ssl_cert_reqs=none"}, "url: .*'ssl_cert_reqs'"),
        (RedisLock, {"url": "redis://h?protocol=9"}, "url: protocol must be"),
        (RedisLock, {"url": "redis://h?retry=3&socket_timeout=9"}, "url has retry, socket_timeout"),
        (RedisLock, {"url": "redis://h/shop"}, "url: the database is a number, not '/shop'"),
        (RedisLock, {"cluster": "yes"}, "cluster must be True or False"),
    ],
)
def test_what_one_of_them_has(cls: type, wrong: dict[str, Any], words: str) -> None:
    assert re.search(words, refusal(cls, **wrong))


@pytest.mark.parametrize("cls", [MongoDBLock, RedisLock])
@pytest.mark.parametrize("password", ["pa/ss", "pa?ss", "pa#ss", "pa[ss", "pa/s@s"])
def test_a_password_that_is_not_encoded_is_not_shown(cls: type, password: str) -> None:
    """A parser that stops at its slash takes what is before it for the port, and says so."""
    scheme = RIGHT[cls]["url"].partition(":")[0]
    message = refusal(cls, url=f"{scheme}://outbox:{password}@store.example.com/")
    assert "percent-encoded" in message
    assert not re.search(r"\bpa\b|ss@|s@s", message)
