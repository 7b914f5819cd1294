"""The in-memory publisher keeps what it accepts and does what tests tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_outbox_lock.backends.publishers.memory import MemoryPublisher
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Rejected, Retry, Sent
from tests.publishers.envelopes import make_envelope, make_envelopes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.envelope import Envelope


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    MemoryPublisher.reset()
    yield
    MemoryPublisher.reset()


def reject_orders(envelope: Envelope) -> Outcome | None:
    return Rejected("no orders") if envelope.topic.startswith("order.") else None


def test_all_instances_share_the_outbox() -> None:
    one, other = make_envelopes(2)
    list(MemoryPublisher().publish_batch([one]))
    list(MemoryPublisher().publish_batch([other]))
    assert MemoryPublisher.outbox == MemoryPublisher.seen == [one, other]


@pytest.mark.parametrize("decide", [reject_orders, f"{__name__}.reject_orders"])
def test_decide_is_asked_about_each(decide: str) -> None:
    order, mail = make_envelope(), make_envelope(topic="mail.sent")
    outcomes = list(MemoryPublisher(decide=decide).publish_batch([order, mail]))
    assert isinstance(outcomes[0], Rejected)
    assert outcomes[1] == Sent()
    assert MemoryPublisher.outbox == [mail]
    assert MemoryPublisher.seen == [order, mail]


def test_script_comes_first_and_ends() -> None:
    retry = Retry("busy", after=3)
    MemoryPublisher.script(retry, Sent(), TransportDown("cut"))
    envelopes = make_envelopes(4)
    publisher = MemoryPublisher(decide=reject_orders)
    outcomes = iter(publisher.publish_batch(envelopes))
    assert next(outcomes) is retry
    assert next(outcomes) == Sent()
    with pytest.raises(TransportDown):
        next(outcomes)
    assert isinstance(next(iter(publisher.publish_batch(envelopes[3:]))), Rejected)
    assert MemoryPublisher.outbox == envelopes[1:2]
