"""Two million rows: every page in at most 15 statements and one second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.test import Client

from django_outbox_lock import lock
from django_outbox_lock.models import Lock, OutboxMessage
from tests.admin.conftest import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django.plugin import DjangoDbBlocker

ROWS = 2_000_000
# The oldest are settled and the newest are outstanding, as in an outbox that lags behind. The dead
# ones are old: a walk from the newest row on would pass a million others before the first.
OUTSTANDING = 30_000
DEAD_EACH = 500
OLD = ROWS // 2
DEAD = OLD // DEAD_EACH
STATEMENTS, SECONDS = 15, 1.0
TABLE = OutboxMessage._meta.db_table
KEY = "order-77777"
TAIL = "-0000-7000-8000-000000000000"

INSERT = """
    INSERT INTO {table} (message_id, topic, {key}, order_key, slot, body, content_type, headers,
        correlation_id, causation_id, created_at, due_at, state, attempts, last_error,
        settled_at, dead_reason)
    SELECT {message_id}, 'order.created', CONCAT('order-', n % 100000), n % 100000, n % 4096,
        {body}, 'application/json', '{{}}', '', '', now(),
        CASE WHEN n > {settled} THEN n END,
        CASE WHEN n > {settled} THEN 10 WHEN {is_dead} THEN 30 ELSE 20 END,
        1, '', CASE WHEN n <= {settled} THEN n END,
        CASE WHEN {is_dead} THEN 'rejected' ELSE '' END
    FROM {numbers}
"""
DIALECT = {
    "postgresql": {
        "key": "key",
        "message_id": f"CAST(CONCAT(lpad(to_hex(n), 8, '0'), '{TAIL}') AS uuid)",
        "body": "convert_to(repeat('x', 300), 'UTF8')",
        "numbers": f"generate_series(1, {ROWS}) AS s(n)",
        "analyze": f"ANALYZE {TABLE}",
    },
    "mysql": {
        "key": "`key`",
        "message_id": f"CONCAT(lpad(hex(n), 8, '0'), '{TAIL}')",
        "body": "repeat('x', 300)",
        "numbers": f"(SELECT seq AS n FROM seq_1_to_{ROWS}) AS s",
        "analyze": f"ANALYZE TABLE {TABLE}",
    },
}

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The rows, committed, for all tests of this module; removed at its end."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        dialect = DIALECT[connection.vendor]
        settled = ROWS - OUTSTANDING
        is_dead = f"n <= {OLD} AND n % {DEAD_EACH} = 0"
        names = {"table": TABLE, "settled": settled, "is_dead": is_dead, **dialect}
        began = time.perf_counter()
        cursor.execute(INSERT.format(**names))
        cursor.execute(dialect["analyze"])
        print(f"{ROWS} rows in {time.perf_counter() - began:.0f} s")
        User.objects.create_superuser("two-million")
        yield
        User.objects.all().delete()
        Lock.objects.all().delete()
        cursor.execute(f"TRUNCATE TABLE {TABLE}")


@pytest.fixture
def client(filled: None, db: None) -> Client:
    client = Client()
    client.force_login(User.objects.get(username="two-million"))
    return client


Measure = Callable[..., Any]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Gets a page within the bounds; the best of three, as other programs share the machine.

    Counts every statement of every connection and thread: the Locks page asks in another.
    """
    execute = CursorWrapper.execute
    statements: list[str] = []

    def counting(self: Any, sql: str, params: Any = None) -> Any:
        statements.append(sql)
        return execute(self, sql, params)

    monkeypatch.setattr(CursorWrapper, "execute", counting)

    def get(client: Client, url: str) -> Any:
        spent: list[float] = []
        while len(spent) < 3 and min(spent, default=SECONDS) >= SECONDS:
            statements.clear()
            began = time.perf_counter()
            response = client.get(url)
            spent.append(time.perf_counter() - began)
        print(f"{len(statements)} statements, {spent[-1]:.3f} s: {url}")
        assert response.status_code == 200
        assert len(statements) <= STATEMENTS, statements
        assert min(spent) < SECONDS
        return response

    return get


SEEN: dict[str, tuple[dict[str, str], int]] = {
    "everything": ({}, 10_000),
    "page 100": ({"p": "100"}, 10_000),
    "outstanding": ({"state": "outstanding"}, 10_000),
    "dispatched": ({"state": "dispatched"}, 0),
    "dead": ({"state": "dead"}, DEAD),
    "topic": ({"topic": "order.created"}, 10_000),
    "no such topic": ({"topic": "none"}, 0),
    "topic, outstanding": ({"topic": "none", "state": "outstanding"}, 0),
    "topic, dead": ({"topic": "none", "state": "dead"}, 0),
    "topic, dispatched": ({"topic": "none", "state": "dispatched"}, 0),
    "topic, older": ({"topic": "none", "before": str(ROWS // 2)}, 0),
    "message id": ({"q": "000f4240-0000-7000-8000-000000000000"}, 1),
    "no such message id": ({"q": "000f4240-0000-7000-8000-00000000000f"}, 0),
    "key": ({"q": KEY}, 0),
    "key and topic": ({"q": KEY, "topic": "order.created"}, 0),
}


class Pages:
    """On each of the two servers."""

    @pytest.mark.parametrize("name", SEEN)
    def test_list(self, client: Client, measure: Measure, name: str) -> None:
        query, count = SEEN[name]
        response = measure(client, url_of("outboxmessage", **query))
        assert response.context["cl"].result_count == count

    def test_message(self, client: Client, measure: Measure) -> None:
        pk = OutboxMessage.objects.order_by("-pk").values_list("pk", flat=True)[0]
        measure(client, url_of("outboxmessage", "change", pk))

    def test_locks(self, client: Client, measure: Measure) -> None:
        with lock("OutboxSweeper"):
            response = measure(client, url_of("lock"))
        assert b"OutboxSweeper" in response.content

    def test_requeue(self, client: Client) -> None:
        requeue_all(client)


@pytest.mark.server("postgresql")
class TestPostgreSQL(Pages):
    pass


@pytest.mark.server("mariadb")
class TestMariaDB(Pages):
    pass


def requeue_all(client: Client) -> None:
    data = {
        "action": "requeue",
        "select_across": "1",
        "_selected_action": "1",
        "confirmed": "yes",
        "up_to": str(10 * ROWS),
    }
    began = time.perf_counter()
    client.post(url_of("outboxmessage", state="dead"), data)
    print(f"{DEAD} requeued in {time.perf_counter() - began:.2f} s")
    assert not OutboxMessage.objects.all().dead().exists()
    assert time.perf_counter() - began < 30
