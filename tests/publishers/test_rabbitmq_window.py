"""Which messages may go, and what the broker's answers mean, without a broker."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from django_outbox_lock.backends.publishers.inflight import Batch
from django_outbox_lock.backends.publishers.rabbitmq.messages import to_message
from django_outbox_lock.backends.publishers.rabbitmq.window import Flight, Window
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Rejected, Retry, Sent
from tests.publishers.envelopes import make_envelope

if TYPE_CHECKING:
    from django_outbox_lock.envelope import Envelope


class Sender:
    """A window, one batch of envelopes, and what has been taken so far."""

    def __init__(self, *envelopes: Envelope, limit: int = 3) -> None:
        self.window = Window(limit)
        self.batch = Batch(len(envelopes))
        self.ids = [str(envelope.message_id) for envelope in envelopes]
        messages = [to_message(envelope, "", envelope.topic) for envelope in envelopes]
        self.window.add([Flight(self.batch, n, message) for n, message in enumerate(messages)])

    def take(self) -> list[int]:
        """The places of all that may go now."""
        places = []
        while flight := self.window.take():
            places.append(flight.place)
        return places

    def decided(self) -> list[Outcome]:
        """The outcomes up to the first that is not known."""
        self.batch.fail(TransportDown("end"))
        decided = []
        with contextlib.suppress(TransportDown):
            for outcome in self.batch.outcomes(1, lambda: TransportDown("late")):
                decided.append(outcome)  # noqa: PERF402 (what comes before the exception counts)
        return decided


def several(count: int, **fields: object) -> list[Envelope]:
    return [make_envelope(**fields) for _ in range(count)]


def test_as_many_as_the_limit_are_in_flight() -> None:
    sender = Sender(*several(5))
    assert sender.take() == [0, 1, 2]
    sender.window.confirmed(1, multiple=False, kept=True)
    assert sender.take() == [3]
    sender.window.confirmed(4, multiple=True, kept=True)
    assert sender.take() == [4]
    assert sender.decided() == [Sent()] * 4


def test_large_bodies_wait_for_each_other() -> None:
    sender = Sender(*several(4, body=b"x" * 9_000_000))
    assert sender.take() == [0, 1], "16 MiB, overdrawn by one message at most"
    sender.window.confirmed(1, multiple=False, kept=True)
    assert sender.take() == [2]


def test_negative_answer_is_for_now_and_covers_all_before_it() -> None:
    sender = Sender(*several(3))
    sender.take()
    sender.window.confirmed(2, multiple=True, kept=False)
    assert [type(outcome) for outcome in sender.decided()] == [Retry, Retry]


@pytest.mark.parametrize("kept", [True, False])
def test_returned_is_rejected_whatever_the_answer(kept: bool) -> None:  # noqa: FBT001
    sender = Sender(*several(3))
    sender.take()
    sender.window.returned(sender.ids[1], "312 NO_ROUTE")
    sender.window.confirmed(2, multiple=True, kept=kept)
    outcomes = sender.decided()
    assert isinstance(outcomes[1], Rejected)
    assert not isinstance(outcomes[0], Rejected)


def test_after_an_interruption_each_goes_alone_until_the_culprit_is_found() -> None:
    sender = Sender(*several(5))
    assert sender.take() == [0, 1, 2]
    assert sender.window.interrupted("406")
    assert sender.take() == [0]
    sender.window.confirmed(1, multiple=False, kept=True)
    assert sender.take() == [1]
    assert sender.window.interrupted("406 too large")
    assert sender.take() == [2]
    sender.window.confirmed(1, multiple=False, kept=True)
    assert sender.take() == [3, 4], "all suspects are cleared"
    outcomes = sender.decided()
    assert [type(outcome) for outcome in outcomes] == [Sent, Rejected, Sent]
    assert isinstance(outcomes[1], Rejected)
    assert outcomes[1].reason == "406 too large"


def test_interruption_with_nothing_in_flight_is_nobodys_fault() -> None:
    assert not Sender(*several(2)).window.interrupted("406")


def test_withdrawn_messages_do_not_go_and_are_no_suspects() -> None:
    sender = Sender(*several(4))
    assert sender.take() == [0, 1, 2]
    sender.window.interrupted("406")
    sender.batch.cancelled = True
    assert sender.take() == []
    other = Batch(3)
    message = to_message(make_envelope(), "", "order.paid")
    sender.window.add([Flight(other, place, message) for place in range(3)])
    assert sender.take() == [0, 1, 2]


def test_what_was_returned_is_forgotten_once_it_is_told() -> None:
    """A link may live for months."""
    sender = Sender(*several(2), limit=2)
    sender.take()
    sender.window.returned(sender.ids[0], "NO_ROUTE")
    sender.window.confirmed(2, multiple=True, kept=True)
    assert [type(outcome) for outcome in sender.decided()] == [Rejected, Sent]
    assert not sender.window._returned
