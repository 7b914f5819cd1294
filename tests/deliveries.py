"""What the tests of the processing log deliver, and a consumer in a process of its own."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from django_outbox_lock import processing
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.exceptions import ProcessingBusy
from django_outbox_lock.idempotency import run_once
from django_outbox_lock.models import ProcessingLog
from testproject.shop.models import Order


def envelope(**fields: Any) -> Envelope:
    """A message as a consumer gets it, with an id of its own."""
    message = Envelope(
        message_id=uuid.uuid4(),
        topic="order.paid",
        key=None,
        body=b'{"total": 12}',
        content_type="application/json",
        headers={},
        correlation_id="",
        causation_id="",
        created_at=dt.datetime(2025, 2, 3, 4, 5, 6, 789012, tzinfo=dt.UTC),
    )
    return replace(message, **fields)


def charge(what: str = "charge") -> int:
    """An effect that the database would accept twice, so that only the log can prevent it."""
    return Order.objects.create(number=f"{what} {uuid.uuid4().hex[:20]}", total=1).pk


def charges(what: str = "charge") -> int:
    return Order.objects.filter(number__startswith=what).count()


class Flags:
    """Events between processes: empty files in one folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def raise_(self, name: str) -> None:
        (self.folder / name).touch()

    def raised(self, *names: str) -> bool:
        return all((self.folder / name).exists() for name in names)

    def wait(self, *names: str, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while not self.raised(*names):
            if time.monotonic() > deadline:
                raise TimeoutError(names)
            time.sleep(0.005)


def naive(key: str, flags: Flags, me: str, other: str) -> None:
    """Check, work, mark: what everybody writes first. Both see nothing and both work."""
    if not ProcessingLog.objects.filter(consumer="naive", key=key).exists():
        meet(flags, me, other)
        charge()
        entry_hash = uuid.uuid4().hex * 2
        ProcessingLog.objects.create(
            consumer="naive", key=key, entry_hash=entry_hash, status=ProcessingLog.Status.DONE
        )


def logged(key: str, flags: Flags, me: str, other: str) -> None:
    """The same under the processing log: the deliveries meet before either has inserted."""
    claim = processing.Processing.claim

    def claim_together(self: processing.Processing) -> Any:
        meet(flags, me, other)
        return claim(self)

    processing.Processing.claim = claim_together  # type: ignore[method-assign]
    run_once("billing", key, charge)


def killed(key: str, flags: Flags, me: str, other: str) -> None:
    """Works, says so and waits for its end."""

    def body() -> None:
        charge()
        flags.raise_(me)
        flags.wait("never", timeout=60)

    run_once("billing", key, body)


def meet(flags: Flags, me: str, other: str) -> None:
    """A barrier between two processes."""
    flags.raise_(me)
    flags.wait(me, other)


CONSUMERS = {"naive": naive, "logged": logged, "killed": killed}


def main(consumer: str, key: str, folder: str, me: str, other: str) -> None:
    """Deliver one message, and again as long as it is busy."""
    busy = True
    while busy:
        try:
            CONSUMERS[consumer](key, Flags(folder), me, other)
            busy = False
        except ProcessingBusy:
            continue
