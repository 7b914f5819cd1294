"""Write orders, send their messages, kill the sender, and show that nothing was lost.

A shop writes orders and their messages; three sweepers run and one of them is active; a consumer
with a database of its own applies each message once. In the middle of it the sweeper that holds
the lock is killed. Ends with a table and with status 1 unless every promise was kept.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

import django

from testproject.demo import observed
from testproject.demo.processes import (
    FOLDER,
    INTERVAL,
    PAGE,
    Processes,
    consumer_environment,
    free_port,
    shop_environment,
    tail,
    wait_for_port,
)

if TYPE_CHECKING:
    import subprocess

ORDERS = 2400
SWEEPERS = 3
DEADLINE = 240.0


def main() -> int:
    """Run the demonstration; the exit status says whether every promise was kept."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    port = free_port()
    shop, consumer = shop_environment(port), consumer_environment()
    os.environ.update(shop, SECOND_DATABASE_URL=consumer["DATABASE_URL"])
    django.setup()
    processes = Processes()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            number, lambda number, _: sys.exit(128 + number)
        )  # which ends the others, too
    try:
        seen = _main_job(processes, shop, consumer, port)
    finally:
        processes.close()
    rows = observed.verdict(seen)
    print(f"\n{observed.table(rows)}")
    kept = all(row[-1] for row in rows)
    print("Every promise was kept." if kept else f"A promise was broken; see {FOLDER.name}/*.log.")
    return 0 if kept else 1


def _main_job(
    processes: Processes, shop: dict[str, str], consumer: dict[str, str], port: int
) -> observed.Observed:
    print("Migrating two SQLite files: the shop's and the consumer's.")
    processes.run("migrate-shop", ["manage.py", "migrate", "-v0"], shop)
    processes.run("migrate-consumer", ["manage.py", "migrate", "-v0"], consumer)
    serve = ["-m", "testproject.billing.serve", str(port)]
    wait_for_port(port, processes.start("consumer", serve, consumer))
    command = ["manage.py", "runsweeper", "--interval", str(INTERVAL), "--batch-size", str(PAGE)]
    sweepers = [
        processes.start(f"sweeper-{number}", command, shop) for number in range(1, SWEEPERS + 1)
    ]
    print(f"Three sweepers run; the shop writes {ORDERS} orders, each with a message.")
    notes = str(FOLDER / "rolled-back.txt")
    seller = processes.start("shop", ["-m", "testproject.demo.shop", str(ORDERS), notes], shop)
    seen = _watch(seller, sweepers)
    _stop(sweepers)
    print("\nThe archiver moves what was sent.")
    processes.run("archiver", ["manage.py", "runarchiver", "--once"], shop)
    return seen


def _watch(
    seller: subprocess.Popen[bytes], sweepers: list[subprocess.Popen[bytes]]
) -> observed.Observed:
    """Follow the work until all is delivered; in the middle, kill who holds the lock."""
    seen = observed.Observed()
    give_up = time.monotonic() + DEADLINE
    while time.monotonic() < give_up:
        holder, done = seen.look(), observed.delivered()
        _progress(done, holder)
        if seen.killed is None and holder is not None and 0.3 < done / ORDERS < 0.8:
            _kill(holder, sweepers, seen)
        _fail_if_all_died(sweepers)
        if done >= ORDERS and seller.poll() is not None and _outstanding() == 0:
            break
        time.sleep(0.05)
    if seller.wait(DEADLINE):
        raise SystemExit(f"The shop failed:\n{tail('shop')}")
    return seen


def _progress(done: int, holder: observed.Tenure | None) -> None:
    """One line on a terminal, written over and over; elsewhere it would fill a log."""
    if sys.stdout.isatty():
        print(f"\r{done:5} of {ORDERS} delivered, held by {holder and holder.pid}   ", end="")


def _fail_if_all_died(sweepers: list[subprocess.Popen[bytes]]) -> None:
    if all(sweeper.poll() is not None for sweeper in sweepers):
        raise SystemExit(f"Every sweeper has ended:\n{tail('sweeper-1')}")


def _kill(
    holder: observed.Tenure, sweepers: list[subprocess.Popen[bytes]], seen: observed.Observed
) -> None:
    for sweeper in sweepers:
        if sweeper.pid == holder.pid:
            sweeper.send_signal(signal.SIGKILL)
            sweeper.wait()
            seen.killed, seen.killed_at = holder, time.monotonic()
            print(f"\nKilled process {holder.pid}, which held the lock with token {holder.token}.")


def _outstanding() -> int:
    from django_outbox_lock.models import OutboxMessage

    return OutboxMessage.objects.filter(due_at__isnull=False).count()


def _stop(sweepers: list[subprocess.Popen[bytes]]) -> None:
    for sweeper in sweepers:
        if sweeper.poll() is None:
            sweeper.send_signal(signal.SIGTERM)
    for number, sweeper in enumerate(sweepers, 1):
        if sweeper.wait(30) not in {0, -signal.SIGKILL}:
            raise SystemExit(f"A sweeper ended badly:\n{tail(f'sweeper-{number}')}")


if __name__ == "__main__":
    sys.exit(main())
