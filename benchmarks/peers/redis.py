"""Libraries that lock in Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import LEASE, NAME

if TYPE_CHECKING:
    from benchmarks.peers.base import Work


def libraries(url: str) -> dict[str, Work]:
    """Four, and the proof by a script as ours has it."""
    import pottery
    import redis
    import redis_lock
    import sherlock

    client = redis.Redis.from_url(url)

    def redis_py() -> None:
        with client.lock(NAME, timeout=LEASE, blocking=False):
            pass

    def python_redis_lock() -> None:
        with redis_lock.Lock(client, NAME, expire=LEASE):
            pass

    def pottery_redlock() -> None:
        with pottery.Redlock(key=NAME, masters={client}, auto_release_time=LEASE):
            pass

    def sherlock_redis() -> None:
        with sherlock.RedisLock(NAME, client=client, expire=LEASE):
            pass

    return {
        "by redis-py": redis_py,
        "by python-redis-lock": python_redis_lock,
        "by pottery": pottery_redlock,
        "by sherlock": sherlock_redis,
        "one proof": proof(client),
    }


def proof(client: Any) -> Work:
    """A renewal that compares the owner first."""
    client.set("proof", "mine")
    script = client.register_script(
        "if redis.call('GET', KEYS[1]) ~= 'mine' then return 0 end "
        "return redis.call('PEXPIRE', KEYS[1], 60000)"
    )
    return lambda: script(keys=["proof"])


def options(url: str) -> dict[str, Any]:
    """Of our room."""
    return {"url": url, "namespace": "bench"}
