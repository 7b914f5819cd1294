"""Send what is due in a test: on the test's thread, inside its transaction, to nobody real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, router

from django_outbox_lock import conf, handlers, registry
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.backends.publishers.callables import CallablePublisher
from django_outbox_lock.backends.publishers.memory import MemoryPublisher
from django_outbox_lock.engines.sweeper import Sweeper
from django_outbox_lock.exceptions import LockNotObtained
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.outcomes import Outcome, Sent
from django_outbox_lock.testing.outbox import override_outbox

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle
    from django_outbox_lock.conf import BackendSettings
    from django_outbox_lock.envelope import Envelope


def drain(*, using: str | None = None, publisher: BasePublisher | None = None) -> list[Envelope]:
    """Sweep until nothing is due, and return the envelopes that were sent, in their order.

    Nothing leaves the process: topics of a ``CallablePublisher`` reach their handlers, all others
    a ``MemoryPublisher``. With ``publisher`` all topics go to that one. Everything else is as
    ``OUTBOX_LOCK`` has it: a message that is to be retried waits for its time, and is not among
    the results. Usable inside a ``TestCase``; the lock is the in-memory one. Raises
    ``LockNotObtained`` while somebody else sweeps.
    """
    alias = using or router.db_for_write(OutboxMessage)
    sent: list[Envelope] = []
    with override_outbox(alias, PUBLISHERS=_publishers(alias, publisher, sent)):
        sweeper = InlineSweeper.from_settings(alias)
        try:
            sweeper.drain()
        finally:
            sweeper.close()
    return sent


class InlineSweeper(Sweeper):
    """A sweeper whose publishers are called on its own thread, under the in-memory lock."""

    def __init__(self, using: str, **options: Any) -> None:
        super().__init__(using, **options)
        self._lock = MemoryLock(using)
        self._entered = False

    @property
    def backend(self) -> BaseLockBackend:
        return self._lock

    def begin(self, handle: LockHandle) -> None:
        super().begin(handle)
        self._courier.inline = True
        self._entered = True

    def close(self) -> None:
        super().close()
        self._lock.close()

    def drain(self) -> None:
        """Go through cycles until one changes nothing; raises ``LockNotObtained``."""
        before = None
        while before != str(self.totals):
            before, self._entered = str(self.totals), False
            self.tick()
            if not self._entered and self.look():
                holder = registry.holder(connections[self.using], self.resource)
                message = f"{self.resource} is held by {holder}: nothing was drained."
                raise LockNotObtained(message, resource=self.resource, holder=holder)


class Recorder(BasePublisher):
    """Notes in ``sent`` what ``inner`` has sent."""

    def __init__(self, *, inner: BasePublisher, sent: list[Envelope]) -> None:
        self._inner = inner
        self._sent = sent
        # A contract's flags are looked up on the instance.
        for flag in ("preserves_order", "one_by_one", "max_batch"):
            setattr(self, flag, getattr(inner, flag))

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        return map(self._note, envelopes, self._inner.publish_batch(envelopes))

    def handles(self, topic: str) -> bool:
        return self._inner.handles(topic)

    def _note(self, envelope: Envelope, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Sent):
            self._sent.append(envelope)
        return outcome


def _publishers(
    alias: str, given: BasePublisher | None, sent: list[Envelope]
) -> dict[str, dict[str, Any]]:
    """The names that the routes lead to, each with what stands in for its publisher."""
    configured = conf.outbox_settings(alias).publishers
    inner = {name: given or _stand_in(found) for name, found in configured.items()}
    inner = inner or {conf.DEFAULT_PUBLISHER: given or MemoryPublisher()}
    backend = f"{Recorder.__module__}.{Recorder.__name__}"
    return {
        name: {"BACKEND": backend, "OPTIONS": {"inner": publisher, "sent": sent}}
        for name, publisher in inner.items()
    }


def _stand_in(settings: BackendSettings) -> BasePublisher:
    cls = handlers.load(settings.path, str(settings.backend), BasePublisher)
    if not issubclass(cls, CallablePublisher):
        return MemoryPublisher()
    return handlers.construct(cls, settings.options, f"{settings.path}['OPTIONS']")
