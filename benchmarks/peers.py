"""Obtain and release against the best known Python libraries for the same store, in one run.

The others only lock; ours also fences. So the budget is the fastest library's pair, one durable
UPDATE of a row for the bump of the token, one for the free (which may be less durable), and one
proof for a store outside the database: once as the sum of what each takes in a loop of its own, and
once *together*, one after the other in one loop, as they would be used. (A statement that follows a
wait for the disk takes longer than one in a loop of its like.) Rounds alternate; medians,
microseconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks import project
from benchmarks.locks import pair
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Work = Callable[[], object]

STORES = ("postgresql", "mariadb", "mysql", "redis")
NAME = "benchmark"
ALLOWED = 1.1


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, each store in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args(arguments)
    if options.store:
        measure(options.store, options.rounds, options.count)
        return
    for store in STORES:
        numbers = ["--rounds", str(options.rounds), "--count", str(options.count)]
        own = [sys.executable, "-m", "benchmarks.peers", "--store", store]
        subprocess.run([*own, *numbers], check=True)


def measure(store: str, rounds: int, count: int) -> None:
    """Print the lines of one store."""
    database = servers.get("postgresql" if store == "redis" else store)
    with project.database_url(database) as url:
        project.set_up(url)
        from testproject.shop.models import Order

        Order.objects.create(number="one", total=1)
        with project.database_url(servers.get("redis")) as redis_url:
            writes, libraries = WRITES[store](), LIBRARIES[store](redis_url)
            steps = [once for name, once in {**writes, **libraries}.items() if is_step(name)]
            together = {
                f"together {name}": in_turn(once, steps)
                for name, once in libraries.items()
                if not is_step(name)
            }
            work = {**writes, **libraries, **together, **ours(store, redis_url)}
            report(store, time_all(work, rounds, count))


def is_step(name: str) -> bool:
    """Whether it is a part of what ours does beyond locking."""
    return name.startswith("one ")


def in_turn(library: Work, steps: Sequence[Work]) -> Work:
    """A library's pair and then each step."""

    def once() -> None:
        library()
        for step in steps:
            step()

    return once


def time_all(work: dict[str, Work], rounds: int, count: int) -> dict[str, float]:
    """The median of each, in microseconds for one call; one round is thrown away."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, once in work.items():
            took = project.seconds(lambda once=once: [once() for _ in range(count)])  # type: ignore[misc]
            if number:
                times[name].append(took / count * 1e6)
    return {name: project.median(values) for name, values in times.items()}


def report(store: str, medians: dict[str, float]) -> None:
    """Each figure, then the budget and how much of it ours takes."""
    libraries = {name: value for name, value in medians.items() if name.startswith("by ")}
    steps = {name: value for name, value in medians.items() if is_step(name)}
    summed = min(libraries.values()) + sum(steps.values())
    together = min(value for name, value in medians.items() if name.startswith("together "))
    print(f"\n{store}")
    for name, value in medians.items():
        print(f"  {name:32}{value:>9,.0f} µs")
    for name, budget in (("budget, summed", summed), ("budget, together", together)):
        ratio = medians["ours"] / budget
        print(f"  {name:32}{budget:>9,.0f} µs, ours takes {ratio:.2f} of it (allowed {ALLOWED})")


def postgresql_writes() -> dict[str, Work]:
    from django.db import connection

    def loose() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE shop_order SET total = total + 1 WHERE number = 'one' "
                "AND set_config('synchronous_commit', 'off', true) IS NOT NULL"
            )

    return {"one durable UPDATE": update, "one less durable UPDATE": loose}


def mysql_writes() -> dict[str, Work]:
    return {"one durable UPDATE": update, "one UPDATE for the free": update}


def redis_writes() -> dict[str, Work]:
    return {**postgresql_writes()}


def update() -> None:
    """One durable single-row UPDATE through Django's cursor, in autocommit."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("UPDATE shop_order SET total = total + 1 WHERE number = 'one'")


def postgresql_libraries(redis_url: str) -> dict[str, Work]:
    import pglock

    def django_pglock() -> None:
        with pglock.advisory(NAME, timeout=0):
            pass

    return {"by django-pglock": django_pglock}


def mysql_libraries(redis_url: str) -> dict[str, Work]:
    from django_mysql.locks import Lock

    def django_mysql() -> None:
        with Lock(NAME, acquire_timeout=0):
            pass

    return {"by django-mysql": django_mysql}


def redis_libraries(redis_url: str) -> dict[str, Work]:
    import pottery
    import redis
    import redis_lock

    client = redis.Redis.from_url(redis_url)
    client.set("proof", "mine")
    script = client.register_script(
        "if redis.call('GET', KEYS[1]) ~= 'mine' then return 0 end "
        "return redis.call('PEXPIRE', KEYS[1], 60000)"
    )

    def redis_py() -> None:
        with client.lock(NAME, timeout=60, blocking=False):
            pass

    def python_redis_lock() -> None:
        with redis_lock.Lock(client, NAME, expire=60):
            pass

    def pottery_redlock() -> None:
        with pottery.Redlock(key=NAME, masters={client}, auto_release_time=60):
            pass

    return {
        "by redis-py": redis_py,
        "by python-redis-lock": python_redis_lock,
        "by pottery": pottery_redlock,
        "one proof": lambda: script(keys=["proof"]),
    }


def ours(store: str, redis_url: str) -> dict[str, Work]:
    """The backend of this package for the store."""
    from django_outbox_lock import locking
    from django_outbox_lock.conf import BackendSettings

    dotted, options = None, {}
    if store == "redis":
        dotted = "django_outbox_lock.backends.locks.redis.RedisLock"
        options = {"url": redis_url, "namespace": "bench"}
    backend = locking.build("default", BackendSettings("bench", dotted, options))
    return {"ours": lambda: pair(backend, 1)}


WRITES: dict[str, Callable[[], dict[str, Work]]] = {
    "postgresql": postgresql_writes,
    "mariadb": mysql_writes,
    "mysql": mysql_writes,
    "redis": redis_writes,
}
LIBRARIES: dict[str, Callable[[str], dict[str, Work]]] = {
    "postgresql": postgresql_libraries,
    "mariadb": mysql_libraries,
    "mysql": mysql_libraries,
    "redis": redis_libraries,
}


if __name__ == "__main__":
    main()
