"""A lease in Redis: one key per resource, written by scripts that run as one step."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from django_outbox_lock import checked
from django_outbox_lock.backends.locks.base import Live, ProbeResult
from django_outbox_lock.backends.locks.store import GARBLED, Owner, StoreLockBackend
from django_outbox_lock.exceptions import LockUnavailable

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import MasterDownError, ReadOnlyError, RedisClusterException
    from redis.retry import Retry
except ImportError as error:
    raise ImportError(
        "The Redis lock needs redis-py: pip install 'django-outbox-lock[redis]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

# KEYS[1] is the lease; its value begins with the owner's lock id. A key that has lost its end, by a
# tool that moves data, is given one (NX, from Redis 7 on; an older server refuses, and it stays).
_ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, string.len(ARGV[1])) ~= ARGV[1] then
    redis.pcall('PEXPIRE', KEYS[1], ARGV[3], 'NX')
    return 0
end
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
# What a server says that has become a replica. It may leave the connections to it open.
_PRIMARY_NO_LONGER = (ReadOnlyError, MasterDownError)
# What redis-py would read from the URL's query, and would prefer to what we tell it.
_NOT_IN_URL = frozenset(
    {"retry", "retry_on_error", "retry_on_timeout", "socket_connect_timeout", "socket_timeout"}
)


class RedisLock(StoreLockBackend):
    """``SET`` with ``PX`` for the lease, compare-and-act scripts for renewal and release.

    ``url`` as redis-py takes it (``redis://``, ``rediss://``, ``unix://``); with ``cluster`` it is
    that of any node of a cluster. ``timeout`` in seconds bounds connecting and each answer. The
    server's clock runs the lease. A failover or a restart without persistence may lose the lease,
    never a token: the fence is in the database.
    """

    label = "redis"
    extra: ClassVar[str] = "redis"

    def __init__(
        self, alias: str, *, url: str, timeout: float = 2.0, cluster: bool = False, **options: Any
    ) -> None:
        super().__init__(alias, **options)
        self._url = _readable(checked.url("url", url))
        self._timeout = checked.positive("timeout", timeout)
        self._cluster = checked.flag("cluster", cluster)

    def reset(self) -> None:
        super().reset()
        self._opened: Any = None
        self._opening = threading.Lock()

    def store_key(self, resource: str) -> str:
        # A cluster hashes what is in braces: each resource has its own slot.
        return f"{self._prefix}{{{super().store_key(resource)}}}"

    def acquire(self, key: str, owner: Owner) -> bool:
        take = (key, owner.lock_id, _card(owner), self._milliseconds)
        try:
            return self._run(_ACQUIRE, *take)
        except LockUnavailable:
            # Perhaps only the answer got lost: the script says yes to its own id again.
            return self._run(_ACQUIRE, *take)

    def extend(self, key: str, owner_id: str) -> bool:
        return self._run(_EXTEND, key, owner_id, self._milliseconds)

    def vacate(self, key: str, owner_id: str) -> bool:
        return self._run(_VACATE, key, owner_id)

    def live(self) -> Iterator[Live]:
        with _telling():
            for key in self._client.scan_iter(match=f"{self._prefix}*", count=1000):
                value = self._client.get(key)
                if value is not None:
                    yield _live(_text(key), value)

    def missing(self) -> str | None:
        """Nothing ever is; but the server must answer, and let us run scripts on our keys."""
        self.vacate(self.store_key(""), "nobody")
        return None

    def probe(self) -> ProbeResult:
        """Look, where that is allowed, whether the server may evict a lease to make room."""
        result = super().probe()
        policy = self._eviction_policy() if result.usable else ""
        if policy in {"", "noeviction"}:
            return result
        return ProbeResult(
            True,
            f"the Redis server's maxmemory-policy is {policy}: when its memory is full it may drop "
            "a lease that is held",
        )

    def disconnect(self) -> None:
        with self._opening:
            client, self._opened = self._opened, None
        # What a thread in the background is using now it may bring to its end.
        for pool in _pools(client):
            pool.disconnect(inuse_connections=False)

    @property
    def _prefix(self) -> str:
        return f"outbox-lock:{self.space}:"

    @property
    def _milliseconds(self) -> int:
        return int(self.lease * 1000)

    @property
    def _client(self) -> Any:
        with self._opening:
            if self._opened is None:
                client = redis.RedisCluster if self._cluster else redis.Redis
                # The client must not repeat a command by itself: a release that was applied and
                # whose answer was lost would come back as "not yours".
                self._opened = client.from_url(
                    self._url,
                    socket_timeout=self._timeout,
                    socket_connect_timeout=self._timeout,
                    retry=Retry(NoBackoff(), 0),
                    redis_connect_func=self._introduce,
                )
            return self._opened

    def _introduce(self, connection: Any) -> None:
        """Name the connection, for people, unless a proxy, the rights or the alias forbid it."""
        if not self._cluster:  # whose client has done the rest by itself
            connection.on_connect()
        with contextlib.suppress(redis.ResponseError):
            name = ("CLIENT", "SETNAME", f"outboxlock:{self.alias}")
            connection.send_command(*name, check_health=False)
            connection.read_response()

    def _run(self, script: str, key: str, *arguments: object) -> bool:
        with _telling():
            try:
                return int(self._client.eval(script, 1, key, *arguments)) == 1
            except _PRIMARY_NO_LONGER:
                self.disconnect()  # the next request goes where the URL leads by now
                raise

    def _eviction_policy(self) -> str:
        with _telling():
            try:
                return str(self._client.info("memory").get("maxmemory_policy", ""))
            except redis.ResponseError:  # no right to ask, or a proxy that cannot tell
                return ""


def _readable(given: str) -> str:
    """The URL if a connection can be made of it; none is opened for that."""
    parts = urlsplit(given)
    database = "" if parts.scheme == "unix" else parts.path.strip("/")
    if database and not database.isdecimal():  # redis-py would take 0 for it
        raise ValueError(f"url: the database is a number, not {parts.path!r}.")
    misplaced = _NOT_IN_URL.intersection(parse_qs(parts.query))
    if misplaced:
        names = ", ".join(sorted(misplaced))
        raise ValueError(f"url has {names}: timeout is an option, and nothing is repeated.")
    try:
        pool = redis.ConnectionPool.from_url(given)
        pool.connection_class(**pool.connection_kwargs)
    except (redis.RedisError, TypeError, ValueError) as error:
        raise ValueError(f"url: {error}") from error
    return given


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, RedisClusterException, OSError, *GARBLED) as error:
        what = "refused" if isinstance(error, redis.ResponseError) else "gave no answer"
        raise LockUnavailable(f"Redis {what}: {error}") from error


def _pools(client: Any) -> list[redis.ConnectionPool]:
    if isinstance(client, redis.Redis):
        return [client.connection_pool]
    nodes = client.get_nodes() if client else []
    return [node.redis_connection.connection_pool for node in nodes if node.redis_connection]


def _card(owner: Owner) -> str:
    names = ("resource", "host", "pid", "application")
    return json.dumps({name: getattr(owner, name) for name in names})


def _text(answer: bytes | str) -> str:
    """What the URL's ``decode_responses`` may have made a text already."""
    return answer if isinstance(answer, str) else answer.decode()


def _live(key: str, value: bytes | str) -> Live:
    card = None
    with contextlib.suppress(ValueError):  # not written by us: it keeps the key all the same
        card = json.loads(_text(value)[_ID_LENGTH:])
    return Live.of(key, card if isinstance(card, dict) else {})
