"""The sweeper: sends what is due, and records what became of it as the holder of the lock."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from django.db import DatabaseError, InterfaceError, connections

from django_outbox_lock import conf
from django_outbox_lock.clock import SECOND
from django_outbox_lock.conf import DEFAULT_ALIAS
from django_outbox_lock.engines.base import Engine
from django_outbox_lock.engines.circuits import Circuits
from django_outbox_lock.engines.courier import Courier
from django_outbox_lock.engines.delivery import Delivery, Limits
from django_outbox_lock.engines.marking import Marker
from django_outbox_lock.engines.notices import Notices
from django_outbox_lock.engines.options import MEGABYTE, SweeperOptions
from django_outbox_lock.engines.paging import PageSize
from django_outbox_lock.engines.reading import read_page
from django_outbox_lock.engines.results import Bookkeeper, Record
from django_outbox_lock.engines.returning import Returns
from django_outbox_lock.engines.routing import Policies, Routing
from django_outbox_lock.engines.triage import Triage
from django_outbox_lock.exceptions import TooManyHangingSends
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.querysets.glance import Glance, glance
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.conf import KeywordSettings, OutboxSettings
    from django_outbox_lock.engines.reading import Page

logger = logging.getLogger("django_outbox_lock.engines")


@dataclass(slots=True)
class Totals:
    """What was done: in a cycle, or since the start."""

    sent: int = 0
    retried: int = 0
    dead: int = 0
    parked: int = 0

    def add(self, record: Record) -> None:
        """Count a page that was written."""
        self.sent += len(record.sent)
        self.retried += record.retried
        self.dead += record.dead
        self.parked += record.parked

    def __bool__(self) -> bool:
        return bool(self.sent or self.retried or self.dead or self.parked)

    def __str__(self) -> str:
        names = ("sent", "retried", "dead", "parked")
        return ", ".join(f"{name} {getattr(self, name)}" for name in names)


class Sweeper(Engine):
    """Sends the messages of the outbox on the database alias ``using``.

    The options are those of ``OUTBOX_LOCK[alias]["SWEEPER"]``; ``docs/sweeper.md`` tells what they
    mean. ``watch`` is called with the totals since the start after each page. Raises
    ``InvalidSettings`` when publishers, routes or topics are set wrongly.
    """

    resource: ClassVar[str] = "OutboxSweeper"

    def __init__(
        self,
        using: str = DEFAULT_ALIAS,
        *,
        batch_size: int = 1000,
        batch_bytes: int = 16 * MEGABYTE,
        page_seconds: float = 30.0,
        interval: float = 5.0,
        linger: float = 0.5,
        stall_after: float = 300.0,
        shards: int = 1,
        max_attempts: int = 10,
        send_timeout: float = 30.0,
        max_hanging: int = 4,
        unroutable_after: float = 3600.0,
        backoff_base: float = 1.0,
        backoff_cap: float = 3600.0,
        backoff_jitter: float = 0.5,
        breaker_threshold: int = 5,
        breaker_cooldown: float = 5.0,
        breaker_cap: float = 300.0,
    ) -> None:
        super().__init__(using, interval=interval, linger=linger, stall_after=stall_after)
        self.options = SweeperOptions(
            batch_size=batch_size,
            batch_bytes=batch_bytes,
            page_seconds=page_seconds,
            shards=shards,
            max_attempts=max_attempts,
            send_timeout=send_timeout,
            max_hanging=max_hanging,
            unroutable_after=unroutable_after,
            backoff_base=backoff_base,
            backoff_cap=backoff_cap,
            backoff_jitter=backoff_jitter,
            breaker_threshold=breaker_threshold,
            breaker_cooldown=breaker_cooldown,
            breaker_cap=breaker_cap,
        )
        self.stalls_after("send_timeout", send_timeout)
        settings = conf.outbox_settings(using)
        self.watch: Callable[[Totals], None] | None = None
        self.totals = Totals()
        self._policies = Policies(settings.topics)
        self._routing = self.route(settings)
        self._circuits = Circuits(using, self.options.breaker(), unroutable_after)
        self._courier = Courier(send_timeout)
        self._marker = Marker(using)
        self._notices = Notices(using)
        self._returns = Returns(using, self._circuits, self._routing, batch_size)
        self._cycle_totals = Totals()
        self._looked = self._began = 0.0
        self._glance = Glance(0, False, False, False)
        self._returning = False
        self._unwritten: Record | None = None
        self._size = PageSize(batch_size)

    @classmethod
    def section(cls, settings: OutboxSettings) -> KeywordSettings:
        return settings.sweeper

    def route(self, settings: OutboxSettings) -> Routing:
        """The publishers and the way to them. Raises ``InvalidSettings``."""
        return Routing(settings)

    def look(self) -> bool:
        self._looked = time.monotonic()
        seen = self._glance = glance(connections[self.using])
        if seen.due or seen.holds or self._unwritten:
            return True
        if not seen.topics:
            return False
        self._circuits.load()
        return self._topics_want(seen.now)

    def begin(self, handle: LockHandle) -> None:
        """Prove that this connection can write, before anything is sent in this cycle."""
        self._began = time.monotonic()
        self._cycle_totals = Totals()
        connection = connections[self.using]
        in_memory = getattr(connection, "is_in_memory_db", bool)()
        self._courier.inline = connection.in_atomic_block or in_memory
        self._circuits.load()
        self._notices.load(self._circuits)
        with self._marker.fenced(handle):
            OutboxMessage.objects.using(self.using).writable()
        self._returning = bool(self._glance.holds) or self._topics_want(self._glance.now)

    def work(self, handle: LockHandle) -> bool:
        if self._unwritten:
            self._write(handle, self._unwritten)
        if self._returning:
            self._returning = self._return(handle)
        page = read_page(self.using, self.options, self._size.rows)
        if not page.rows:
            return self._returning
        record = self._deliver(handle, page)
        if record:
            self._write(handle, record)
            self._size.worked()
        if self._courier.hanging >= self.options.max_hanging:
            raise TooManyHangingSends(
                f"{self._courier.hanging} calls of publishers gave no answer and hang."
            )
        self._returning = self._returning or bool(record.heads) or self._topics_want(self._now())
        return page.more or self._returning or record.left > 0

    def finish(self) -> None:
        if self._cycle_totals:
            seconds = time.monotonic() - self._began
            done = (self.resource, self.using, self._cycle_totals, seconds)
            logger.info("%s on %r: %s in %.2f s", *done)

    def close(self) -> None:
        """Close the publishers and end the thread that calls them."""
        self._courier.close()
        self._routing.close()

    def _return(self, handle: LockHandle) -> bool:
        """Let parked rows come back. An undone step has changed circuits, which are read anew."""
        load = self._circuits.load
        return self._marker.run(handle, lambda: self._returns.step(self._now()), anew=load)

    def _deliver(self, handle: LockHandle, page: Page) -> Record:
        if page.cut:
            self._size.cut(len(page.rows))
        plan = Triage(self._routing, self._policies, self._circuits).sort(page)
        until = time.monotonic() + self.options.page_seconds
        limits = Limits(handle, lambda: self.stopping, until)
        Delivery(self._routing, self._circuits, self._courier, limits).deliver(plan)
        options = self.options
        return Bookkeeper(self._circuits, options.backoff(), options.max_attempts).record(plan)

    def _write(self, handle: LockHandle, record: Record) -> None:
        """Write what became of a page; what was sent is remembered until that is written."""
        self._unwritten = None
        try:
            self._marker.write(handle, record)
        except (DatabaseError, InterfaceError):
            self._unwritten = record.confirmed()
            self._size.failed()
            raise
        self._notices.tell(record)
        self._circuits.written(record.circuits, record.now)
        self.totals.add(record)
        self._cycle_totals.add(record)
        if self.watch is not None:
            self.watch(self.totals)

    def _topics_want(self, now: int) -> bool:
        return self._circuits.want_attention(self._routing, now)

    def _now(self) -> int:
        """The server's clock, as far as it was read in this cycle and time has passed since."""
        return self._glance.now + int((time.monotonic() - self._looked) * SECOND)
