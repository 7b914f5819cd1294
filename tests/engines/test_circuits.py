"""Topics that are left alone for a while, and topics that lead nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.models import OutboxMessage, TopicState
from django_outbox_lock.outcomes import Rejected, Retry

if TYPE_CHECKING:
    from django_outbox_lock.envelope import Envelope
    from tests.engines.conftest import Outbox

OUTSTANDING, SENT, DEAD = OutboxMessage.State.values


def down(envelope: Envelope) -> Any:
    raise TransportDown("nobody listens on amqp://user:secret@broker")


def refuse(envelope: Envelope) -> Any:
    return Retry("busy")


def test_a_transport_that_is_down_burns_no_attempt_and_opens_its_topics(outbox: Outbox) -> None:
    outbox.write(1, 2, topic="t")
    outbox.write(3, topic="u")
    outbox.behave = lambda e: down(e) if e.json() == 2 else None
    outbox.sweeper().tick()
    assert outbox.seen == [1, 2]
    assert outbox.states() == {1: SENT, 2: OUTSTANDING, 3: OUTSTANDING}
    assert [outbox.row(n).attempts for n in (2, 3)] == [0, 0]
    assert outbox.parked() == [2, 3]
    for topic in "tu":
        state = outbox.topic(topic)
        assert (state.breaker, state.openings) == ("open", 1)
        assert "user:***@broker" in state.last_error


def test_while_a_topic_is_open_its_messages_are_parked_once(outbox: Outbox) -> None:
    outbox.write(1)
    outbox.behave = down
    sweeper = outbox.sweeper()
    sweeper.tick()
    outbox.write(2, 3)
    outbox.write(4, topic="other")
    outbox.behave = None
    for _ in range(3):
        sweeper.tick()
    assert outbox.sent == [4]
    assert outbox.parked() == [1, 2, 3]
    assert sweeper.totals.parked == 3


def test_a_probe_that_succeeds_brings_the_rest_back_in_order(outbox: Outbox) -> None:
    outbox.write(*range(7))
    outbox.behave = down
    sweeper = outbox.sweeper(batch_size=3)
    sweeper.tick()
    outbox.behave = None
    outbox.calls.clear()
    outbox.pass_cooldown()
    sweeper.tick()
    assert outbox.calls[0] == [0]
    assert outbox.sent == list(range(7))
    state = outbox.topic()
    assert (state.breaker, state.failures, state.openings, state.open_until) == (
        "closed",
        0,
        0,
        None,
    )


def test_a_probe_is_alone_and_the_others_wait(outbox: Outbox) -> None:
    outbox.write("a1", "a2", key="a")
    outbox.write("b1", key="b")
    outbox.behave = down
    sweeper = outbox.sweeper()
    sweeper.tick()
    outbox.pass_cooldown()
    sweeper.tick()
    assert outbox.calls == [["a1", "b1"], ["a1"]]


def test_a_failed_probe_opens_again_for_longer_and_the_next_one_is_another(outbox: Outbox) -> None:
    outbox.write("a1", "a2", key="a")
    outbox.write("b1", key="b")
    outbox.write("c1", key="c")
    outbox.behave = down
    sweeper = outbox.sweeper(breaker_cooldown=100, breaker_cap=1000)
    sweeper.tick()
    first = outbox.topic().open_until
    assert first is not None
    for openings in (2, 3, 4):
        outbox.pass_cooldown()
        sweeper.tick()
        assert outbox.topic().openings == openings
    assert outbox.seen == ["a1", "a1", "b1", "c1"]
    second = outbox.topic().open_until
    assert second is not None
    assert second - first > 400 * 1_000_000
    assert [outbox.row(p).attempts for p in ("a1", "a2", "b1", "c1")] == [0, 0, 0, 0]


def test_a_message_that_breaks_the_transport_is_dead_after_max_attempts(outbox: Outbox) -> None:
    outbox.write("poison", "after", key="a")
    outbox.behave = lambda e: down(e) if e.json() == "poison" else None
    sweeper = outbox.sweeper(max_attempts=3)
    sweeper.tick()
    for number in range(3):
        assert outbox.row("poison").state == OUTSTANDING
        outbox.write(number, topic="other")
        sweeper.tick()
        outbox.pass_cooldown()
        sweeper.tick()
    row = outbox.row("poison")
    assert (row.state, row.dead_reason, row.attempts) == (DEAD, "breaks the transport", 3)
    outbox.write("free")
    outbox.pass_cooldown()
    sweeper.tick()
    assert outbox.sent == [0, 1, 2, "free"]


def test_case_007_a_long_outage_kills_nothing(outbox: Outbox) -> None:
    """Case 007: the only message of a topic fails more probes than it has attempts."""
    outbox.write("before")
    sweeper = outbox.sweeper(max_attempts=3)
    sweeper.tick()
    outbox.write("alone", topic="quiet")
    outbox.behave = down
    for _ in range(10):
        sweeper.tick()
        outbox.pass_cooldown()
    row = outbox.row("alone")
    assert (row.state, row.attempts) == (OUTSTANDING, 1)
    outbox.behave = None
    sweeper.tick()
    assert outbox.sent == ["before", "alone"]


def test_a_poison_message_stops_nobody_else_for_long(outbox: Outbox) -> None:
    outbox.write("poison")
    outbox.write(*range(5))
    outbox.behave = lambda e: down(e) if e.json() == "poison" else None
    sweeper = outbox.sweeper(max_attempts=3)
    for _ in range(12):
        sweeper.tick()
        outbox.pass_cooldown()
    assert sorted(outbox.sent) == list(range(5))


def test_fresh_failures_in_a_row_open_the_topic(outbox: Outbox) -> None:
    outbox.write(*range(4))
    outbox.behave = refuse
    sweeper = outbox.sweeper(breaker_threshold=5)
    sweeper.tick()
    assert (outbox.topic().breaker, outbox.topic().failures) == ("closed", 4)
    outbox.write(4, 5)
    sweeper.tick()
    assert outbox.topic().breaker == "open"
    assert outbox.row(0).attempts == 1


def test_a_success_in_between_starts_the_count_anew(outbox: Outbox) -> None:
    outbox.write(*range(9))
    outbox.behave = lambda e: None if e.json() == 4 else refuse(e)
    outbox.sweeper(breaker_threshold=5).tick()
    assert (outbox.topic().breaker, outbox.topic().failures) == ("closed", 4)


def test_one_message_that_fails_for_ever_opens_nothing(outbox: Outbox) -> None:
    outbox.write("poison", key="a")
    outbox.behave = lambda e: refuse(e) if e.json() == "poison" else None
    sweeper = outbox.sweeper(breaker_threshold=3, max_attempts=20)
    for number in range(8):
        outbox.make_due()
        sweeper.tick()
        outbox.write(number) if number == 7 else None
    sweeper.tick()
    assert outbox.sent == [7]
    assert outbox.row("poison").attempts == 8
    assert outbox.topic().breaker == "closed"


def test_an_outage_makes_no_message_dead(outbox: Outbox) -> None:
    """Case 007: 50 messages, five attempts, an outage that outlasts them; all go out after it."""
    outbox.write(*range(50))
    outbox.behave = lambda _: 1 / 0
    sweeper = outbox.sweeper(max_attempts=5)
    for _ in range(12):
        outbox.make_due()
        outbox.pass_cooldown()
        sweeper.tick()
    assert DEAD not in outbox.states().values()
    outbox.behave = None
    for _ in range(3):
        outbox.make_due()
        outbox.pass_cooldown()
        sweeper.tick()
    assert sorted(outbox.sent) == list(range(50))


def test_a_permanent_error_parks_only_its_message(outbox: Outbox) -> None:
    """Case 009."""
    outbox.write(*range(101))
    outbox.behave = lambda e: Rejected("never") if e.json() == 50 else None
    sweeper = outbox.sweeper()
    for _ in range(3):
        sweeper.tick()
    assert len(outbox.sent) == 100
    row = outbox.row(50)
    assert (row.state, row.attempts, row.last_error) == (DEAD, 1, "never")
    assert outbox.seen.count(50) == 1


def test_a_message_without_a_route_waits_and_burns_no_attempt(outbox: Outbox) -> None:
    outbox.configure(ROUTES={"known.*": "default"})
    outbox.write("lost", topic="unknown")
    outbox.write("found", topic="known.one")
    sweeper = outbox.sweeper()
    for _ in range(3):
        sweeper.tick()
    assert outbox.sent == ["found"]
    row = outbox.row("lost")
    assert (row.state, row.attempts) == (OUTSTANDING, 0)
    assert outbox.parked() == ["lost"]
    state = outbox.topic("unknown")
    assert state.unroutable_since is not None
    assert "No route" in state.last_error
    assert sweeper.totals.parked == 1


def test_a_newer_sweeper_that_knows_the_route_sends_it(outbox: Outbox) -> None:
    outbox.configure(ROUTES={"known.*": "default"})
    outbox.write("a1", "a2", key="a", topic="new.one")
    outbox.sweeper().tick()
    outbox.configure(ROUTES={"*": "default"})
    outbox.sweeper().tick()
    assert outbox.sent == ["a1", "a2"]
    assert outbox.topic("new.one").unroutable_since is None


def test_a_publisher_that_does_not_know_the_topic_is_no_route(outbox: Outbox) -> None:
    options = {"behave": outbox._ask, "knows": lambda topic: topic != "strange"}
    outbox.configure(options=options)
    outbox.write("lost", topic="strange")
    outbox.sweeper().tick()
    assert outbox.seen == []
    assert outbox.topic("strange").unroutable_since is not None


def test_without_a_route_for_too_long_it_is_dead(outbox: Outbox) -> None:
    outbox.configure(ROUTES={"known.*": "default"})
    outbox.write("a1", "a2", key="a", topic="unknown")
    outbox.write("b1", topic="unknown")
    sweeper = outbox.sweeper(unroutable_after=3600)
    sweeper.tick()
    TopicState.objects.update(unroutable_since=1)
    outbox.write("late", topic="unknown")
    sweeper.tick()
    assert outbox.row("a1").state == DEAD
    assert outbox.row("a1").dead_reason == "without a route"
    assert outbox.row("b1").state == DEAD
    assert outbox.row("a2").state == OUTSTANDING  # held by its head, as the policy says
    assert outbox.row("late").state == OUTSTANDING  # it has not waited yet
    assert outbox.hold().head_id == outbox.row("a1").pk
    sweeper.tick()
    assert outbox.row("late").state == OUTSTANDING


def test_many_without_a_route_die_a_page_at_a_time(outbox: Outbox) -> None:
    outbox.configure(ROUTES={"known.*": "default"})
    outbox.write(*range(25), topic="unknown")
    sweeper = outbox.sweeper(batch_size=4)
    sweeper.tick()
    TopicState.objects.update(unroutable_since=1)
    sweeper.tick()
    assert set(outbox.states().values()) == {DEAD}
    sweeper.tick()
    assert not sweeper.look()


@pytest.mark.parametrize("size", [2, 100])
def test_keys_stay_in_order_through_an_outage(outbox: Outbox, size: int) -> None:
    for number in range(4):
        outbox.write(f"a{number}", key="a")
        outbox.write(f"b{number}", key="b")
    outbox.behave = down
    sweeper = outbox.sweeper(batch_size=size)
    sweeper.tick()
    outbox.behave = None
    outbox.write("a4", key="a")
    for _ in range(4):
        outbox.pass_cooldown()
        sweeper.tick()
        outbox.make_due()
    assert [p for p in outbox.sent if p[0] == "a"] == [f"a{n}" for n in range(5)]
    assert [p for p in outbox.sent if p[0] == "b"] == [f"b{n}" for n in range(4)]
