"""State changes as verbs of the querysets. They know nothing of locks: engines fence them."""

from __future__ import annotations

from django_outbox_lock.querysets.log import ProcessingLogQuerySet
from django_outbox_lock.querysets.messages import MessageQuerySet
from django_outbox_lock.querysets.parking import PARKED
from django_outbox_lock.querysets.topics import HoldQuerySet, TopicStateQuerySet

__all__ = [
    "PARKED",
    "HoldQuerySet",
    "MessageQuerySet",
    "ProcessingLogQuerySet",
    "TopicStateQuerySet",
]
