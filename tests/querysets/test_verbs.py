"""The verbs of messages, holds and topics, one by one, on every database."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, connections

from django_outbox_lock import keys
from django_outbox_lock.breaker import Circuit
from django_outbox_lock.clock import SECOND
from django_outbox_lock.models import Hold, OutboxMessage, TopicState
from django_outbox_lock.querysets import PARKED
from django_outbox_lock.querysets.dialect import dialect
from django_outbox_lock.querysets.glance import glance
from django_outbox_lock.querysets.messages import Change
from django_outbox_lock.querysets.parking import BEHIND_TOPIC, behind_key, behind_topic
from django_outbox_lock.querysets.sessions import silence_bound
from django_outbox_lock.querysets.topics import NewHold
from tests import factories

pytestmark = pytest.mark.django_db

OUTSTANDING, SENT, DEAD = OutboxMessage.State.values


def message(**values: Any) -> Any:
    row: Any = factories.OutboxMessageFactory(**values)
    return row


def test_only_outstanding_rows_are_marked_as_sent() -> None:
    due, dead = message(), message(dead=True)
    assert OutboxMessage.objects.mark_dispatched([due.pk, dead.pk, 999_999]) == 1
    due.refresh_from_db()
    dead.refresh_from_db()
    assert (due.state, due.due_at, due.attempts) == (SENT, None, 1)
    assert due.settled_at is not None
    assert dead.state == DEAD


def test_each_change_goes_to_its_own_row() -> None:
    rows = [message() for _ in range(3)]
    first, second, third = (row.pk for row in rows)
    before = factories.now()
    changes = [
        Change(third, 0, OUTSTANDING, 0, due_at=PARKED + 5),
        Change(first, 0, OUTSTANDING, 1, due_in=60 * SECOND, error="é 😀 \"quoted\" 100% 'x'"),
        Change(second, 0, DEAD, 1, error="never", dead_reason="rejected"),
    ]
    assert OutboxMessage.objects.apply(changes) == 3
    for row in rows:
        row.refresh_from_db()
    assert [(row.state, row.attempts) for row in rows] == [
        (OUTSTANDING, 1),
        (DEAD, 1),
        (OUTSTANDING, 0),
    ]
    assert rows[0].last_error == "é 😀 \"quoted\" 100% 'x'"
    assert rows[0].due_at is not None
    assert 59 * SECOND < rows[0].due_at - before < 90 * SECOND
    assert (rows[1].due_at, rows[1].dead_reason) == (None, "rejected")
    assert rows[1].settled_at is not None
    assert (rows[2].due_at, rows[2].last_error) == (PARKED + 5, "")


def test_a_change_expects_the_attempts_that_were_read() -> None:
    row = message(attempts=2)
    assert OutboxMessage.objects.apply([Change(row.pk, 1, OUTSTANDING, 2, due_in=0)]) == 0
    assert OutboxMessage.objects.apply([Change(row.pk, 2, OUTSTANDING, 3, due_in=0)]) == 1
    assert OutboxMessage.objects.apply([Change(row.pk, 2, OUTSTANDING, 3, due_in=0)]) == 0


def test_the_page_tells_what_was_written_before_and_what_holds() -> None:
    message(key="a", dispatched=True)
    head = message(key="a", due_at=factories.now() + 3600 * SECOND)
    follower = message(key="a")
    free = message()
    long = message(body=b"x" * 200)
    factories.HoldFactory(order_key=head.order_key, head_id=head.pk)
    page = {row.id: row for row in OutboxMessage.objects.page(10, 100)}
    assert set(page) == {follower.pk, free.pk, long.pk}
    assert page[follower.pk].held_by == head.pk
    assert (page[free.pk].earlier, page[free.pk].held_by) == (None, None)
    assert (page[long.pk].body, page[long.pk].size) == (None, 200)
    assert bytes(page[free.pk].body or b"") == free.body
    Hold.objects.all().delete()
    page = {row.id: row for row in OutboxMessage.objects.page(10, 100)}
    assert page[follower.pk].earlier == head.pk
    assert OutboxMessage.objects.bodies([long.pk]) == {long.pk: b"x" * 200}


def test_a_page_of_one_key_chains_its_rows() -> None:
    rows = [message(key="a") for _ in range(5)]
    page = OutboxMessage.objects.page(10, 100)
    assert [row.earlier for row in sorted(page)] == [None, *(row.pk for row in rows[:-1])]


def test_parked_rows_are_found_by_what_they_wait_for_and_come_back() -> None:
    behind = message(topic="T", due_at=behind_topic("T"))
    message(topic="u", due_at=behind_topic("u"))
    a = message(key="a", due_at=0)
    assert a.order_key is not None
    OutboxMessage.objects.filter(pk=a.pk).update(due_at=behind_key(a.order_key))
    assert list(OutboxMessage.objects.parked_behind("T")) == [behind]
    assert list(OutboxMessage.objects.parked_behind_keys([a.order_key])) == [a]
    assert OutboxMessage.objects.come_back([behind.pk, a.pk]) == 2
    assert {row.id for row in OutboxMessage.objects.page(10, 100)} == {behind.pk, a.pk}
    assert OutboxMessage.objects.come_back([behind.pk]) == 0


def test_a_parked_time_is_beyond_any_clock_and_fits_the_column() -> None:
    for number in (-(2**63), -1, 0, 2**63 - 1):
        assert PARKED <= behind_key(number) < BEHIND_TOPIC
    assert BEHIND_TOPIC <= behind_topic("t") < 2**63
    assert factories.now() < PARKED


def test_a_hold_begins_gets_another_head_and_ends() -> None:
    key = keys.order_key("t", "a")
    other = keys.order_key("t", "b")
    Hold.objects.begin([NewHold(key, 7, "x" * 500), NewHold(other, 9, "no")])
    hold = Hold.objects.get(order_key=key)
    assert (hold.head_id, hold.reason) == (7, "x" * 100)
    Hold.objects.begin([NewHold(key, 5, "again")])
    again = Hold.objects.get(order_key=key)
    assert (again.pk, again.head_id, again.since) == (hold.pk, 5, hold.since)
    assert Hold.objects.let_go([7, 8]) == 0
    assert Hold.objects.let_go([5]) == 1
    assert Hold.objects.ending(10) == {key: None}
    Hold.objects.move(key, 6, None)
    assert Hold.objects.get(order_key=key).head_id == 6
    Hold.objects.end([key, other])
    assert Hold.objects.count() == 2  # neither is ending
    Hold.objects.let_go([6])
    Hold.objects.end([key])
    assert Hold.objects.get().order_key == other


def test_a_displaced_head_is_kept_if_it_is_dead_and_holds_again() -> None:
    dead = factories.OutboxMessageFactory.create(key="a", dead=True).pk
    waiting = factories.OutboxMessageFactory.create(key="b").pk
    Hold.objects.begin([NewHold(1, dead, ""), NewHold(2, waiting, "")])
    Hold.objects.begin([NewHold(1, 7, "", dead), NewHold(2, 8, "", waiting)])
    Hold.objects.begin([NewHold(1, 5, "", 7)])
    by_key = Hold.objects.order_by("order_key").values_list("head_id", "later_head_id")
    assert list(by_key) == [(5, dead), (8, None)]
    Hold.objects.let_go([5, 8])
    assert Hold.objects.ending(10) == {1: dead, 2: None}
    assert Hold.objects.ending(1) == {1: dead}
    Hold.objects.resume([1])
    assert list(by_key.all()) == [(dead, None), (0, None)]


def test_a_topic_is_written_whole_and_by_the_servers_clock() -> None:
    circuit = Circuit("Té", breaker="open", openings=1, probe_id=4, last_error="down")
    circuit.open_in = 60 * SECOND
    before = factories.now()
    TopicState.objects.record([circuit.row()])
    state = TopicState.objects.get(pk=keys.topic_id("Té"))
    assert (state.topic, state.breaker, state.probe_id) == ("Té", "open", 4)
    assert state.open_until is not None
    assert 59 * SECOND < state.open_until - before < 90 * SECOND
    assert list(TopicState.objects.notable()) == [state]
    TopicState.objects.record([Circuit("Té").row(), Circuit("u", failures=1).row()])
    state.refresh_from_db()
    assert [state.breaker, state.open_until, state.probe_id, state.last_error] == [
        "closed",
        None,
        None,
        "",
    ]
    assert [found.topic for found in TopicState.objects.notable()] == ["u"]


def test_a_glance_tells_what_there_is_to_do() -> None:
    assert glance(connection)[1:] == (False, False, False)
    message(due_at=factories.now() + 3600 * SECOND)
    factories.HoldFactory()
    factories.TopicStateFactory(open=True)
    seen = glance(connection)
    assert seen[1:] == (False, False, False)
    assert abs(seen.now - factories.now()) < 60 * SECOND
    message()
    factories.HoldFactory(head_id=0)
    factories.TopicStateFactory(unroutable_since=1)
    assert glance(connection)[1:] == (True, True, True)


def test_writing_is_tried_without_changing_anything() -> None:
    row = message()
    OutboxMessage.objects.writable()
    before = (row.attempts, row.due_at)
    row.refresh_from_db()
    assert (row.attempts, row.due_at) == before


def test_a_silent_session_is_bounded_for_a_while() -> None:
    if connection.vendor != "mysql":
        with silence_bound(connection, 3):
            return

    def limit() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.wait_timeout")
            return int(cursor.fetchone()[0])

    before = limit()
    with silence_bound(connection, 3):
        assert limit() == 3
    assert limit() == before
    with pytest.raises(ZeroDivisionError), silence_bound(connection, 3):
        raise ZeroDivisionError
    assert limit() == before


def test_a_vendor_without_a_dialect_is_named() -> None:
    from django.db import NotSupportedError

    other = connections["default"].copy()
    other.vendor = "punchcards"
    with pytest.raises(NotSupportedError, match="punchcards"):
        dialect(other)
