"""Messages of one key stay in order, whatever fails; other keys and messages go on."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.utils import timezone

from django_outbox_lock.models import Hold, OutboxMessage
from django_outbox_lock.outcomes import Rejected, Retry
from django_outbox_lock.querysets import PARKED

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.envelope import Envelope
    from tests.engines.conftest import Outbox

OUTSTANDING, SENT, DEAD = OutboxMessage.State.values


def failing(*payloads: Any, outcome: Any = None) -> Callable[[Envelope], Any]:
    return lambda e: (outcome or Retry("not now")) if e.json() in payloads else None


def test_waves_keep_the_order_of_a_key(outbox: Outbox) -> None:
    outbox.write("a1", "a2", "a3", key="a")
    outbox.write("b1", "b2", key="b")
    outbox.write("free")
    outbox.sweeper().tick()
    assert outbox.calls == [["a1", "b1", "free"], ["a2", "b2"], ["a3"]]


def test_a_publisher_that_preserves_order_gets_one_call(outbox: Outbox) -> None:
    options = {"behave": outbox._ask, "calls": outbox.calls, "ordered": True}
    outbox.configure(options=options)
    outbox.write("a1", "a2", key="a")
    outbox.write("b1", key="b")
    outbox.sweeper().tick()
    assert outbox.calls == [["a1", "a2", "b1"]]


def test_calls_are_no_larger_than_the_publisher_wants(outbox: Outbox) -> None:
    options = {"behave": outbox._ask, "calls": outbox.calls, "size": 2}
    outbox.configure(options=options)
    outbox.write(1, 2, 3, 4, 5)
    outbox.sweeper().tick()
    assert outbox.calls == [[1, 2], [3, 4], [5]]


def test_the_first_of_a_key_is_refused_and_the_second_waits(outbox: Outbox) -> None:
    """Case 013: in one page; other keys go on."""
    outbox.write("a1", "a2", "a3", key="a")
    outbox.write("b1", key="b")
    outbox.behave = failing("a1")
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert outbox.sent == ["b1"]
    assert outbox.parked() == ["a2", "a3"]
    assert outbox.hold().head_id == outbox.row("a1").pk
    row = outbox.row("a1")
    assert (row.state, row.attempts, row.last_error) == (OUTSTANDING, 1, "not now")
    outbox.behave = None
    outbox.make_due()
    sweeper.tick()
    assert outbox.sent == ["b1", "a1", "a2", "a3"]
    assert not Hold.objects.exists()


@pytest.mark.parametrize("ordered", [False, True])
def test_a_key_stays_in_order_through_many_failures(outbox: Outbox, *, ordered: bool) -> None:
    """Case 013: A1 fails twice, then succeeds."""
    outbox.configure(options={"behave": outbox._ask, "calls": outbox.calls, "ordered": ordered})
    left = {"a1": 2, "a3": 1}

    def behave(envelope: Envelope) -> Any:
        payload = envelope.json()
        if left.get(payload):
            left[payload] -= 1
            return Retry("not yet")
        return None

    outbox.behave = behave
    outbox.write("a1", "a2", "a3", "a4", key="a")
    outbox.write("b1", key="b")
    sweeper = outbox.sweeper()
    for _ in range(4):
        outbox.make_due()
        sweeper.tick()
    first = [p for p in dict.fromkeys(outbox.sent) if p != "b1"]
    assert first == ["a1", "a2", "a3", "a4"]
    assert outbox.sent[0] == "b1"
    assert set(outbox.states().values()) == {SENT}


def test_a_follower_written_after_its_head_failed_waits(outbox: Outbox) -> None:
    outbox.write("a1", key="a")
    outbox.behave = failing("a1")
    sweeper = outbox.sweeper()
    sweeper.tick()
    outbox.write("a2", key="a")
    sweeper.tick()
    assert outbox.seen == ["a1"]
    assert outbox.parked() == ["a2"]
    outbox.behave = None
    outbox.make_due()
    sweeper.tick()
    assert outbox.sent == ["a1", "a2"]


def test_a_head_that_died_before_it_had_followers_holds_them(outbox: Outbox) -> None:
    outbox.write("a1", key="a")
    outbox.behave = failing("a1", outcome=Rejected("never"))
    sweeper = outbox.sweeper()
    sweeper.tick()
    row = outbox.row("a1")
    assert (row.state, row.due_at, row.last_error, row.dead_reason) == (
        DEAD,
        None,
        "never",
        "rejected",
    )
    assert outbox.hold().head_id == row.pk
    outbox.write("a2", key="a")
    outbox.write("b1", key="b")
    sweeper.tick()
    assert outbox.sent == ["b1"]
    assert outbox.parked() == ["a2"]


def test_a_requeued_head_goes_first_and_lets_the_others_go(outbox: Outbox) -> None:
    outbox.write("a1", "a2", key="a")
    outbox.behave = failing("a1", outcome=Rejected("never"))
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert outbox.sent == []
    outbox.behave = None
    assert OutboxMessage.objects.filter(state=DEAD).requeue() == 1
    sweeper.tick()
    assert outbox.sent == ["a1", "a2"]
    assert not Hold.objects.exists()


def test_a_dead_head_is_skipped_where_the_policy_says_so(outbox: Outbox) -> None:
    outbox.configure(TOPICS={"skip.*": {"dead_head": "skip"}})
    outbox.write("a1", "a2", key="a", topic="skip.it")
    outbox.write("b1", "b2", key="b", topic="hold.it")
    outbox.behave = failing("a1", "b1", outcome=Rejected("never"))
    outbox.sweeper().tick()
    assert outbox.sent == ["a2"]
    assert outbox.parked() == ["b2"]


def test_a_head_that_fails_for_the_last_time_is_dead_and_skipped(outbox: Outbox) -> None:
    outbox.configure(TOPICS={"*": {"dead_head": "skip"}})
    outbox.write("a1", "a2", key="a")
    outbox.behave = failing("a1")
    sweeper = outbox.sweeper(max_attempts=3)
    for attempt in (1, 2, 3):
        assert outbox.sent == []
        outbox.make_due()
        sweeper.tick()
        assert outbox.row("a1").attempts == attempt
    assert (outbox.row("a1").state, outbox.row("a1").dead_reason) == (DEAD, "3 attempts failed")
    assert outbox.sent == ["a2"]
    assert not Hold.objects.exists()


def test_a_head_that_had_one_attempt(outbox: Outbox) -> None:
    outbox.write("a1", key="a")
    outbox.behave = failing("a1")
    outbox.sweeper(max_attempts=1).tick()
    assert outbox.row("a1").dead_reason == "1 attempt failed"


def test_an_expired_message_dies_and_holds_nobody(outbox: Outbox) -> None:
    past = timezone.now() - dt.timedelta(seconds=60)
    outbox.write("a1", key="a", expires_at=past)
    outbox.write("a2", key="a")
    outbox.sweeper().tick()
    assert outbox.sent == ["a2"]
    row = outbox.row("a1")
    assert (row.state, row.dead_reason, row.attempts) == (DEAD, "expired", 0)
    assert not Hold.objects.exists()


def test_an_expired_message_that_is_requeued_is_sent(outbox: Outbox) -> None:
    outbox.write("a1", key="a", expires_at=timezone.now() - dt.timedelta(seconds=60))
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert outbox.row("a1").dead_reason == "expired"
    assert OutboxMessage.objects.requeue() == 1
    sweeper.tick()
    assert outbox.sent == ["a1"]


def test_a_delayed_message_holds_the_later_ones_of_its_key(outbox: Outbox) -> None:
    outbox.write("a1", key="a", available_at=timezone.now() + dt.timedelta(hours=1))
    outbox.write("a2", key="a")
    outbox.write("b1", key="b")
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert outbox.sent == ["b1"]
    assert outbox.parked() == ["a2"]
    outbox.make_due()
    sweeper.tick()
    assert outbox.sent == ["b1", "a1", "a2"]


def test_a_message_that_is_due_but_outside_the_page_comes_first(outbox: Outbox) -> None:
    """``due_at`` decides when, never in which order."""
    outbox.write("a1", "a2", key="a")
    outbox.write("free")
    OutboxMessage.objects.filter(pk=outbox.row("a1").pk).update(due_at=5)
    OutboxMessage.objects.filter(pk=outbox.row("a2").pk).update(due_at=3)
    OutboxMessage.objects.filter(pk=outbox.row("free").pk).update(due_at=4)
    outbox.sweeper(batch_size=2).tick()
    assert sorted(outbox.sent) == ["a1", "a2", "free"]
    assert outbox.sent.index("a1") < outbox.sent.index("a2")


def test_within_a_page_the_order_of_writing_counts(outbox: Outbox) -> None:
    outbox.write("a1", "a2", key="a")
    OutboxMessage.objects.filter(pk=outbox.row("a2").pk).update(due_at=3)
    outbox.sweeper().tick()
    assert outbox.sent == ["a1", "a2"]
    assert not Hold.objects.exists()


def test_one_failing_key_stops_no_other(outbox: Outbox) -> None:
    for number in range(30):
        outbox.write(f"k{number}", key=f"k{number % 3}")
    outbox.behave = lambda e: Retry("no") if e.key == "k0" else None
    sweeper = outbox.sweeper(batch_size=7)
    for _ in range(3):
        outbox.make_due()
        sweeper.tick()
    assert len(outbox.sent) == 20
    assert outbox.seen.count("k0") == 3
    assert outbox.seen.count("k3") == 0


def test_three_hundred_followers_are_written_at_most_twice(outbox: Outbox) -> None:
    """300 followers of a head that fails ten times: parked once, brought back once."""
    outbox.write("head", *range(300), key="a")
    outbox.behave = failing("head")
    sweeper = outbox.sweeper(batch_size=100, max_attempts=20)
    written: list[int] = []

    def count(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        result = execute(sql, params, many, context)
        table = OutboxMessage._meta.db_table
        if sql.startswith("UPDATE") and table in sql.split("SET", maxsplit=1)[0]:
            written.append(context["cursor"].rowcount)
        return result

    def tick() -> None:
        with connections["default"].execute_wrapper(count):
            sweeper.tick()

    tick()
    for _ in range(9):
        outbox.make_due()
        tick()
    assert outbox.row("head").attempts == 10
    assert len(outbox.parked()) == 300
    outbox.behave = None
    outbox.make_due()
    tick()
    assert outbox.sent == ["head", *range(300)]
    sends, fails, parks, returns = 301, 10, 300, 300
    assert sum(written) <= sends + fails + parks + returns
    assert max(written) <= 100


def test_followers_come_back_a_page_at_a_time_and_in_order(outbox: Outbox) -> None:
    outbox.write(*range(25), key="a")
    outbox.write(*range(100, 110), key="b")
    outbox.behave = failing(0, 100)
    sweeper = outbox.sweeper(batch_size=4)
    for _ in range(3):
        sweeper.tick()
    outbox.write(25, key="a")
    sweeper.tick()
    assert outbox.sent == []
    outbox.behave = None
    outbox.make_due()
    sweeper.tick()
    assert [p for p in outbox.sent if p < 100] == list(range(26))
    assert [p for p in outbox.sent if p >= 100] == list(range(100, 110))
    assert not Hold.objects.exists()
    assert not OutboxMessage.objects.filter(due_at__gte=PARKED).exists()


def test_a_failure_in_the_middle_of_the_return_becomes_the_new_head(outbox: Outbox) -> None:
    outbox.write(*range(12), key="a")
    outbox.behave = failing(0)
    sweeper = outbox.sweeper(batch_size=4)
    sweeper.tick()
    outbox.behave = failing(5)
    outbox.make_due()
    sweeper.tick()
    assert outbox.sent == [0, 1, 2, 3, 4]
    assert outbox.hold().head_id == outbox.row(5).pk
    outbox.behave = None
    outbox.make_due()
    sweeper.tick()
    assert outbox.sent == list(range(12))


def test_a_hold_that_an_operator_ends_lets_the_followers_go(outbox: Outbox) -> None:
    outbox.write("a1", "a2", key="a")
    outbox.behave = failing("a1", outcome=Rejected("never"))
    sweeper = outbox.sweeper()
    sweeper.tick()
    assert Hold.objects.let_go([outbox.row("a1").pk]) == 1
    sweeper.tick()
    assert outbox.sent == ["a2"]
    assert not Hold.objects.exists()


def late(outbox: Outbox, payload: Any, before: Any, key: str = "a") -> None:
    """A message whose id was given earlier, and whose transaction commits only now."""
    outbox.write(payload, key=key)
    row, other = outbox.row(payload), outbox.row(before)
    OutboxMessage.objects.filter(pk=row.pk).update(id=other.pk - 1)


@pytest.mark.parametrize("batch_size", [3, 1000])
def test_a_late_earlier_message_does_not_end_the_hold_of_a_dead_head(
    outbox: Outbox, batch_size: int
) -> None:
    """It commits late, fails once, and is sent; those behind the dead one go on waiting."""
    outbox.write("gap")
    outbox.write("dead", "f1", "f2", "f3", "f4", key="a")
    OutboxMessage.objects.filter(pk=outbox.row("gap").pk).delete()
    outbox.behave = failing("dead", outcome=Rejected("never"))
    sweeper = outbox.sweeper(batch_size=batch_size)
    sweeper.tick()
    late(outbox, "late", "dead")
    outbox.behave = failing("late")
    sweeper.tick()
    assert outbox.hold().head_id == outbox.row("late").pk
    outbox.behave = None
    outbox.make_due()
    for _ in range(3):
        sweeper.tick()
    assert outbox.sent == ["late"]
    assert outbox.hold().head_id == outbox.row("dead").pk
    assert outbox.parked() == ["f1", "f2", "f3", "f4"]
    assert OutboxMessage.objects.all().let_go() == 1
    sweeper.tick()
    assert outbox.sent == ["late", "f1", "f2", "f3", "f4"]
    assert not Hold.objects.exists()


@pytest.mark.parametrize("batch_size", [2, 1000])
def test_what_waits_between_two_heads_goes_when_the_earlier_one_is_sent(
    outbox: Outbox, batch_size: int
) -> None:
    """Requeued messages that had been overtaken, before a later one that is dead and holds."""
    outbox.write("a1", "a2", "a3", "dead", "after", key="a")
    outbox.behave = failing("a1", "a2", "a3", "dead", outcome=Rejected("never"))
    sweeper = outbox.sweeper(batch_size=batch_size)
    for _ in range(3):
        sweeper.tick()
        OutboxMessage.objects.all().let_go()
    sweeper.tick()
    assert outbox.hold().head_id == outbox.row("dead").pk
    OutboxMessage.objects.filter(pk__lt=outbox.row("dead").pk).requeue()
    outbox.behave = failing("a1")
    sweeper.tick()
    outbox.behave = None
    outbox.make_due()
    for _ in range(3):
        sweeper.tick()
    assert outbox.sent == ["a1", "a2", "a3"]
    assert outbox.hold().head_id == outbox.row("dead").pk
    assert outbox.parked() == ["after"]
    OutboxMessage.objects.requeue()
    sweeper.tick()
    assert outbox.sent == ["a1", "a2", "a3", "dead", "after"]
    assert not Hold.objects.exists()


def test_a_displaced_head_that_is_requeued_comes_after_the_earlier_one(outbox: Outbox) -> None:
    outbox.write("gap")
    outbox.write("dead", "after", key="a")
    OutboxMessage.objects.filter(pk=outbox.row("gap").pk).delete()
    outbox.behave = failing("dead", outcome=Rejected("never"))
    sweeper = outbox.sweeper()
    sweeper.tick()
    late(outbox, "late", "dead")
    outbox.behave = failing("late")
    sweeper.tick()
    OutboxMessage.objects.requeue()
    sweeper.tick()
    assert outbox.parked() == ["dead", "after"]
    outbox.behave = None
    outbox.make_due()
    sweeper.tick()
    assert outbox.sent == ["late", "dead", "after"]
    assert not Hold.objects.exists()


def test_a_displaced_head_that_is_killed_where_the_policy_is_to_skip_never_holds_again(
    outbox: Outbox,
) -> None:
    outbox.configure(TOPICS={"*": {"dead_head": "skip"}})
    outbox.write("gap")
    outbox.write("second", "after", key="a")
    OutboxMessage.objects.filter(pk=outbox.row("gap").pk).delete()
    outbox.behave = failing("late", "second")
    sweeper = outbox.sweeper()
    sweeper.tick()
    late(outbox, "late", "second")
    sweeper.tick()
    assert outbox.hold().head_id == outbox.row("late").pk
    OutboxMessage.objects.filter(pk=outbox.row("second").pk).kill()
    outbox.behave = None
    outbox.make_due()
    sweeper.tick()
    assert outbox.sent == ["late", "after"]
    assert not Hold.objects.exists()


@pytest.mark.parametrize("policy", ["hold", "skip"])
def test_a_delayed_head_killed_before_anything_waited_for_it_holds_nobody(
    outbox: Outbox, policy: str
) -> None:
    """It is not in the page, so the write of the page has no row of it to miss."""
    outbox.configure(TOPICS={"*": {"dead_head": policy}})
    outbox.write("a1", key="a", available_at=timezone.now() + dt.timedelta(hours=1))
    outbox.write("a2", key="a")
    outbox.write("b1", key="b")

    def killed_meanwhile(envelope: Envelope) -> Any:
        OutboxMessage.objects.filter(pk=outbox.row("a1").pk).kill()

    outbox.behave = killed_meanwhile
    sweeper = outbox.sweeper()
    sweeper.tick()
    sweeper.tick()
    assert outbox.sent == ["b1", "a2"]
    assert not Hold.objects.exists()


def test_followers_of_a_dead_head_that_is_let_go_come_back_in_order(outbox: Outbox) -> None:
    outbox.write("a1", *range(9), key="a")
    outbox.behave = failing("a1", outcome=Rejected("never"))
    sweeper = outbox.sweeper(batch_size=4)
    for _ in range(3):
        sweeper.tick()
    assert OutboxMessage.objects.all().let_go() == 1
    sweeper.tick()
    assert outbox.sent == list(range(9))
    assert outbox.states()["a1"] == DEAD
    assert not Hold.objects.exists()


@pytest.mark.parametrize("policy", ["hold", "skip"])
def test_a_head_killed_before_it_failed_holds_nobody(outbox: Outbox, policy: str) -> None:
    """It held nothing when the operator gave it up; a hold behind it would never end."""
    outbox.configure(TOPICS={"*": {"dead_head": policy}})
    outbox.write("head", "next", key="a")

    def killed_meanwhile(envelope: Envelope) -> Any:
        if envelope.json() != "head":
            return None
        OutboxMessage.objects.filter(pk=outbox.row("head").pk).kill()
        return Retry("busy")

    outbox.behave = killed_meanwhile
    sweeper = outbox.sweeper()
    sweeper.tick()
    sweeper.tick()
    assert outbox.states() == {"head": DEAD, "next": SENT}
    assert not Hold.objects.exists()
