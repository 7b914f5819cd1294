"""Names become keys here, once and the same way in every process, version and database.

Every function is pure and has golden values in the tests: a change of one of them would let two
versions of an application hold "the same" lock at once, or apply a message twice.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uuid

MAX_RESOURCE_BYTES = 255
SLOTS = 4096
_UNREADABLE = re.compile(r"[^a-z0-9]+")
# A lock is taken again and again under the same name.
_remembered = functools.lru_cache(maxsize=1024)


def canonical_resource(resource: str) -> str:
    """The resource's one spelling: NFC, 1 to 255 bytes of UTF-8, no NUL.

    Raises ``TypeError`` or ``ValueError``, which name the argument ``resource``.
    """
    if not isinstance(resource, str):
        raise TypeError(f"resource must be a str, not {type(resource).__name__}.")
    name = unicodedata.normalize("NFC", resource)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"resource {resource!r} has half of a surrogate pair.") from error
    if not 1 <= size <= MAX_RESOURCE_BYTES:
        raise ValueError(f"resource must have 1 to {MAX_RESOURCE_BYTES} bytes, not {size}.")
    if "\0" in name:
        raise ValueError(f"resource {resource!r} has a NUL character.")
    return name


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()


def _signed(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


def _readable(name: str, length: int) -> str:
    return _UNREADABLE.sub("-", name.lower())[:length].strip("-")


@_remembered
def resource_id(resource: str) -> str:
    """Primary key of the resource's row in the registry: 64 hexadecimal digits."""
    return _digest(resource).hex()


@_remembered
def advisory_key(namespace: str, resource: str) -> int:
    """Signed 64-bit key of a PostgreSQL advisory lock."""
    return _signed(_digest(namespace, resource))


@_remembered
def user_lock_name(namespace: str, resource: str) -> str:
    """Name for MySQL's ``GET_LOCK``: at most 64 characters, lower case, ASCII.

    MySQL takes ``X`` and ``x`` for one lock and MariaDB for two, hence lower case only.
    """
    return f"outbox:{_readable(resource, 16)}:{_digest(namespace, resource).hex()[:40]}"


@_remembered
def applock_name(namespace: str, resource: str) -> str:
    """Resource for SQL Server's ``sp_getapplock``: at most 255 characters.

    Only the first 32 characters are shown by the server's views, so the hash stands inside them.
    """
    return f"ol:{_digest(namespace, resource).hex()[:28]}:{_readable(resource, 64)}"


@_remembered
def store_key(namespace: str, resource: str) -> str:
    """Key for a store outside the database, and for the in-memory lock."""
    return _digest(namespace, resource).hex()


def order_key(topic: str, key: str) -> int:
    """Signed 64-bit number of a (topic, key) pair: what must stay in order."""
    return _signed(_digest(topic, key))


def slot(order: int | None, message_id: uuid.UUID) -> int:
    """Slot (0 to 4095) of a message: the same for all messages of one order key."""
    number = order if order is not None else int.from_bytes(message_id.bytes[-8:], "big")
    return number % SLOTS


def topic_id(topic: str) -> str:
    """Primary key of the topic's row: 64 hexadecimal digits."""
    return _digest(topic).hex()


def entry_hash(consumer: str, key: str) -> str:
    """Unique value of an entry in the processing log: 64 hexadecimal digits."""
    return _digest(consumer, key).hex()


def parking_hash(value: int) -> int:
    """48 bits of a key's or topic's number, for the parked due time."""
    return value & ((1 << 48) - 1)
