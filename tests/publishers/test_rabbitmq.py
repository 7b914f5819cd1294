"""The RabbitMQ publisher against a real broker; what only needs arithmetic is tested elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pika
import pytest

from django_outbox_lock.backends.publishers.rabbitmq import RabbitMQPublisher, to_envelope
from django_outbox_lock.backends.publishers.rabbitmq.parameters import parameters
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Rejected, Retry, Sent
from tests.chaos.proxy import Proxy
from tests.publishers.broker import Broker
from tests.publishers.envelopes import make_envelopes
from tests.servers import ports
from tests.servers.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from django_outbox_lock.envelope import Envelope
    from tests.conftest import WaitUntil
    from tests.servers import Server

    Publish = Callable[..., list[Outcome]]
    MakePublisher = Callable[..., RabbitMQPublisher]

pytestmark = pytest.mark.server("rabbitmq")

QUEUE = "order.paid"  # where the factory's messages go through the default exchange


@pytest.fixture
def url() -> str:
    return os.environ["BROKER_URL"]


@pytest.fixture
def broker(url: str) -> Broker:
    """The broker of the whole run, with an empty queue; never kill it."""
    broker = Broker(url)
    broker.declare(QUEUE)
    return broker


@pytest.fixture
def make(broker: Broker) -> Iterator[MakePublisher]:
    """A function that builds a publisher, to this broker unless ``url`` says otherwise."""
    with contextlib.ExitStack() as stack:

        def build(**options: Any) -> RabbitMQPublisher:
            publisher = RabbitMQPublisher(**{"url": broker.url} | options)
            stack.callback(publisher.close)
            return publisher

        yield build


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(url).port or 5672) as proxy:
        yield proxy


def through(proxy: Proxy) -> str:
    return f"amqp://guest:guest@127.0.0.1:{proxy.port}/"


def batch(count: int = 1, **fields: Any) -> list[Envelope]:
    return make_envelopes(count, **fields)


def publish(publisher: RabbitMQPublisher, envelopes: list[Envelope]) -> list[Outcome]:
    return list(publisher.publish_batch(envelopes))


def our_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("outbox-rabbitmq")]


# What the broker says of a message


def test_case_025_unroutable_is_rejected_in_the_brokers_words(
    broker: Broker, make: MakePublisher
) -> None:
    """Case 025: the broker returns the message and confirms it all the same."""
    envelopes = [*batch(), *batch(topic="nowhere"), *batch(3), *batch(topic="nowhere"), *batch()]
    outcomes = publish(make(), envelopes)
    assert [type(o) for o in outcomes] == [Sent, Rejected, Sent, Sent, Sent, Rejected, Sent]
    assert isinstance(outcomes[1], Rejected)
    assert outcomes[1].reason == "312 NO_ROUTE: exchange '', routing key 'nowhere'"
    assert broker.depth(QUEUE) == 5


def test_unroutable_among_equal_ids_is_told_for_each(make: MakePublisher) -> None:
    (envelope,) = batch(topic="nowhere")
    assert [type(o) for o in publish(make(), [envelope] * 30)] == [Rejected] * 30


def test_not_mandatory_lets_the_broker_drop(make: MakePublisher) -> None:
    assert publish(make(mandatory=False), batch(topic="nowhere")) == [Sent()]


def test_full_queue_refuses_for_now(broker: Broker, make: MakePublisher) -> None:
    broker.declare(QUEUE, x_max_length=50, x_overflow="reject-publish")
    outcomes = publish(make(), batch(500))
    refused = [outcome for outcome in outcomes if isinstance(outcome, Retry)]
    assert len(refused) + outcomes.count(Sent()) == 500
    assert outcomes.count(Sent()) == broker.depth(QUEUE)
    assert len(refused) >= 400
    assert refused[0].reason == "RabbitMQ refused the message (basic.nack)."


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"topic": "ü" * 128}, "AMQP takes 255 bytes, but the routing key has 256."),
        ({"headers": {"ü" * 128: ""}}, "has 256"),
        ({"content_type": "x" * 256}, "the content type has 256"),
        ({"headers": {"large": "x" * 140_000}}, "The headers take more than a frame"),
        ({"headers": {"half": "\ud83d"}}, "surrogates not allowed"),
    ],
)
def test_what_amqp_cannot_carry_is_rejected(
    make: MakePublisher, fields: dict[str, Any], words: str
) -> None:
    outcomes = publish(make(), [*batch(), *batch(**fields), *batch()])
    assert [type(outcome) for outcome in outcomes] == [Sent, Rejected, Sent]
    assert isinstance(outcomes[1], Rejected)
    assert words in outcomes[1].reason


def test_properties_as_a_consumer_sees_them(broker: Broker, make: MakePublisher) -> None:
    (envelope,) = batch(key="o-1", headers={"tenant": "7"}, correlation_id="c", causation_id="d")
    publish(make(), [envelope])
    ((properties, body),) = broker.raw(QUEUE, 1)
    assert properties.message_id == str(envelope.message_id)
    assert properties.content_type == "application/json"
    assert properties.correlation_id == "c"
    assert properties.timestamp == 1738555506
    assert properties.delivery_mode == 2
    assert properties.headers == {
        "tenant": "7",
        "outbox-topic": "order.paid",
        "outbox-key": "o-1",
        "outbox-correlation-id": "c",
        "outbox-causation-id": "d",
        "outbox-created-at": "2025-02-03T04:05:06.789012+00:00",
    }
    assert to_envelope(properties, body) == envelope


def test_exchange_and_routing_key_are_options(broker: Broker, make: MakePublisher) -> None:
    with broker.channel() as channel:
        channel.exchange_declare("shop", "direct")
        channel.queue_bind(QUEUE, "shop", "to/o-1/order.sent")
    publisher = make(exchange="shop", routing_key="to/{key}/{topic}")
    (envelope,) = batch(topic="order.sent", key="o-1")
    assert publish(publisher, [envelope]) == [Sent()]
    assert broker.drain(QUEUE, 1) == [envelope]


# When the way to the broker is broken


def test_case_005_missing_exchange_is_no_messages_fault(
    broker: Broker, make: MakePublisher
) -> None:
    """Case 005: nothing counts as sent, and nothing dies, while the exchange is missing."""
    with broker.channel() as channel:
        channel.exchange_delete("later")
    publisher = make(exchange="later")
    with pytest.raises(TransportDown, match="404 NOT_FOUND - no exchange 'later' in vhost '/'"):
        publish(publisher, batch(20))
    with broker.channel() as channel:
        channel.exchange_declare("later", "fanout")
        channel.queue_bind(QUEUE, "later", "")
    assert publish(publisher, batch(20)) == [Sent()] * 20


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("guest:wrong-secret@127.0.0.1:{port}/", "ACCESS_REFUSED"),
        ("guest:guest@127.0.0.1:{port}/nowhere", "NOT_ALLOWED - vhost nowhere not found"),
        ("guest:guest@127.0.0.1:{closed}/", "Connection refused"),
        ("guest:guest@host.invalid:{port}/", "Name or service not known"),
    ],
)
def test_failed_connection_says_why(make: MakePublisher, url: str, place: str, words: str) -> None:
    reservation = ports.reserve()
    address = place.format(port=urlsplit(url).port, closed=ports.number(reservation))
    with pytest.raises(TransportDown, match=words) as failure:
        publish(make(url=f"amqp://{address}"), batch())
    assert "wrong-secret" not in str(failure.value)
    reservation.close()


def test_case_023_hanging_broker_costs_no_more_than_the_timeout(
    broker: Broker, make: MakePublisher, proxy: Proxy
) -> None:
    """Case 023: a send that gets no answer ends; afterwards the publisher works again."""
    # What is not frozen must keep within them, on a busy machine, too.
    publisher = make(url=through(proxy), confirm_timeout=1.5, connect_timeout=2)
    publish(publisher, batch())
    with proxy.freeze():
        began = time.monotonic()
        with pytest.raises(TransportDown, match=r"confirmed nothing in 1\.5 s"):
            publish(publisher, batch(5))
        with pytest.raises(TransportDown, match=r"gave no answer in 2 s"):
            publish(publisher, batch())
        assert time.monotonic() - began < 1.5 + 2 + 5
    assert publish(publisher, batch()) == [Sent()]


def test_lost_while_idle_is_found_before_the_next_batch(
    make: MakePublisher, proxy: Proxy, wait_until: WaitUntil
) -> None:
    publisher = make(url=through(proxy))
    publish(publisher, batch())
    with proxy.down():
        wait_until(lambda: our_threads() == [], what="the connection's thread ends")
    assert publish(publisher, batch()) == [Sent()]


def test_close_ends_a_call_in_progress(make: MakePublisher, proxy: Proxy) -> None:
    publisher = make(url=through(proxy))
    publish(publisher, batch())
    with proxy.freeze():
        closer = threading.Timer(1, publisher.close)  # when the call has begun for sure
        closer.start()
        with pytest.raises(TransportDown, match="closed"):
            publish(publisher, batch())
    closer.join(10)


# Its connection


def test_one_connection_serves_all_batches_and_its_thread_ends(make: MakePublisher) -> None:
    publisher = make()
    publish(publisher, batch())
    threads = our_threads()
    link = publisher._link
    publish(publisher, batch(3))
    assert publisher._link is link
    assert len(threads) == len(our_threads()) == 1
    publisher.close()
    assert our_threads() == []


def test_nothing_is_opened_for_nothing(make: MakePublisher) -> None:
    assert publish(make(), []) == []
    assert our_threads() == []


def test_stop_leaves_the_rest_unpublished(broker: Broker, make: MakePublisher) -> None:
    publisher = make(window=10)
    outcomes = publisher.publish_batch(batch(5000))
    next(outcomes)
    outcomes.close()
    assert publish(publisher, batch()) == [Sent()]
    assert broker.depth(QUEUE) < 5000


def exit_codes(child: int) -> list[int]:
    pid, status = os.waitpid(child, os.WNOHANG)
    return [os.waitstatus_to_exitcode(status)] if pid else []


def test_forked_child_has_a_connection_of_its_own(
    broker: Broker, make: MakePublisher, wait_until: WaitUntil
) -> None:
    publisher = make()
    publish(publisher, batch())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is what is tried here
        child = os.fork()
    if child == 0:
        publisher.close()  # the parent's connection stays
        os._exit(0 if publish(publisher, batch()) == [Sent()] else 1)
    assert wait_until(lambda: exit_codes(child), timeout=30, what="the child ends") == [0]
    assert publish(publisher, batch()) == [Sent()]
    assert broker.depth(QUEUE) == 3


def test_pipelining_beats_waiting_for_each(
    broker: Broker, make: MakePublisher, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher = make()
    publish(publisher, batch())
    envelopes = batch(2000, body=b"x" * 300)
    began = time.perf_counter()
    assert publish(publisher, envelopes) == [Sent()] * 2000
    pipelined = 2000 / (time.perf_counter() - began)
    with broker.channel() as channel:
        channel.confirm_delivery()
        began = time.perf_counter()
        for envelope in envelopes[:300]:
            channel.basic_publish(
                "", QUEUE, envelope.body, pika.BasicProperties(delivery_mode=2), mandatory=True
            )
        each = 300 / (time.perf_counter() - began)
    with capsys.disabled():
        print(f"\nRabbitMQ: {pipelined:.0f} messages/s pipelined, {each:.0f} one by one")
    assert pipelined > each


# A broker of its own, with limits, TLS, and crashes


class LimitedBroker(RabbitMQ):
    """Takes messages of 1 MiB, and speaks TLS on ``tls_port`` as localhost."""

    def __init__(self) -> None:
        super().__init__({"max_message_size": "1048576"})
        self._tls = ports.reserve()

    @property
    def tls_port(self) -> int:
        return ports.number(self._tls)

    @property
    def certificate(self) -> Path:
        return self.directory / "certificate.pem"

    def prepare(self) -> None:
        key = self.directory / "key.pem"
        files = ["-out", str(self.certificate), "-keyout", str(key)]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        subprocess.run(
            ["openssl", "req", *kind, *names, *files], check=True, capture_output=True, timeout=60
        )
        self.settings["listeners.ssl.default"] = f"127.0.0.1:{self.tls_port}"
        self.settings["ssl_options.certfile"] = str(self.certificate)
        self.settings["ssl_options.keyfile"] = str(key)
        super().prepare()

    def close(self) -> None:
        super().close()
        self._tls.close()


@pytest.fixture(scope="module")
def private() -> Iterator[LimitedBroker]:
    """A broker of this module's own, which may be killed."""
    with LimitedBroker() as server:
        yield server


@pytest.fixture
def fragile(private: LimitedBroker) -> Broker:
    broker = Broker(private.url)
    broker.declare(QUEUE)
    return broker


def test_case_021_only_the_large_message_is_rejected(fragile: Broker, make: MakePublisher) -> None:
    """Case 021: one body above the broker's limit closes the channel under all of them."""
    envelopes = batch(30)
    envelopes[12:13] = batch(body=b"x" * 1_500_000)
    publisher = make(url=fragile.url)
    for part in (envelopes, batch(30)):
        outcomes = publish(publisher, part)
        large = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, Sent)]
        assert large == ([12] if part is envelopes else [])
    rejected = publish(publisher, envelopes[12:13])[0]
    assert isinstance(rejected, Rejected)
    assert "406 PRECONDITION_FAILED" in rejected.reason
    assert "larger than configured max size 1048576" in rejected.reason
    ids = {envelope.message_id for envelope in fragile.drain(QUEUE, 59)}
    assert len(ids) == 59
    assert envelopes[12].message_id not in ids


def test_tls_with_a_trusted_certificate(
    fragile: Broker, private: LimitedBroker, make: MakePublisher
) -> None:
    place = f"amqps://guest:guest@localhost:{private.tls_port}/"
    trust = f"?ssl_options={{'ca_certs':'{private.certificate}'}}"
    assert publish(make(url=place + trust), batch()) == [Sent()]
    with pytest.raises(TransportDown, match="CERTIFICATE_VERIFY_FAILED"):
        publish(make(url=place), batch())


def test_broker_killed_in_the_middle_of_a_batch(
    fragile: Broker, private: LimitedBroker, make: MakePublisher
) -> None:
    """Also case 007: an outage is no message's failure."""
    window = 50
    publisher = make(url=fragile.url, window=window)
    envelopes = batch(5000)
    outcomes = iter(publisher.publish_batch(envelopes))
    decided = list(itertools.islice(outcomes, 100))
    private.kill()
    with pytest.raises(TransportDown):
        decided.extend(outcomes)
    sent = len(decided)
    assert 100 <= sent < 5000
    assert decided == [Sent()] * sent
    with pytest.raises(TransportDown, match="Connection refused"):
        publish(publisher, envelopes[sent:])

    private.start()
    assert publish(publisher, envelopes[sent:]) == [Sent()] * (5000 - sent)
    arrived = [envelope.message_id for envelope in fragile.drain(QUEUE, 5000, timeout=30)]
    assert set(arrived) == {envelope.message_id for envelope in envelopes}
    assert len(arrived) - 5000 <= 2 * window, "more duplicates than messages in flight"


def test_broker_that_blocks_publishers_is_named(
    private_server: Callable[..., Server],
    make: MakePublisher,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By both of those who wait: the batch for its confirmations, pika for the end of the block."""
    server = private_server("rabbitmq", settings={"vm_memory_high_watermark.absolute": "1MB"})
    Broker(server.url).declare(QUEUE)

    def failure(*, pika_waits: float) -> str:
        def parameters_(url: str, **options: Any) -> pika.URLParameters:
            result = parameters(url, **options)
            result.blocked_connection_timeout = pika_waits
            return result

        monkeypatch.setattr(f"{RabbitMQPublisher.__module__}.parameters", parameters_)
        publisher = make(url=server.url, confirm_timeout=1)

        def attempt() -> str:
            try:
                publish(publisher, batch())
            except TransportDown as down:
                return str(down)
            return ""

        return wait_until(attempt)

    where = f"RabbitMQ at 127.0.0.1:{server.port}"
    blocks = "It blocks publishers: low on memory."
    assert failure(pika_waits=6) == f"{where} confirmed nothing in 1 s. {blocks}"
    assert failure(pika_waits=0.1) == f"{where}: Blocked connection timeout expired. {blocks}"
    wait_until(lambda: our_threads() == [], what="the blocked connections end")


def test_missing_pika_is_named_with_the_extra() -> None:
    code = (
        "import sys; sys.modules['pika'] = None\n"
        "import django_outbox_lock.backends.publishers.rabbitmq"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "run `pip install django-outbox-lock[rabbitmq]`" in done.stderr.splitlines()[-1]
