"""A RabbitMQ broker as its consumers and its operators see it."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pika

from django_outbox_lock.backends.publishers.rabbitmq import to_envelope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.envelope import Envelope


class Broker:
    """``url`` leads to the broker; every method uses a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def declare(self, *queues: str, **arguments: Any) -> None:
        """Empty durable queues with these arguments (``x_max_length`` is ``x-max-length``)."""
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        with self.channel() as channel:
            for queue in queues:
                channel.queue_delete(queue)
                channel.queue_declare(queue, durable=True, arguments=named)

    def depth(self, queue: str) -> int:
        """Messages that wait in the queue."""
        with self.channel() as channel:
            count: int = channel.queue_declare(queue, passive=True).method.message_count
            return count

    def drain(self, queue: str, count: int = 0, timeout: float = 10.0) -> list[Envelope]:
        """Take everything out of the queue, waiting until there were at least ``count``."""
        return [
            to_envelope(properties, body) for properties, body in self.raw(queue, count, timeout)
        ]

    def raw(self, queue: str, count: int = 0, timeout: float = 10.0) -> list[tuple[Any, bytes]]:
        """As ``drain``, with the properties as they came."""
        taken: list[tuple[Any, bytes]] = []
        deadline = time.monotonic() + timeout
        with self.channel() as channel:
            messages = channel.consume(queue, auto_ack=True, inactivity_timeout=0.1)
            for method, properties, body in messages:
                if method:
                    taken.append((properties, body))
                elif len(taken) >= count:
                    return taken
                elif time.monotonic() > deadline:
                    break
        raise AssertionError(f"{len(taken)} messages in {queue!r}, not {count}, in {timeout} s")

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        with contextlib.closing(connection):
            yield connection.channel()
