"""How long it takes until somebody else works, and until the holder knows, per backend.

- *takeover*: from SIGKILL of the holder until another process obtains the resource;
- *told (cut)*: from the moment when every connection is reset until ``lock_lost`` is sent;
- *told (blackhole)*: the same when the network swallows everything and says nothing;
- *sessions*: connections of one process that holds twenty locks.

The lease is given; medians of several rounds, seconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from benchmarks import project
from tests import servers
from tests.chaos.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from django_outbox_lock.backends.locks.base import BaseLockBackend

STORES = ("postgresql", "mariadb", "mysql", "lease", "redis")
NAME = "benchmark"
LEASE = 2.0
PATIENCE = 60.0
HOLDER = "from benchmarks.failover import hold; hold({store!r}, {options!r})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, each backend in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--rounds", type=int, default=3)
    options, _others = parser.parse_known_args(arguments)
    if options.store:
        measure(options.store, options.rounds)
        return
    print(f"a lease of {LEASE:g} s; seconds")
    heads = ("takeover", "told (cut)", "told (blackhole)", "sessions")
    print(f"{'backend':>12}" + "".join(f"{head:>18}" for head in heads), flush=True)
    for store in STORES:
        own = [sys.executable, "-m", "benchmarks.failover", "--store", store]
        subprocess.run([*own, "--rounds", str(options.rounds)], check=True)


def measure(store: str, rounds: int) -> None:
    """Print the line of one backend."""
    database = servers.get(store if store in {"mariadb", "mysql"} else "postgresql")
    store_server = servers.get("redis") if store == "redis" else database
    with database, project.started(store_server), Proxy(store_server.port) as proxy:
        direct = database.url if store == "redis" else proxy.through(database.url)
        project.set_up(direct)
        options = {"url": proxy.through(store_server.url)} if store == "redis" else {}
        backend = make(store, options)
        held = [backend.obtain(f"{NAME}-{number}") for number in range(20)]
        sessions = proxy.live
        for handle in filter(None, held):
            handle.release()
        figures = [
            project.median([takeover(backend, store, options) for _ in range(rounds)]),
            project.median([told(backend, proxy, lambda: cut(proxy)) for _ in range(rounds)]),
            project.median([told(backend, proxy, proxy.blackhole) for _ in range(rounds)]),
        ]
        shown = "".join(f"{figure:>18.2f}" for figure in figures)
        print(f"{store:>12}{shown}{sessions:>18}", flush=True)


def make(store: str, options: dict[str, Any]) -> BaseLockBackend:
    """The backend under measurement, with the short lease."""
    from django_outbox_lock import locking
    from django_outbox_lock.conf import BackendSettings

    rooms = {
        "lease": (locking.LEASE_TABLE, {}),
        "redis": ("django_outbox_lock.backends.locks.redis.RedisLock", {"namespace": "bench"}),
    }
    dotted, more = rooms.get(store, (None, {}))
    return locking.build(
        "default", BackendSettings("bench", dotted, {"lease": LEASE, **more, **options})
    )


def hold(store: str, options: dict[str, Any]) -> None:
    """Hold the resource until the process is killed; says so on standard output."""
    project.set_up(os.environ["DATABASE_URL"])
    if make(store, options).obtain(NAME, timeout=PATIENCE) is None:
        raise SystemExit("The lock was busy.")
    print("held", flush=True)
    time.sleep(PATIENCE)


def takeover(backend: BaseLockBackend, store: str, options: dict[str, Any]) -> float:
    """Seconds from SIGKILL of a holder until this process has the resource."""
    code = HOLDER.format(store=store, options=options)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        if holder.stdout is None or holder.stdout.readline() != b"held\n":
            raise RuntimeError("The holder did not get the lock; nothing was measured.")
        holder.send_signal(signal.SIGKILL)
        start = time.monotonic()
        handle = backend.obtain(NAME, timeout=PATIENCE)
        took = time.monotonic() - start
    if handle is None:
        raise RuntimeError("Nobody took over; nothing was measured.")
    handle.release()
    return took


def told(
    backend: BaseLockBackend, proxy: Proxy, fault: Callable[[], AbstractContextManager[None]]
) -> float:
    """Seconds from the fault until ``lock_lost`` is sent, in a process that only holds."""
    from django_outbox_lock.signals import lock_lost

    heard = threading.Event()

    def hear(**_named: object) -> None:
        heard.set()

    if backend.obtain(NAME, timeout=PATIENCE) is None:
        raise RuntimeError("The lock was busy; nothing was measured.")
    lock_lost.connect(hear)
    start = time.monotonic()
    with fault():
        if not heard.wait(PATIENCE):
            raise RuntimeError("The loss was not told; nothing was measured.")
        took = time.monotonic() - start
    lock_lost.disconnect(hear)
    proxy.heal()
    return took


def cut(proxy: Proxy) -> AbstractContextManager[None]:
    """Reset every connection, and refuse new ones."""
    down = proxy.refuse()
    proxy.cut()
    return down


if __name__ == "__main__":
    main()
