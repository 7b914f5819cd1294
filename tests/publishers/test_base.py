"""What a publisher that only publishes gets from its base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.outcomes import Outcome, Sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_outbox_lock.envelope import Envelope


class Smallest(BasePublisher):
    def publish_batch(self, envelopes: Sequence[Envelope]) -> list[Outcome]:
        return [Sent() for _ in envelopes]


def test_defaults_promise_nothing() -> None:
    publisher = Smallest()
    assert publisher.preserves_order is False
    assert publisher.max_batch is None
    assert publisher.handles("anything") is True
    assert publisher.check() == []
    publisher.close()
