"""How an outbox stands: counted by index, up to a limit."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_outbox_lock.clock import SECOND, to_datetime
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.querysets import standing as module
from django_outbox_lock.querysets.parking import behind_key, behind_topic
from django_outbox_lock.querysets.standing import Standing, standing
from tests.factories import OutboxMessageFactory, now

pytestmark = pytest.mark.django_db


def look() -> Standing:
    return standing(OutboxMessage.objects.all())


def write(count: int, *, age: int = 0, **columns: Any) -> None:
    """Rows that were written ``age`` seconds ago."""
    rows = OutboxMessageFactory.create_batch(count, **columns)
    written = to_datetime(now() - age * SECOND)
    OutboxMessage.objects.filter(pk__in=[row.pk for row in rows]).update(created_at=written)


def test_an_empty_outbox() -> None:
    found = look()
    assert set(found.counts.values()) == {0}
    assert (found.capped, found.oldest, found.age) == (frozenset(), None, None)


@pytest.mark.parametrize("oldest", ["due", "waiting", "behind_keys", "behind_topics"])
def test_each_kind_is_counted_and_the_oldest_of_all_is_found(oldest: str) -> None:
    age = {"dispatched": 9000, "dead": 9000, oldest: 500}
    write(1, due_at=now(), age=age.get("due", 1))
    write(2, due_at=now() + 60 * SECOND, age=age.get("waiting", 1))
    write(3, key="a", due_at=behind_key(7), age=age.get("behind_keys", 1))
    write(4, due_at=behind_topic("t"), age=age.get("behind_topics", 1))
    write(5, dead=True, age=9000)
    write(6, dispatched=True, age=9000)
    found = look()
    assert found.counts == {
        "due": 1,
        "waiting": 2,
        "behind_keys": 3,
        "behind_topics": 4,
        "dead": 5,
    }
    assert found.capped == frozenset()
    assert found.age is not None
    assert 499 < found.age < 520


def test_counting_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 2)
    write(3)
    write(2, dead=True)
    with CaptureQueriesContext(connection) as captured:
        found = look()
    assert (found.counts["due"], found.counts["dead"]) == (2, 2)
    assert found.capped == {"due"}
    assert len(captured) == 6
    assert all("LIMIT 3" in query["sql"] for query in captured.captured_queries[:5])
