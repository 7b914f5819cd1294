"""How long it takes until somebody else works, and until the holder knows, per backend.

- *takeover*: from SIGKILL of the holder until another process obtains the resource;
- *told (cut)*: from the moment when every connection is reset until ``lock_lost`` is sent;
- *told (blackhole)*: the same when the network swallows everything and says nothing;
- *sessions*: connections to the lock's server of one process that holds twenty locks; a store has
  one to the registry besides.

The lease is the shortest that is sensible; medians of several rounds, seconds.
"""

from __future__ import annotations

import argparse
import contextlib
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
    from tests.chaos.subjects import Subject
    from tests.servers import Server

# Each backend with the server that has its locks.
STORES = {
    "postgresql": "postgresql",
    "mariadb": "mariadb",
    "mysql": "mysql",
    "lease-postgresql": "postgresql",
    "redis": "redis",
    "mongodb": "secantusdb",
    "dynamodb": "dynalite",
    "azure": "azurite",
    "firestore": "firestore",
}
OUTSIDE = ("redis", "mongodb", "dynamodb", "azure", "firestore")
NAME = "benchmark"
PATIENCE = 60.0
HOLDER = "from benchmarks.failover import hold; hold({room!r}, {options!r})"
HEADS = ("lease", "takeover", "told (cut)", "told (blackhole)", "sessions")
# No emulator of DynamoDB looks at them, but the client must have some.
CREDENTIALS = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "outbox")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, each backend in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--rounds", type=int, default=3)
    options, _others = parser.parse_known_args(arguments)
    if options.store:
        measure(options.store, options.rounds)
        return
    print("seconds")
    print(f"{'backend':>17}" + "".join(f"{head:>18}" for head in HEADS), flush=True)
    for store, server in STORES.items():
        if missing := servers.get(server).missing():
            print(f"{store:>17}  not measured: {missing}", flush=True)
            continue
        own = [sys.executable, "-m", "benchmarks.failover", "--store", store]
        subprocess.run([*own, "--rounds", str(options.rounds)], check=True)


def measure(name: str, rounds: int) -> None:
    """Print the line of one backend."""
    server = servers.get(STORES[name])
    database = servers.get("postgresql") if name in OUTSIDE else server
    with database, project.started(server), Proxy(server.port) as proxy:
        project.set_up(database.url if name in OUTSIDE else proxy.through(database.url))
        from tests.chaos.subjects import SUBJECTS  # it needs the settings

        subject = SUBJECTS[name]
        options = options_for(subject, server, proxy)
        backend = make(subject.room, options)
        sessions = sessions_of(backend, proxy)
        figures = [
            subject.lease,
            project.median([takeover(backend, subject.room, options) for _ in range(rounds)]),
            project.median([told(backend, proxy, lambda: cut(proxy)) for _ in range(rounds)]),
            project.median([told(backend, proxy, proxy.blackhole) for _ in range(rounds)]),
        ]
        shown = "".join(f"{figure:>18.2f}" for figure in figures)
        print(f"{name:>17}{shown}{sessions:>18}", flush=True)
        backend.close()


def options_for(subject: Subject, server: Server, proxy: Proxy) -> dict[str, Any]:
    """The options that lead to the server through the proxy."""
    warm_up(server)
    os.environ |= CREDENTIALS
    if subject.through:
        os.environ[subject.through] = f"127.0.0.1:{proxy.port}"
    place = subject.place(server) if subject.place else {}
    through = {
        name: proxy.through(value) if isinstance(value, str) else value
        for name, value in place.items()
    }
    return {"lease": subject.lease, **through}


def warm_up(server: Server) -> None:
    """Wait for the first answer, which takes a fresh virtual machine longer than a client waits."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            server.wall_clock()
            return
    raise RuntimeError(f"{server.title} gave no answer; nothing was measured.")


def make(room: str, options: dict[str, Any]) -> BaseLockBackend:
    """The backend under measurement."""
    from django_outbox_lock import locking
    from django_outbox_lock.conf import BackendSettings

    return locking.build("default", BackendSettings("bench", room, options))


def sessions_of(backend: BaseLockBackend, proxy: Proxy) -> int:
    """How many connections twenty locks take."""
    held = [backend.obtain(f"{NAME}-{number}") for number in range(20)]
    sessions = proxy.live
    for handle in filter(None, held):
        handle.release()
    return sessions


def hold(room: str, options: dict[str, Any]) -> None:
    """Hold the resource until the process is killed; says so on standard output."""
    project.set_up(os.environ["DATABASE_URL"])
    if make(room, options).obtain(NAME, timeout=PATIENCE) is None:
        raise SystemExit("The lock was busy.")
    print("held", flush=True)
    time.sleep(PATIENCE)


def takeover(backend: BaseLockBackend, room: str, options: dict[str, Any]) -> float:
    """Seconds from SIGKILL of a holder until this process has the resource."""
    code = HOLDER.format(room=room, options=options)
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
