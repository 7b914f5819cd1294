"""A text is looked for to the character, whatever its column's collation takes for the same."""

from __future__ import annotations

import pytest

from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.querysets.sametext import SameText
from tests.factories import OutboxMessageFactory

pytestmark = pytest.mark.django_db

TOPICS = ["order", "Order", "ordér", "order ", "orde\u0301r", "😀", "100%"]


@pytest.mark.parametrize("topic", TOPICS)
def test_only_the_very_same_text_is_found(topic: str) -> None:
    for each in TOPICS:
        OutboxMessageFactory.create(topic=each)
    found = OutboxMessage.objects.filter(SameText("topic", topic))
    assert list(found.values_list("topic", flat=True)) == [topic]
    assert OutboxMessage.objects.exclude(SameText("topic", topic)).count() == len(TOPICS) - 1
