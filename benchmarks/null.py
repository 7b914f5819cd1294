"""A publisher that keeps nothing, so that only the outbox is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django_outbox_lock import Sent
from django_outbox_lock.backends.publishers.base import BasePublisher

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_outbox_lock import Envelope
    from django_outbox_lock.outcomes import Outcome


class NullPublisher(BasePublisher):
    """Says yes at once. Nothing can overtake in it, so it need not be fed in waves."""

    preserves_order: ClassVar[bool] = True

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterable[Outcome]:
        return [Sent()] * len(envelopes)
