"""The shipped contract: every room keeps it, and it catches a publisher that lies."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.backends.publishers.callables import CallablePublisher
from django_outbox_lock.backends.publishers.memory import MemoryPublisher
from django_outbox_lock.backends.publishers.rabbitmq import RabbitMQPublisher
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Rejected, Sent
from django_outbox_lock.testing import PublisherContract
from tests.chaos.proxy import Proxy
from tests.publishers.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from django_outbox_lock.envelope import Envelope

REFUSED = "contract.refused"


class Reachable:
    """A transport that is a flag, for rooms without a real one."""

    down = False

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.down = True
        yield
        self.down = False

    def pass_through(self, envelope: Envelope) -> None:
        if self.down:
            raise TransportDown("cut")
        if envelope.topic == REFUSED:
            raise Rejected("refused")


class TestMemory(Reachable, PublisherContract):
    @pytest.fixture
    def publisher(self) -> Iterator[MemoryPublisher]:
        MemoryPublisher.reset()
        yield MemoryPublisher(decide=self.decide)
        MemoryPublisher.reset()

    def decide(self, envelope: Envelope) -> Outcome | None:
        try:
            self.pass_through(envelope)
        except Rejected as rejected:
            return rejected
        return None

    def received(self, count: int) -> Sequence[Envelope]:
        return MemoryPublisher.outbox


class TestCallables(Reachable, PublisherContract):
    @pytest.fixture
    def publisher(self) -> CallablePublisher:
        self.kept: list[Envelope] = []
        return CallablePublisher(handlers={"contract.*": self.handle})

    def handle(self, envelope: Envelope) -> None:
        self.pass_through(envelope)
        self.kept.append(envelope)

    def received(self, count: int) -> Sequence[Envelope]:
        return self.kept


@pytest.mark.server("rabbitmq")
class TestRabbitMQ(PublisherContract):
    @pytest.fixture
    def publisher(self) -> Iterator[RabbitMQPublisher]:
        self.broker = Broker(os.environ["BROKER_URL"])
        self.broker.declare(self.topic)
        with Proxy(urlsplit(self.broker.url).port or 5672) as self.proxy:
            publisher = RabbitMQPublisher(url=f"amqp://guest:guest@127.0.0.1:{self.proxy.port}/")
            yield publisher
            publisher.close()

    def received(self, count: int) -> Sequence[Envelope]:
        return self.broker.drain(self.topic, count)

    def cut(self) -> AbstractContextManager[None]:
        return self.proxy.down()


class Liar(BasePublisher):
    """The negative control: says ``Sent`` to everything, whatever became of it."""

    def __init__(self, inner: BasePublisher) -> None:
        self.inner = inner

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        for envelope in envelopes:
            with contextlib.suppress(TransportDown):
                list(self.inner.publish_batch([envelope]))
            yield Sent()


LIES = [
    "test_refused_is_not_sent",
    "test_refused_holds_back_nobody",
    "test_refused_after_a_stop_is_not_sent",
    "test_cut_off_nothing_is_decided",
    "test_cut_in_the_middle_claims_only_what_arrived",
]


@pytest.mark.parametrize("item", LIES)
def test_contract_catches_a_publisher_that_always_says_sent(item: str) -> None:
    contract = TestMemory()
    MemoryPublisher.reset()
    liar = Liar(MemoryPublisher(decide=contract.decide))
    with pytest.raises(AssertionError):
        getattr(contract, item)(liar)
    MemoryPublisher.reset()


def test_contract_leaves_out_what_does_not_apply() -> None:
    class ForTheConsole(PublisherContract):
        refused_topic = None
        has_transport = False

    names = {name for name in dir(ForTheConsole) if callable(getattr(ForTheConsole, name))}
    tests = {name for name in names if name.startswith("test_")}
    assert tests == {
        name
        for name in dir(PublisherContract)
        if name.startswith("test_") and not name.startswith(("test_refused", "test_cut"))
    }
