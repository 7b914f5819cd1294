"""Case 135: exact counts when few, a bound when many, never an estimate."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_outbox_lock.admin import paginator
from django_outbox_lock.admin.paginator import BoundedPaginator
from django_outbox_lock.models import OutboxMessage
from tests.factories import OutboxMessageFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(paginator, "LIMIT", 3)
    return 3


@pytest.mark.parametrize(("rows", "count", "more"), [(0, 0, False), (3, 3, False), (5, 3, True)])
def test_it_counts_up_to_the_limit(limit: int, rows: int, count: int, *, more: bool) -> None:
    OutboxMessageFactory.create_batch(rows)
    found = BoundedPaginator(OutboxMessage.objects.order_by("-pk"), 2)
    with CaptureQueriesContext(connection) as captured:
        assert (found.count, found.more) == (count, more)
    assert len(captured) == 1
    assert "ORDER BY" not in captured[0]["sql"]
    assert "body" not in captured[0]["sql"]


def test_a_filter_is_counted_exactly(limit: int) -> None:
    OutboxMessageFactory.create_batch(4)
    OutboxMessageFactory.create(topic="rare")
    found = BoundedPaginator(OutboxMessage.objects.filter(topic="rare").order_by("-pk"), 2)
    assert (found.count, found.more, found.num_pages) == (1, False, 1)
