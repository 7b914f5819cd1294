"""Which messages a sweeper takes, in which order, and with how many statements."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox_lock.draft import Draft
from django_outbox_lock.models import Lock, OutboxMessage
from django_outbox_lock.outbox import publish, publish_many
from tests.factories import OutboxMessageFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.envelope import Envelope
    from tests.engines.conftest import Outbox

SENT = OutboxMessage.State.DISPATCHED


def test_everything_due_is_sent_once_in_the_order_of_writing(outbox: Outbox) -> None:
    outbox.write(*range(25))
    outbox.sweeper(batch_size=10).tick()
    assert outbox.sent == list(range(25))
    assert set(outbox.states().values()) == {SENT}
    row = outbox.row(3)
    assert (row.due_at, row.attempts) == (None, 1)
    assert row.settled_at is not None


def test_a_sweep_of_nothing_takes_no_lock(outbox: Outbox) -> None:
    outbox.sweeper().tick()
    assert not Lock.objects.exists()


def test_a_transaction_that_commits_late_is_late_and_not_lost(outbox: Outbox) -> None:
    """Case 001: ids are given before the commit."""
    other = connection.copy()
    sweeper = outbox.sweeper()
    try:
        if connection.vendor == "sqlite":  # one writer at a time: nobody can be overtaken there
            outbox.write("late", "early")
        else:
            _overtake(outbox, other, sweeper.tick)
        sweeper.tick()
    finally:
        other.close()
    assert sorted(outbox.sent) == ["early", "late"]
    assert set(outbox.states().values()) == {SENT}


def _overtake(outbox: Outbox, other: object, tick: Callable[[], float]) -> None:
    template = OutboxMessageFactory.build(body=b'"late"', due_at=1)
    fields = [f for f in OutboxMessage._meta.concrete_fields if not f.primary_key]
    columns = ", ".join(connection.ops.quote_name(str(f.column)) for f in fields)
    marks = ", ".join(["%s"] * len(fields))
    values = [f.get_db_prep_save(getattr(template, f.attname), connection) for f in fields]
    other.set_autocommit(False)  # type: ignore[attr-defined]
    with other.cursor() as cursor:  # type: ignore[attr-defined]
        table = OutboxMessage._meta.db_table
        cursor.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values)
    outbox.write("early")
    tick()
    assert outbox.sent == ["early"]
    other.commit()  # type: ignore[attr-defined]
    late, early = outbox.row("late"), outbox.row("early")
    assert late.pk < early.pk


def test_a_gap_in_the_ids_is_no_reason_to_wait(outbox: Outbox) -> None:
    """Case 015: rolled back transactions leave gaps."""
    for _ in range(10):
        with transaction.atomic():
            publish("t", "gone")
            transaction.set_rollback(True)
    outbox.write("there")
    outbox.sweeper().tick()
    assert outbox.sent == ["there"]


@pytest.mark.parametrize("state", [OutboxMessage.State.DISPATCHED, OutboxMessage.State.DEAD])
def test_a_row_whose_state_alone_was_changed_by_hand_is_not_sent(
    outbox: Outbox, state: int
) -> None:
    """No mark would change it, so that it went out in every cycle."""
    outbox.write(1, 2)
    OutboxMessage.objects.filter(id=outbox.row(1).id).update(state=state)
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert outbox.sent == [2]
    assert not sweeper.look()


def test_a_delayed_message_waits_for_its_time(outbox: Outbox) -> None:
    soon = timezone.now() + dt.timedelta(hours=1)
    outbox.write("later", available_at=soon)
    outbox.write("now")
    outbox.sweeper().tick()
    assert outbox.sent == ["now"]
    outbox.make_due()
    outbox.sweeper().tick()
    assert outbox.sent == ["now", "later"]


@pytest.mark.parametrize("size", [1, 999, 1000, 2101, 10000])
def test_every_page_size_works(outbox: Outbox, size: int) -> None:
    """Cases 047 and 123: limits of parameters, of variables and of statements."""
    count = min(size + 1, 2500)
    with transaction.atomic():
        publish_many([Draft("t", number) for number in range(count)])
    failing = {0, count // 2}
    outbox.behave = lambda envelope: 1 / 0 if envelope.json() in failing else None
    if size == 1:
        count = 2
    outbox.sweeper(batch_size=size, breaker_threshold=100).tick()
    assert len(outbox.sent) == count - len(failing)
    assert OutboxMessage.objects.filter(state=SENT).count() == count - len(failing)


def test_a_page_is_bounded_by_bytes(outbox: Outbox) -> None:
    """Case 021: of large bodies as many as fit go in one page, one too large for it alone."""
    large = "x" * 3000
    outbox.write(*(f"{n}{large}" for n in range(5)), f"5{large * 4}", "small")
    outbox.sweeper(batch_size=100, batch_bytes=7000).tick()
    assert [[p[0] for p in call] for call in outbox.calls] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
        ["5"],
        ["s"],
    ]
    assert outbox.sent[5] == f"5{large * 4}"


@pytest.mark.server("mysql")
def test_large_bodies_need_no_sorting(outbox: Outbox) -> None:
    """Case 095: 40 bodies of 700 KB with the server's default sort buffer."""
    with transaction.atomic():
        publish_many([Draft("t", b"x" * 700_000, content_type="a/b") for _ in range(40)])
    outbox.configure("tests.engines.publishers.Counting", options={})
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert sweeper.totals.sent == 40


@pytest.mark.parametrize("keyed", [False, True])
def test_the_statements_of_a_page_do_not_depend_on_its_size(outbox: Outbox, *, keyed: bool) -> None:
    """Case 019; the statements of the lock's own session are counted by its tests."""
    outbox.write("the registry's row")
    outbox.sweeper().tick()
    counts = []
    for size in (10, 1000):
        with transaction.atomic():
            publish_many([Draft("t", n, key=f"k{n}" if keyed else None) for n in range(3 * size)])
        with CaptureQueriesContext(connections["default"]) as queries:
            outbox.sweeper(batch_size=size).tick()
        counts.append(len(queries))
    assert counts[0] == counts[1]
    outbox_rows = OutboxMessage.objects.filter(state=SENT).count()
    assert outbox_rows == 3031


@pytest.mark.parametrize("words", ["division by zero", "ділення на нуль"])
def test_failures_add_at_most_four_statements(outbox: Outbox, words: str) -> None:
    """In whatever language they are told."""

    def behave(envelope: Envelope, failing: int) -> None:
        if envelope.json() < failing:
            raise ArithmeticError(words)

    def statements(failing: int, size: int) -> int:
        with transaction.atomic():
            publish_many([Draft("t", n, key=f"{failing}-{n}") for n in range(size)])
        outbox.behave = lambda envelope: behave(envelope, failing)
        with CaptureQueriesContext(connections["default"]) as queries:
            outbox.sweeper(batch_size=size + 1, breaker_threshold=5000).tick()
        OutboxMessage.objects.all().delete()
        return len(queries)

    statements(0, 1)
    none, one, all_of_them = statements(0, 500), statements(1, 500), statements(499, 500)
    assert none < one == all_of_them <= none + 4
    assert statements(9, 10) == one


def test_twenty_full_pages_in_one_cycle_stay_below_the_goal(outbox: Outbox) -> None:
    """At most 0.007 statements per message at 1,000 a page, so 0.7 at 10."""
    outbox.write(*range(200))
    outbox.sweeper(batch_size=1000).tick()
    outbox.write(*range(200))
    with CaptureQueriesContext(connections["default"]) as queries:
        outbox.sweeper(batch_size=10).tick()
    extra = 40 if connection.vendor == "mysql" else 0  # bounds its session at each mark
    toggles = sum("autocommit" in query["sql"].lower() for query in queries.captured_queries)
    assert len(queries) - extra - toggles <= 0.65 * 200
