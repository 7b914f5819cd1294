"""A lease in Redis: one key per resource, written by scripts that run as one step."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from django_outbox_lock.backends.locks.base import Live
from django_outbox_lock.backends.locks.store import Owner, StoreLockBackend
from django_outbox_lock.exceptions import LockUnavailable

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise ImportError(
        "The Redis lock needs redis-py: pip install 'django-outbox-lock[redis]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

# KEYS[1] is the lease; its value begins with the owner's lock id. A take whose answer was lost is
# repeated: it finds its own id and says yes again.
_ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, string.len(ARGV[1])) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2], 'PX', ARGV[3])
return 1
"""
_EXTEND = """
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, string.len(ARGV[1])) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_VACATE = """
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, string.len(ARGV[1])) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
_ID_LENGTH = 32


class RedisLock(StoreLockBackend):
    """``SET`` with ``PX`` for the lease, compare-and-act scripts for renewal and release.

    ``url`` as redis-py takes it (``redis://``, ``rediss://``, ``unix://``); ``timeout`` in seconds
    bounds connecting and each answer. The server's clock runs the lease. A failover or a restart
    without persistence may lose the lease, never a token: the fence is in the database.
    """

    label = "redis"
    extra: ClassVar[str] = "redis"

    def __init__(self, alias: str, *, url: str, timeout: float = 2.0, **options: Any) -> None:
        super().__init__(alias, **options)
        # The client must not repeat a command by itself: a release that was applied and whose
        # answer was lost would come back as "not yours".
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            client_name=f"outboxlock:{alias}",
        )
        self._acquire = self._client.register_script(_ACQUIRE)
        self._extend = self._client.register_script(_EXTEND)
        self._vacate = self._client.register_script(_VACATE)

    def store_key(self, resource: str) -> str:
        return f"outbox-lock:{{{super().store_key(resource)}}}"

    def acquire(self, key: str, owner: Owner) -> bool:
        return self._ask(self._acquire, key, owner.lock_id, _card(owner), self._milliseconds)

    def extend(self, key: str, owner_id: str) -> bool:
        return self._ask(self._extend, key, owner_id, self._milliseconds)

    def vacate(self, key: str, owner_id: str) -> bool:
        return self._ask(self._vacate, key, owner_id)

    def live(self) -> Iterator[Live]:
        with _telling():
            for key in self._client.scan_iter(match="outbox-lock:*", count=1000):
                value = self._client.get(key)
                if value is not None:
                    yield _live(key.decode(), value.decode())

    def disconnect(self) -> None:
        self._client.close()

    @property
    def _milliseconds(self) -> int:
        return int(self.lease * 1000)

    def _ask(self, script: Any, key: str, *arguments: object) -> bool:
        with _telling():
            return bool(script(keys=[key], args=arguments))


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise LockUnavailable(f"Redis gave no answer: {error}") from error


def _card(owner: Owner) -> str:
    fields = asdict(owner)
    del fields["lock_id"]
    return json.dumps(fields)


def _live(key: str, value: str) -> Live:
    card = json.loads(value[_ID_LENGTH:])
    return Live(key, "", card["host"], card["application"], card["pid"])
