"""A process of a chaos run: obtains, writes behind the fence, releases, and writes everything down.

``python -m tests.chaos.worker ORDER`` with a JSON object (see ``Order``); SIGTERM ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import django
from django.db import Error, connection, transaction
from django.utils.module_loading import import_string

from django_outbox_lock.exceptions import LockLost, LockUnavailable

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle


@dataclass(frozen=True)
class Order:
    """What a worker is told. ``log`` is the path of its part of the history; ``lease`` seconds.

    ``long`` is the share of turns that last longer than a lease.
    """

    name: str
    backend: str
    options: dict[str, Any]
    resources: list[str]
    log: str
    lease: float
    long: float
    fenced: bool
    seed: int


class Log:
    """A line for each event, in the file before anything else happens."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, event: str, handle: LockHandle, **more: Any) -> None:
        line = {"event": event, "resource": handle.resource, "token": handle.token, **more}
        os.write(self._file, (json.dumps(line) + "\n").encode())


class Worker:
    """Works until it is told to stop."""

    def __init__(self, order: Order) -> None:
        from django_outbox_lock.signals import lock_lost

        self.stopping = False
        self._order = order
        self._parent = os.getppid()
        self._log = Log(order.log)
        self._random = random.Random(order.seed)
        self._backend: BaseLockBackend = import_string(order.backend)("default", **order.options)
        lock_lost.connect(self._on_loss)

    @property
    def goes_on(self) -> bool:
        """False once it is told to stop, or the run itself was killed."""
        return not self.stopping and os.getppid() == self._parent

    def run(self) -> None:
        """Obtain one resource after the other; who is refused waits a moment."""
        while self.goes_on:
            resource, asked = self._random.choice(self._order.resources), time.monotonic()
            try:
                handle = self._backend.obtain(resource)
            except (LockUnavailable, Error):
                connection.close()
                handle = None
            if handle is None:
                time.sleep(self._random.uniform(0.001, 0.02))
                continue
            self._log.add("obtained", handle, asked=asked, start=time.monotonic())
            with contextlib.suppress(LockLost):
                self._work(handle)
            end = time.monotonic()
            self._log.add("released", handle, end=end, held=handle.release())
        self._backend.close()

    def _work(self, handle: LockHandle) -> None:
        """Some writes; now and then more than a lease can last without renewal."""
        long = self._random.random() < self._order.long
        until = time.monotonic() + (1.5 * self._order.lease if long else 0)
        try:
            self._look(handle)
            self._write(handle)
            while time.monotonic() < until and self.goes_on:
                time.sleep(0.05)
                self._write(handle)
        except Error:
            connection.close()  # Django would use a dead one again

    def _look(self, handle: LockHandle) -> None:
        from tests.chaos import ledger

        self._log.add("saw", handle, seen=ledger.last(handle.resource))

    def _write(self, handle: LockHandle) -> None:
        from tests.chaos import ledger

        with self._fenced(handle):
            number = ledger.write(handle.resource, handle.token, self._order.name)
            time.sleep(self._random.choice([0, 0, 0.002]))
        self._log.add("wrote", handle, number=number)

    def _fenced(self, handle: LockHandle) -> contextlib.AbstractContextManager[None]:
        from django_outbox_lock import fence

        if not self._order.fenced:
            return transaction.atomic()
        return fence.held(handle.ticket, using="default", idle_limit=2 * self._order.lease)

    def _on_loss(self, *, handle: LockHandle, **_: object) -> None:
        self._log.add("lost", handle)


def main() -> None:
    django.setup()
    worker = Worker(Order(**json.loads(sys.argv[1])))

    def stop(*_: object) -> None:
        worker.stopping = True

    signal.signal(signal.SIGTERM, stop)
    worker.run()


if __name__ == "__main__":
    main()
