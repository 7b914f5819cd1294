"""The publisher: options, and one batch after the other through a link."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING

from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.backends.publishers.inflight import Batch
from django_outbox_lock.backends.publishers.rabbitmq.link import Link
from django_outbox_lock.backends.publishers.rabbitmq.messages import (
    Message,
    check_short,
    to_message,
)
from django_outbox_lock.backends.publishers.rabbitmq.parameters import parameters
from django_outbox_lock.backends.publishers.rabbitmq.window import Flight
from django_outbox_lock.checked import count
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Rejected

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from django_outbox_lock.envelope import Envelope


class RabbitMQPublisher(BasePublisher):
    """Publishes persistent messages to one exchange and waits for the broker's confirmations.

    ``routing_key`` may contain ``{topic}`` and ``{key}``; None is the topic. ``window`` is the
    number of messages that may wait for their confirmations at one moment. Times are in seconds.
    The connection has a thread of its own, is opened by the first ``publish_batch`` and opened
    again after a failure. ``connect_timeout`` and ``confirm_timeout`` together must be below the
    sweeper's ``send_timeout``, else a broker that is silent looks like a message that hangs, and
    uses up its attempts.
    """

    def __init__(
        self,
        *,
        url: str,
        exchange: str = "",
        routing_key: str | None = None,
        mandatory: bool = True,
        window: int = 500,
        connect_timeout: float = 10.0,
        confirm_timeout: float = 15.0,
        heartbeat: int = 30,
    ) -> None:
        self._parameters = functools.partial(
            parameters,
            url,
            connect_timeout=connect_timeout,
            confirm_timeout=confirm_timeout,
            heartbeat=heartbeat,
        )
        self._parameters()  # raises for what is wrong with them
        if not isinstance(exchange, str):
            raise TypeError(f"exchange must be a text ('' is the default one), not {exchange!r}.")
        self._exchange = check_short("the exchange", exchange)
        self._routing_key = _template(routing_key)
        self._mandatory = mandatory
        self._window = count("window", window)
        self._connect_timeout = connect_timeout
        self._confirm_timeout = confirm_timeout
        self._link: Link | None = None
        self._opening = threading.Lock()
        self._pid = os.getpid()

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Generator[Outcome]:
        """Each outcome once the broker has confirmed, refused or returned the message.

        ``Rejected``: returned as unroutable, larger than the broker takes, or not to be expressed
        in AMQP. ``Retry``: refused by a queue. ``TransportDown``: the connection, the exchange or
        the permissions failed, or no confirmation came within ``confirm_timeout``.
        """
        if not envelopes:
            return
        link = self._connected()
        batch = Batch(len(envelopes))
        give_up = functools.partial(link.give_up, self._confirm_timeout)
        link.submit(batch, self._flights(batch, envelopes, link.max_header_size))
        try:
            yield from batch.outcomes(self._confirm_timeout, give_up)
        finally:
            link.withdraw(batch)

    def close(self) -> None:
        """Close the connection; a call that is in progress gets ``TransportDown``."""
        if self._pid == os.getpid() and self._link is not None:
            self._link.close()

    def _connected(self) -> Link:
        if self._pid != os.getpid():
            # The socket and the thread are the parent's, and so may be the lock.
            self._link, self._opening, self._pid = None, threading.Lock(), os.getpid()
        with self._opening:
            if self._link is None or self._link.failure is not None:
                self._link = self._new_link()
            return self._link

    def _new_link(self) -> Link:
        try:
            link = Link(self._parameters(), mandatory=self._mandatory, window=self._window)
            link.open(self._connect_timeout)
        except (OSError, RuntimeError, ValueError) as error:
            # The options were in order once. The files of certificates are gone for now, or there
            # are no more files or threads for this process: no message's fault.
            raise TransportDown(f"No connection to RabbitMQ could be made: {error}") from error
        return link

    def _flights(self, batch: Batch, envelopes: Sequence[Envelope], limit: int) -> list[Flight]:
        flights = []
        for index, envelope in enumerate(envelopes):
            try:
                flights.append(Flight(batch, index, self._message(envelope, limit)))
            except ValueError as error:
                batch.settle(index, Rejected(str(error)))
        return flights

    def _message(self, envelope: Envelope, limit: int) -> Message:
        routing_key = self._routing_key.format(topic=envelope.topic, key=envelope.key or "")
        message = to_message(envelope, self._exchange, routing_key)
        if message.header_size > limit:
            raise ValueError(f"The headers take more than a frame of the broker, {limit} bytes.")
        return message


def _template(routing_key: str | None) -> str:
    template = "{topic}" if routing_key is None else routing_key
    try:
        template.format(topic="", key="")
    except (LookupError, ValueError, AttributeError) as error:
        raise ValueError(f"routing_key has {{topic}}, {{key}}: not {routing_key!r}.") from error
    return template
