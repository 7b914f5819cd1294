"""Obtain and release, per backend: microseconds for one pair, medians of several rounds.

Each server's figure stands beside what the same server takes for one durable UPDATE of a row,
measured in the same rounds: the unit in which a lock with a fence must be paid.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks import project
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_outbox_lock.backends.locks.base import BaseLockBackend

# What can be started here; SQL Server cannot.
SERVERS = ("sqlite", "postgresql", "mariadb", "mysql")


def pair(backend: BaseLockBackend, count: int) -> float:
    """Microseconds for one obtain and release."""

    def work() -> None:
        for _ in range(count):
            handle = backend.obtain("benchmark")
            if handle is None or not handle.release():
                raise RuntimeError("The lock was busy; nothing was measured.")

    return project.seconds(work) / count * 1e6


def update(count: int) -> float:
    """Microseconds for one durable UPDATE of one row through Django's cursor."""
    from django.db import connection

    def work() -> None:
        with connection.cursor() as cursor:
            for number in range(count):
                cursor.execute("UPDATE shop_order SET total = %s WHERE number = 'one'", [number])

    return project.seconds(work) / count * 1e6


def measure(name: str, rounds: int, count: int) -> None:
    """Print the lines of one server; runs in a process of its own."""
    server = None if name == "sqlite" else servers.get(name)
    with project.database_url(server) as url:
        project.set_up(url)
        from django_outbox_lock import locking
        from django_outbox_lock.conf import BackendSettings
        from testproject.shop.models import Order

        Order.objects.create(number="one", total=1)
        chosen = dict.fromkeys([locking.backend_by_vendor("default"), locking.LEASE_TABLE])
        backends = {
            dotted: locking.build("default", BackendSettings("bench", dotted))
            for dotted in [*chosen, locking.IN_MEMORY]
        }
        figures: dict[str, list[float]] = {dotted: [] for dotted in backends}
        plain = []
        for _ in range(rounds):
            plain.append(update(count))
            for dotted, backend in backends.items():
                figures[dotted].append(pair(backend, count))
        unit = project.median(plain)
        for dotted, values in figures.items():
            label = dotted.rpartition(".")[2]
            middle = project.median(values)
            print(f"{name:>12}{label:>18}{middle:>12,.0f}{unit:>12,.0f}{middle / unit:>8.1f}")
        for backend in backends.values():
            backend.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, one server after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=SERVERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args(arguments)
    if options.server:
        measure(options.server, options.rounds, options.count)
        return
    print("obtain + release, microseconds")
    print(f"{'server':>12}{'backend':>18}{'pair':>12}{'UPDATE':>12}{'ratio':>8}", flush=True)
    for name in SERVERS:
        missing = None if name == "sqlite" else servers.get(name).missing()
        if missing:
            print(f"{name:>12}  not measured: {missing}", flush=True)
            continue
        own = ["-m", "benchmarks.locks", "--server", name]
        numbers = ["--rounds", str(options.rounds), "--count", str(options.count)]
        subprocess.run([sys.executable, *own, *numbers], check=True)


if __name__ == "__main__":
    main()
