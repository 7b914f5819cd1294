"""What publishers may do, and what the sweeper makes of it."""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections, transaction

from django_outbox_lock.engines.courier import Call, Courier, _Worker
from django_outbox_lock.exceptions import TooManyHangingSends, TransportDown
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.outbox import publish
from django_outbox_lock.outcomes import Rejected, Retry, Sent
from tests.engines.publishers import Hanging
from tests.publishers.envelopes import make_envelope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.envelope import Envelope
    from tests.engines.conftest import Outbox

OUTSTANDING, SENT, DEAD = OutboxMessage.State.values
PUBLISHERS = "tests.engines.publishers"


@pytest.fixture
def hanging() -> Iterator[type[Hanging]]:
    Hanging.released, Hanging.closed = threading.Event(), threading.Event()
    yield Hanging
    Hanging.released.set()


@pytest.mark.parametrize("room", ["Scripted", "AtOnce"])
def test_an_error_blames_only_who_raises_alone(outbox: Outbox, room: str) -> None:
    outbox.configure(f"{PUBLISHERS}.{room}")
    outbox.write(*range(5))
    outbox.behave = lambda e: 1 / 0 if e.json() == 2 else None
    outbox.sweeper().tick()
    assert set(outbox.sent) == {0, 1, 3, 4}
    assert [outbox.row(n).state for n in range(5)] == [SENT, SENT, OUTSTANDING, SENT, SENT]
    assert [outbox.row(n).attempts for n in range(5)] == [1, 1, 1, 1, 1]
    assert outbox.row(2).last_error == "ZeroDivisionError: division by zero"


def test_an_error_of_a_call_does_not_mix_up_a_key(outbox: Outbox) -> None:
    outbox.configure(options={"behave": outbox._ask, "calls": outbox.calls, "ordered": True})
    outbox.write("a1", "a2", "a3", key="a")
    outbox.write("b1", key="b")
    outbox.behave = lambda e: 1 / 0 if e.json() == "a2" else None
    outbox.sweeper().tick()
    assert outbox.sent == ["a1", "b1"]
    assert outbox.row("a2").attempts == 1
    assert outbox.row("a3").attempts == 0
    assert outbox.parked() == ["a3"]


@pytest.mark.parametrize("given", [None, True, Sent, "sent"])
def test_what_is_no_outcome_is_a_retry(outbox: Outbox, given: Any) -> None:
    class Odd:
        def __bool__(self) -> bool:
            return True

    outbox.write(1)
    outbox.behave = lambda _: given if given is not None else Odd()
    outbox.configure(options={"behave": outbox.behave})
    outbox.sweeper().tick()
    row = outbox.row(1)
    assert (row.state, row.attempts) == (OUTSTANDING, 1)
    assert "instead of an outcome" in row.last_error


@pytest.mark.parametrize(
    "after", [dt.timedelta(minutes=5), float("nan"), float("inf"), 10.0**30, "300", True]
)
def test_a_delay_that_is_none_is_told_and_replaced_by_the_back_off(
    outbox: Outbox, after: Any
) -> None:
    """It must not end the process: the message would be sent again at each start, for ever."""
    outbox.write(1, 2)
    outbox.behave = lambda e: Retry("busy", after=after) if e.json() == 1 else None
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert outbox.sent == [2]
    row = outbox.row(1)
    assert (row.state, row.attempts) == (OUTSTANDING, 1)
    assert row.last_error == f"busy (after={after!r} is no number of seconds)"
    assert not sweeper.look()  # it waits


@pytest.mark.parametrize("outcome", [Retry, Rejected])
@pytest.mark.parametrize("reason", [ValueError("no stock"), None, 7])
def test_a_reason_that_is_no_text_is_made_one(
    outbox: Outbox, outcome: type[Retry | Rejected], reason: Any
) -> None:
    outbox.write(1, 2)
    outbox.behave = lambda e: outcome(reason) if e.json() == 1 else None
    outbox.sweeper().tick()
    assert outbox.sent == [2]
    assert outbox.row(1).last_error == str(reason)


def test_too_few_outcomes_are_asked_for_again_one_by_one(outbox: Outbox) -> None:
    outbox.configure(f"{PUBLISHERS}.Short", options={"calls": outbox.calls})
    outbox.write(1, 2, 3)
    outbox.sweeper().tick()
    assert outbox.calls == [[1, 2, 3], [2], [3]]
    assert set(outbox.states().values()) == {SENT}


def test_a_message_that_ends_the_thread_blames_itself(outbox: Outbox) -> None:
    outbox.write(1, 2)
    outbox.behave = lambda e: sys.exit(3) if e.json() == 1 else None
    outbox.sweeper().tick()
    assert outbox.sent == [2]
    assert outbox.row(1).last_error == "SystemExit: 3"


def test_a_row_that_cannot_be_read_stops_nobody(outbox: Outbox) -> None:
    """Case 003: the headers of the middle one are damaged."""
    outbox.write(1, 2, 3)
    OutboxMessage.objects.filter(pk=outbox.row(2).pk).update(headers='{"a":')
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert outbox.sent == [1, 3]
    row = outbox.row(2)
    assert (row.state, row.dead_reason) == (DEAD, "unreadable")
    assert "JSONDecodeError" in row.last_error
    assert sweeper.totals.dead == 1
    assert not sweeper.look()


def test_a_value_that_the_driver_refuses_stops_nobody(outbox: Outbox) -> None:
    """Case 003: the id itself is damaged, where the column lets it be."""
    outbox.write(1, 2, 3, key="a")
    outbox.write("free")
    damaged = outbox.row(2)
    if connection.features.has_native_uuid_field:
        OutboxMessage.objects.filter(pk=damaged.pk).update(headers="null")
    else:
        with connection.cursor() as cursor:
            table = OutboxMessage._meta.db_table
            cursor.execute(f"UPDATE {table} SET message_id = 'x' WHERE id = {damaged.pk}")
    outbox.sweeper().tick()
    assert sorted(map(str, outbox.sent)) == ["1", "free"]
    found = OutboxMessage.objects.filter(pk=damaged.pk).values("state", "dead_reason")
    assert list(found) == [{"state": DEAD, "dead_reason": "unreadable"}]
    assert outbox_waiting() == [3]


@pytest.mark.parametrize(
    "column",
    ["topic", "key", "headers", "content_type", "correlation_id", "causation_id", "created_at"],
)
@pytest.mark.parametrize("key", [None, "a"])
@pytest.mark.server("sqlite")
def test_a_text_that_is_not_utf8_stops_nobody(outbox: Outbox, column: str, key: str | None) -> None:
    """Case 003: only SQLite keeps such a text, and only reading it shows what it is."""
    outbox.write(1)
    outbox.write(2, 3, key=key)
    outbox.write(4)
    damaged = outbox.row(2).pk
    with connection.cursor() as cursor:
        table, column = OutboxMessage._meta.db_table, connection.ops.quote_name(column)
        cursor.execute(f"UPDATE {table} SET {column} = CAST(x'ff' AS TEXT) WHERE id = {damaged}")
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert outbox.sent == ([1, 4] if key else [1, 3, 4])
    found = OutboxMessage.objects.filter(pk=damaged).values("state", "dead_reason")
    assert list(found) == [{"state": DEAD, "dead_reason": "unreadable"}]
    assert outbox_waiting() == ([3] if key else [])
    assert not sweeper.look()


def outbox_waiting() -> list[Any]:
    import json

    bodies = OutboxMessage.objects.filter(state=OUTSTANDING).values_list("body", flat=True)
    return [json.loads(bytes(body)) for body in bodies]


def test_what_is_acknowledged_late_counts_when_it_is_known(outbox: Outbox) -> None:
    """Case 005: the broker refuses after a while; nothing is marked before its word."""
    outbox.write(1)

    def slowly(envelope: Envelope) -> Any:
        assert outbox.row(1).state == OUTSTANDING
        time.sleep(0.1)
        return Rejected("no exchange 'x'")

    outbox.behave = slowly
    outbox.sweeper().tick()
    assert (outbox.row(1).state, outbox.row(1).last_error) == (DEAD, "no exchange 'x'")


def test_no_transaction_is_open_while_a_publisher_runs(outbox: Outbox) -> None:
    """Case 023: others write meanwhile."""

    def write_meanwhile(envelope: Envelope) -> None:
        if envelope.json() == 1:
            with transaction.atomic():  # on the publisher's thread, in a session of its own
                publish("t", "written meanwhile")
                OutboxMessage.objects.filter(topic="t").update(causation_id="touched")

    outbox.write(1, 2)
    outbox.behave = write_meanwhile
    started = time.monotonic()
    outbox.sweeper().tick()
    assert time.monotonic() - started < 5
    assert outbox.sent[:2] == [1, 2]


def test_a_send_that_hangs_costs_its_own_topic_only(outbox: Outbox, hanging: type[Hanging]) -> None:
    """Case 023: it is given up after send_timeout; the others go out in the next page."""
    behave = lambda e: e.json() == "hang"  # noqa: E731
    outbox.configure(f"{PUBLISHERS}.Hanging", options={"behave": behave, "calls": outbox.calls})
    outbox.write("first")
    outbox.write("hang", "same topic", topic="slow")
    outbox.write("other", topic="fast")
    sweeper = outbox.sweeper(send_timeout=1.5)  # which those that do not hang must keep within
    sweeper.tick()
    sweeper.tick()
    assert outbox.states() == {
        "first": SENT,
        "hang": OUTSTANDING,
        "same topic": OUTSTANDING,
        "other": SENT,
    }
    row = outbox.row("hang")
    assert row.attempts == 1
    assert "Timed out" in row.last_error
    assert outbox.row("same topic").attempts == 0
    assert outbox.topic("slow").breaker == "open"
    assert outbox.parked() == ["same topic"]


def test_time_counts_from_the_last_outcome(outbox: Outbox) -> None:
    outbox.write(*range(4))
    outbox.behave = lambda _: time.sleep(0.6)
    sweeper = outbox.sweeper(send_timeout=2)
    sweeper.tick()
    assert outbox.sent == list(range(4))
    assert [len(call) for call in outbox.calls] == [4]


def test_an_outcome_that_comes_too_late_changes_nothing(
    outbox: Outbox, hanging: type[Hanging]
) -> None:
    behave = lambda _: True  # noqa: E731
    outbox.configure(f"{PUBLISHERS}.Hanging", options={"behave": behave})
    outbox.write("hang")
    sweeper = outbox.sweeper(send_timeout=0.1)
    sweeper.tick()
    before = OutboxMessage.objects.values().get()
    hanging.released.set()
    sweeper.tick()
    assert OutboxMessage.objects.values().get() == before


def test_an_outcome_that_comes_while_the_call_is_given_up_hides_nobody(outbox: Outbox) -> None:
    """The abandoned thread may go on at any moment; here it does so behind the first look."""

    class Late(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            self.append(Sent())
            return iter([])

    class Slow(Courier):
        def carry(self, *args: Any) -> Call:
            call = Call(*args)
            call.outcomes, call.timed_out = Late(), True
            return call

    outbox.write(1)
    sweeper = outbox.sweeper()
    sweeper._courier = Slow(1.0)
    sweeper.tick()
    row = outbox.row(1)
    assert (row.state, row.attempts) == (OUTSTANDING, 1)
    assert "Timed out" in row.last_error


def test_after_too_many_hanging_sends_the_process_gives_up(
    outbox: Outbox, hanging: type[Hanging]
) -> None:
    behave = lambda _: True  # noqa: E731
    outbox.configure(f"{PUBLISHERS}.Hanging", options={"behave": behave})
    sweeper = outbox.sweeper(send_timeout=0.05, max_hanging=2)
    outbox.write(1, topic="a")
    sweeper.tick()
    outbox.write(2, topic="b")
    with pytest.raises(TooManyHangingSends):
        sweeper.tick()
    assert outbox.row(2).attempts == 1  # it was recorded before
    handle = sweeper.backend.obtain(sweeper.resource)
    assert handle is not None  # and the lock was given back
    handle.release()


def test_a_publisher_that_was_given_up_is_closed_when_it_comes_back(
    outbox: Outbox, hanging: type[Hanging]
) -> None:
    """Another instance is in its place: nobody else would ever close its connection."""
    behave = lambda _: True  # noqa: E731
    outbox.configure(f"{PUBLISHERS}.Hanging", options={"behave": behave})
    outbox.write("hang")
    outbox.sweeper(send_timeout=0.1).tick()
    assert not hanging.closed.is_set()
    hanging.released.set()
    assert hanging.closed.wait(5)


def test_a_publisher_that_cannot_say_what_it_handles_is_asked_to_publish(outbox: Outbox) -> None:
    knows = lambda topic: 1 / 0 if topic == "odd" else True  # noqa: E731
    outbox.configure(options={"calls": outbox.calls, "knows": knows})
    outbox.write(1, topic="odd")
    outbox.write(2, topic="even")
    outbox.sweeper().tick()
    assert set(outbox.states().values()) == {SENT}


def test_a_call_that_hangs_does_not_keep_the_sweeper_from_closing(
    outbox: Outbox, hanging: type[Hanging]
) -> None:
    """As when a time limit of a task queue interrupts ``tick`` in the middle of a call."""
    courier = Courier(0.1)
    publisher = hanging(behave=lambda _: True)
    worker = courier._worker = _Worker()
    worker.calls.put(Call(publisher, [make_envelope()], lambda: False))
    courier.close()
    assert worker.is_alive()


def test_the_connections_of_a_publisher_are_closed_after_each_call(outbox: Outbox) -> None:
    """K17: the thread's own connection does not stay idle for hours."""
    seen: list[Any] = []

    def use_database(envelope: Envelope) -> None:
        OutboxMessage.objects.count()
        seen.append(connections["default"])

    outbox.write(1, 2)
    outbox.behave = use_database
    outbox.sweeper().tick()
    assert seen[0] is seen[1] is not connections["default"]
    assert seen[0].connection is None


def test_several_publishers_each_get_their_part(outbox: Outbox) -> None:
    calls: dict[str, list[Any]] = {"a": [], "b": []}

    def broken(envelope: Envelope) -> Any:
        raise TransportDown("gone")

    room = f"{PUBLISHERS}.Scripted"
    outbox.settings.OUTBOX_LOCK = {
        "default": {
            "PUBLISHERS": {
                "one": {"BACKEND": room, "OPTIONS": {"calls": calls["a"], "behave": broken}},
                "two": {"BACKEND": room, "OPTIONS": {"calls": calls["b"]}},
            },
            "ROUTES": {"a.*": "one", "*": "two"},
        }
    }
    outbox.write(1, topic="a.x")
    outbox.write(2, topic="b.x")
    outbox.write(3, topic="a.y")
    outbox.write(4, topic="A.x")
    outbox.sweeper().tick()
    assert calls == {"a": [[1, 3]], "b": [[2, 4]]}
    assert outbox.states() == {1: OUTSTANDING, 2: SENT, 3: OUTSTANDING, 4: SENT}


def test_errors_are_shortened_and_lose_their_secrets(outbox: Outbox) -> None:
    def behave(envelope: Envelope) -> Any:
        return Retry("amqp://user:secret@host refused \0 " + "x" * 5000)

    outbox.write(1)
    outbox.behave = behave
    outbox.sweeper().tick()
    error = outbox.row(1).last_error
    assert error.startswith("amqp://user:***@host refused ? x")
    assert len(error) == 2000


def test_a_retry_may_name_its_time(outbox: Outbox) -> None:
    outbox.write(1, 2)
    outbox.behave = lambda e: Retry("later", after=1000) if e.json() == 1 else Retry("soon", 0)
    sweeper = outbox.sweeper(max_attempts=3)
    for _ in range(3):
        sweeper.tick()
    assert outbox.seen == [1, 2, 2, 2]


def test_a_stop_is_heard_before_the_next_message(outbox: Outbox) -> None:
    outbox.write(*range(5))
    sweeper = outbox.sweeper()
    outbox.behave = lambda e: sweeper.stop() if e.json() == 2 else None
    sweeper.tick()
    assert outbox.sent == [0, 1, 2]
    assert list(outbox.states().values()) == [SENT] * 3 + [OUTSTANDING] * 2
    assert outbox.parked() == []


def test_a_wave_that_was_sent_ahead_is_finished_before_the_stop(outbox: Outbox) -> None:
    outbox.configure(f"{PUBLISHERS}.AtOnce")
    outbox.write("a1", "a2", key="a")
    outbox.write("b1", "b2", key="b")
    sweeper = outbox.sweeper()
    outbox.behave = lambda e: sweeper.stop() if e.json() == "a1" else None
    sweeper.tick()
    assert outbox.sent == ["a1", "b1"]
    assert outbox.states() == {"a1": SENT, "a2": OUTSTANDING, "b1": SENT, "b2": OUTSTANDING}


def test_a_page_is_bounded_by_seconds(outbox: Outbox) -> None:
    outbox.write(*range(6))
    outbox.behave = lambda _: time.sleep(0.05)
    outbox.sweeper(page_seconds=0.08).tick()
    assert outbox.sent == list(range(6))
    assert len(outbox.calls) >= 2


@pytest.mark.server("sqlite")
def test_a_number_that_is_none_stops_nobody(outbox: Outbox) -> None:
    """Case 003: SQLite keeps a text in a column of numbers as well."""
    outbox.write(1, 2, 3)
    damaged = outbox.row(2).pk
    with connection.cursor() as cursor:
        table = OutboxMessage._meta.db_table
        cursor.execute(f"UPDATE {table} SET expires_at = 'x' WHERE id = {damaged}")
    outbox.sweeper().tick()
    assert outbox.sent == [1, 3]
    found = OutboxMessage.objects.filter(pk=damaged).values("state", "dead_reason")
    assert list(found) == [{"state": DEAD, "dead_reason": "unreadable"}]
