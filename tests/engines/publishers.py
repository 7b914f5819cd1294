"""Publishers that do what a test says."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.outcomes import Outcome, Retry, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_outbox_lock.envelope import Envelope

    Behave = Callable[[Envelope], Any]


class Scripted(BasePublisher):
    """Asks ``behave`` about each message; notes each call in ``calls`` as a list of payloads.

    ``behave`` returns an outcome (None: ``Sent``) or raises.
    """

    one_by_one = True

    def __init__(
        self,
        *,
        behave: Behave | None = None,
        calls: list[list[Any]] | None = None,
        ordered: bool = False,
        knows: Callable[[str], bool] | None = None,
        size: int | None = None,
    ) -> None:
        self.preserves_order = ordered  # type: ignore[misc]
        self.max_batch = size
        self._behave = behave
        self._calls = calls if calls is not None else []
        self._knows = knows

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        self._calls.append([envelope.json() for envelope in envelopes])
        stuck: set[str | None] = set()
        for envelope in envelopes:
            if envelope.key in stuck:
                yield Retry("An earlier message of the key was not accepted.")
                continue
            outcome = (self._behave(envelope) if self._behave else None) or Sent()
            if self.preserves_order and envelope.key and not isinstance(outcome, Sent):
                stuck.add(envelope.key)
            yield outcome

    def handles(self, topic: str) -> bool:
        return self._knows is None or self._knows(topic)


class AtOnce(Scripted):
    """Sends ahead: all outcomes are there when the call returns."""

    one_by_one = False

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Any:
        return list(super().publish_batch(envelopes))


class Hanging(Scripted):
    """Hangs at each message for which ``behave`` is true, until ``released``."""

    released = threading.Event()
    closed = threading.Event()

    used = False

    def close(self) -> None:
        if self.used:
            type(self).closed.set()

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        self.used = True
        self._calls.append([envelope.json() for envelope in envelopes])
        for envelope in envelopes:
            if self._behave and self._behave(envelope):
                type(self).released.wait(60)
            yield Sent()


class Counting(BasePublisher):
    """Takes everything and keeps nothing."""

    def publish_batch(self, envelopes: Sequence[Envelope]) -> list[Outcome]:
        return [Sent()] * len(envelopes)


class Short(Scripted):
    """Forgets the outcomes of all messages but the first."""

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        self._calls.append([envelope.json() for envelope in envelopes])
        yield Sent()
