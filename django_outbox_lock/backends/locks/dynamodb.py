"""A lease in DynamoDB: one item per resource, and a version that the others watch.

DynamoDB has no clock to compare with, and the clients' clocks differ. So every write gives the
item a new version, and who wants the lease takes it over when it has seen one version for as long
as the holder's lease on its own monotonic clock. What was seen is kept between two tries.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from time import time as wall_clock
from typing import TYPE_CHECKING, Any, ClassVar

from django_outbox_lock import checked
from django_outbox_lock.backends.locks.base import Live
from django_outbox_lock.backends.locks.store import GARBLED, Owner, StoreLockBackend
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.steady import time

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, WaiterError
except ImportError as error:
    raise ImportError(
        "The DynamoDB lock needs boto3: pip install 'django-outbox-lock[dynamodb]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from django_outbox_lock.backends.locks.handle import LockHandle

_CLAIM = (
    "SET lock_id = :me, nonce = :nonce, lease_ms = :lease, ends_at_ms = :ends,"
    " resource_name = :resource, leaseholder_group = :group,"
    " host_name = :host, process_id = :pid, app = :app"
    " REMOVE left_to_expire ADD acquisitions :one"
)
_IF_FREE = "attribute_not_exists(lock_id) OR lock_id = :me OR nonce = :over"
_EXTEND = "SET nonce = :nonce, lease_ms = :lease, ends_at_ms = :ends"
_VACATE = "SET nonce = :nonce REMOVE lock_id"
_LEAVE = "SET nonce = :nonce, lease_ms = :lease, left_to_expire = :yes"
_IF_MINE = "lock_id = :me"
# A renewal that comes late must not lengthen the lease that its holder has left.
_IF_HELD = "lock_id = :me AND attribute_not_exists(left_to_expire)"
_NUMBERS = ("lease_ms", "ends_at_ms")
_CARD = (("host", "host_name"), ("application", "app"), ("pid", "process_id"))
_NO_VERSION = "-"
_KEY = {"AttributeName": "id", "KeyType": "HASH"}
_KEY_TYPE = {"AttributeName": "id", "AttributeType": "S"}

_CONDITION_FAILED = "ConditionalCheckFailedException"
_NO_TABLE = "ResourceNotFoundException"
_TABLE_EXISTS = "ResourceInUseException"
_BAD_CREDENTIALS = {
    "ExpiredTokenException",
    "InvalidSignatureException",
    "UnrecognizedClientException",
}
# The client may repeat a request once: a repetition finds its own nonce in the item.
_TRIES = {"mode": "standard", "total_max_attempts": 2}


class _Watch:
    """Which version of an item this process has seen last, and when its lease will have passed."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}

    def note(self, key: str, item: Mapping[str, Any]) -> None:
        if _is_lease(item) and item["nonce"] != self._seen.get(key, (_NO_VERSION,))[0]:
            self._seen[key] = (item["nonce"], time.monotonic() + item["lease_ms"] / 1000)

    def over(self, key: str) -> str:
        """The version that was seen for its whole lease."""
        version, end = self._seen.get(key, (_NO_VERSION, 0.0))
        return version if end <= time.monotonic() else _NO_VERSION


class DynamoDBLock(StoreLockBackend):
    """Conditional ``UpdateItem`` for everything; the items are never deleted.

    ``table`` is made by ``manage.py outbox provision``. ``region_name``, ``endpoint_url`` and the
    credentials are those of boto3; ``timeout`` in seconds bounds connecting and each answer.
    ``namespace`` is the leaseholder group: only processes that share it compete.

    A process that has not watched a dead holder for its whole lease, such as a fresh one that tries
    once, goes by the wall clocks if they say that the lease ended ``max_clock_skew`` seconds ago;
    None forbids it. The default allows for AWS refusing a client that is five minutes off.
    """

    label = "dynamodb"
    extra: ClassVar[str] = "dynamodb"

    def __init__(
        self,
        alias: str,
        *,
        table: str,
        region_name: str | None = None,
        endpoint_url: str | None = None,
        timeout: float = 2.0,
        max_clock_skew: float | None = 600.0,
        **options: Any,
    ) -> None:
        super().__init__(alias, **options)
        if max_clock_skew is not None:
            checked.at_least("max_clock_skew", max_clock_skew, 0)
        checked.positive("timeout", timeout)
        self.table = checked.text("table", table)
        self.max_clock_skew = max_clock_skew
        self._place = {
            "region_name": checked.optional("region_name", region_name),
            "endpoint_url": endpoint_url and checked.url("endpoint_url", endpoint_url),
        }
        self._config = Config(connect_timeout=timeout, read_timeout=timeout, retries=_TRIES)

    def reset(self) -> None:
        super().reset()
        self._opened: Any = None
        self._opening = threading.Lock()
        self._watch = _Watch()

    def acquire(self, key: str, owner: Owner) -> bool:
        claim = self._claim(owner)
        claim["over"] = self._watch.over(key)
        against = self._update(key, _CLAIM, _IF_FREE, claim)
        if against and self._is_long_over(against):
            claim["over"] = against["nonce"]
            against = self._update(key, _CLAIM, _IF_FREE, claim)
        if against:
            self._watch.note(key, against)
        return against is None

    def extend(self, key: str, owner_id: str) -> bool:
        return self._update(key, _EXTEND, _IF_HELD, {"me": owner_id, **self._term()}) is None

    def vacate(self, key: str, owner_id: str) -> bool:
        # If a first try freed it unheard, somebody else may have come before its repetition.
        return self._update(key, _VACATE, _IF_MINE, {"me": owner_id}, once=True) is None

    def drop(self, handle: LockHandle) -> bool:
        if self.leave_to_expire and not self._leave(handle):
            return False
        return super().drop(handle)

    def live(self) -> Iterator[Live]:
        query = {
            "FilterExpression": "leaseholder_group = :group AND attribute_exists(lock_id)",
            "ExpressionAttributeValues": _typed({":group": self.namespace}),
        }
        with self._telling():
            scan = self._client.get_paginator("scan")
            pages = scan.paginate(TableName=self.table, ConsistentRead=True, **query)
            for page in pages:
                for item in map(_plain, page["Items"]):
                    ends = item.get("ends_at_ms")  # to be shown: nothing depends on this clock
                    if checked.is_number(ends) and ends > _wall_clock():
                        yield Live.of(item["id"], {ours: item.get(its) for ours, its in _CARD})

    def disconnect(self) -> None:
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None

    def missing(self) -> str | None:
        """What ``provision`` would have to do; None when all is there."""
        with self._telling():
            try:
                table = self._client.describe_table(TableName=self.table)["Table"]
            except ClientError as error:
                if _code(error) != _NO_TABLE:
                    raise
                return f"the DynamoDB table {self.table!r} does not exist"
        if table["TableStatus"] == "DELETING":
            return f"the DynamoDB table {self.table!r} is being deleted"
        if table["KeySchema"] != [_KEY] or _KEY_TYPE not in table["AttributeDefinitions"]:
            return f"the DynamoDB table {self.table!r} has another key than the string 'id'"
        return None

    def provision(self) -> str:
        """Make the table, on demand, if it is not there; tells what was done."""
        with self._telling():
            try:
                self._client.create_table(
                    TableName=self.table,
                    AttributeDefinitions=[_KEY_TYPE],
                    KeySchema=[_KEY],
                    BillingMode="PAY_PER_REQUEST",
                )
            except ClientError as error:
                if _code(error) != _TABLE_EXISTS:
                    raise
                if wrong := self.missing():
                    raise LockUnavailable(f"It cannot be provisioned: {wrong}.") from error
                done = f"the DynamoDB table {self.table!r} was there"
            else:
                done = f"made the DynamoDB table {self.table!r}"
            usable = self._client.get_waiter("table_exists")  # perhaps another is making it now
            usable.wait(TableName=self.table, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        return done

    # The item.

    def _is_long_over(self, item: Mapping[str, Any]) -> bool:
        # Nobody works under a lease that was left to expire: there no skew does harm.
        skew = 0.0 if "left_to_expire" in item else self.max_clock_skew
        if skew is None or not _is_lease(item):
            return False
        return bool(item["ends_at_ms"] + skew * 1000 <= _wall_clock())

    def _leave(self, handle: LockHandle) -> bool:
        """Note in the item that nobody works under its lease any more, and how long it runs."""
        left = max(0, int((handle.deadline - time.monotonic()) * 1000))
        values = {"me": handle.lock_id, "lease": left, "yes": 1}
        return self._update(handle.store_key, _LEAVE, _IF_MINE, values) is None

    def _claim(self, owner: Owner) -> dict[str, Any]:
        return {
            "me": owner.lock_id,
            "resource": owner.resource,
            "group": self.namespace,
            "host": owner.host,
            "pid": owner.pid,
            "app": owner.application,
            "one": 1,
            **self._term(),
        }

    def _term(self) -> dict[str, int]:
        lease = int(self.lease * 1000)
        return {"lease": lease, "ends": _wall_clock() + lease}

    # The client.

    @property
    def _client(self) -> Any:
        with self._opening:
            if self._opened is None:
                session = boto3.session.Session()
                self._opened = session.client("dynamodb", config=self._config, **self._place)
            return self._opened

    def _update(
        self,
        key: str,
        change: str,
        condition: str,
        values: Mapping[str, Any],
        *,
        once: bool = False,
    ) -> dict[str, Any] | None:
        """Change the item; None when that is done, otherwise the item that was in the way.

        An answer that got lost, or that the client's own repetition hid, is read back: the nonce
        tells whether the change is ours. With ``once`` a repetition that is refused is an error:
        it says nothing about the first try.
        """
        nonce = uuid.uuid4().hex
        named = {f":{name}": value for name, value in values.items()}
        with self._telling():
            try:
                self._client.update_item(
                    TableName=self.table,
                    Key=_typed({"id": key}),
                    UpdateExpression=change,
                    ConditionExpression=condition,
                    ExpressionAttributeValues=_typed({**named, ":nonce": nonce}),
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except (BotoCoreError, ClientError) as error:
                found = self._found(key, error)
                if found.get("nonce") == nonce:
                    return None
                if _code(error) != _CONDITION_FAILED or (once and _is_repetition(error)):
                    raise
                return found
        return None

    def _found(self, key: str, error: Exception) -> dict[str, Any]:
        """The item as it stands after a change that failed or got no answer."""
        if isinstance(error, ClientError):
            answer = error.response
            if "Item" in answer:
                return _plain(answer["Item"])
            status = answer["ResponseMetadata"]["HTTPStatusCode"]
            if _code(error) != _CONDITION_FAILED and status < 500:
                return {}  # refused for another reason
        where = {"TableName": self.table, "Key": _typed({"id": key})}
        return _plain(self._client.get_item(**where, ConsistentRead=True).get("Item", {}))

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError, WaiterError, *GARBLED) as error:
            if _code(error) == _NO_TABLE:
                raise LockUnavailable(
                    f"The DynamoDB table {self.table!r} is missing in the Region "
                    f"{self._client.meta.region_name!r}: run 'outbox provision', or set "
                    "'region_name' to where it is."
                ) from error
            if _code(error) in _BAD_CREDENTIALS:
                self.disconnect()  # the next request looks for them anew: they may be rotated
            raise LockUnavailable(f"DynamoDB failed: {error}") from error


def _code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def _is_repetition(error: Exception) -> bool:
    if not isinstance(error, ClientError):
        return False
    return bool(error.response["ResponseMetadata"]["RetryAttempts"])


def _typed(values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {
        name: {"N": str(value)} if isinstance(value, int) else {"S": value}
        for name, value in values.items()
    }


def _plain(item: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {
        name: _number(value["N"]) if "N" in value else value.get("S")
        for name, value in item.items()
    }


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:  # not written by us
        return float(text)


def _is_lease(item: Mapping[str, Any]) -> bool:
    """Whether it has what a lease of ours has; what others wrote keeps the item, and no more."""
    texts, numbers = (item.get("lock_id"), item.get("nonce")), map(item.get, _NUMBERS)
    return all(isinstance(one, str) for one in texts) and all(map(checked.is_number, numbers))


def _wall_clock() -> int:
    return int(wall_clock() * 1000)
