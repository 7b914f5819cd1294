"""Obtain and release against the best known Python libraries for the same store, in one run.

The others only lock; ours also fences. So the budget is the fastest library's pair, one durable
UPDATE of a row for the bump of the token, one for the free (which may be less durable), and one
proof for a store outside the database: once as the sum of what each takes in a loop of its own, and
once *together*, one after the other in one loop, as they would be used. (A statement that follows a
wait for the disk takes longer than one in a loop of its like.) Rounds alternate; medians,
microseconds. With ``--requests`` a relay counts how often each waits for an answer instead.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks import project
from benchmarks.locks import pair
from benchmarks.peers import azure, databases, dynamodb, firestore, mongodb, redis
from benchmarks.peers.base import NAME, Peers, is_step, other_writes, postgresql_writes
from benchmarks.relay import Relay
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.peers.base import Work
    from tests.servers import Server

ALLOWED = 1.1
COUNTED = 10
ROOMS = "django_outbox_lock.backends.locks"
LEASE_TABLE = f"{ROOMS}.lease.LeaseTableLock"
STORES = {
    "postgresql": Peers("postgresql", postgresql_writes, databases.postgresql),
    "mariadb": Peers("mariadb", other_writes, databases.mysql),
    "mysql": Peers("mysql", other_writes, databases.mysql),
    "redis": Peers(
        "postgresql",
        postgresql_writes,
        redis.libraries,
        "redis",
        room=f"{ROOMS}.redis.RedisLock",
        options=redis.options,
    ),
    "dynamodb": Peers(
        "postgresql",
        postgresql_writes,
        dynamodb.libraries,
        "dynalite",
        room=f"{ROOMS}.dynamodb.DynamoDBLock",
        options=dynamodb.options,
    ),
    "azure": Peers(
        "postgresql",
        postgresql_writes,
        azure.libraries,
        "azurite",
        address="connection_string",
        room=f"{ROOMS}.azure.AzureBlobLock",
        options=azure.options,
    ),
    "mongodb": Peers(
        "postgresql",
        postgresql_writes,
        mongodb.libraries,
        "secantusdb",
        room=f"{ROOMS}.mongodb.MongoDBLock",
        options=mongodb.options,
    ),
    "firestore": Peers(
        "postgresql",
        postgresql_writes,
        firestore.libraries,
        "firestore",
        address="host",
        room=f"{ROOMS}.firestore.FirestoreLock",
        options=firestore.options,
    ),
    "lease-postgresql": Peers(
        "postgresql",
        postgresql_writes,
        databases.table,
        room=LEASE_TABLE,
        apps=databases.TABLE_APPS,
    ),
    "lease-sqlite": Peers(
        "sqlite",
        other_writes,
        databases.sqlite_table,
        room=LEASE_TABLE,
        apps=databases.TABLE_APPS,
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, each store in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--requests", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args(arguments)
    if options.store and options.requests:
        count_requests(options.store)
    elif options.store:
        measure(options.store, options.rounds, options.count)
    else:
        measure_all(options.rounds, options.count)


def measure_all(rounds: int, count: int) -> None:
    """Each store that can be had."""
    for store, peers in STORES.items():
        found = [server for server in servers_of(peers) if server is not None]
        if missing := next(filter(None, (server.missing() for server in found)), None):
            print(f"\n{store}\n  not measured: {missing}", flush=True)
            continue
        own = [sys.executable, "-m", "benchmarks.peers", "--store", store]
        subprocess.run([*own, "--rounds", str(rounds), "--count", str(count)], check=True)
        subprocess.run([*own, "--requests"], check=True)


def measure(store: str, rounds: int, count: int) -> None:
    """Print the lines of one store."""
    peers = STORES[store]
    database, outside = servers_of(peers)
    with project.database_url(database) as url, started(peers, outside) as address:
        prepare(peers, url)
        others = {**peers.writes(), **peers.libraries(address)}
        steps = [once for name, once in others.items() if is_step(name)]
        together = {
            f"together {name}": in_turn(once, steps)
            for name, once in others.items()
            if not is_step(name)
        }
        work = {**others, **together, "ours": ours(peers, address)}
        report(store, time_all(work, rounds, count))


def count_requests(store: str) -> None:
    """Print how many requests a pair of each takes, at the store and at the database."""
    peers = STORES[store]
    database, outside = servers_of(peers)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(project.database_url(database))
        address = stack.enter_context(started(peers, outside))
        relays = [
            stack.enter_context(Relay(server.port)) if server else None
            for server in (database, outside)
        ]
        for relay in filter(None, relays):
            url, address = relay.through(url), relay.through(address)
        prepare(peers, url)
        work = {**peers.writes(), **peers.libraries(address), "ours": ours(peers, address)}
        print(f"\n{store}: requests a pair, at the database and at the store")
        for name, once in work.items():
            counts = [count_of(relay, once) for relay in relays]
            print(f"  {name:32}" + "".join(f"{count:>6}" for count in counts), flush=True)


def count_of(relay: Relay | None, once: Work) -> str:
    """How many requests one call takes, when clients have connected and prepared what they do."""
    if relay is None:
        return "-"
    for _ in range(COUNTED):
        once()
    before = relay.requests
    for _ in range(COUNTED):
        once()
    return f"{(relay.requests - before) / COUNTED:g}"


def servers_of(peers: Peers) -> list[Server | None]:
    """The database's and the store's; None for SQLite's file and for no store."""
    names = (None if peers.database == "sqlite" else peers.database, peers.outside)
    return [servers.get(name) if name else None for name in names]


@contextlib.contextmanager
def started(peers: Peers, outside: Server | None) -> Iterator[str]:
    """The address of the store, which runs inside; empty if there is none."""
    if outside is None:
        yield ""
        return
    with outside:
        yield str(getattr(outside, peers.address))


def prepare(peers: Peers, url: str) -> None:
    """Set Django up and make the row that is updated."""
    project.set_up(url, peers.apps)
    from testproject.shop.models import Order

    Order.objects.create(number="one", total=1)


def ours(peers: Peers, address: str) -> Work:
    """A pair of the backend of this package for the store."""
    from django_outbox_lock import locking
    from django_outbox_lock.conf import BackendSettings

    backend = locking.build("default", BackendSettings(NAME, peers.room, peers.options(address)))
    return lambda: pair(backend, 1)


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


if __name__ == "__main__":
    main()
