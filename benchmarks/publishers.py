"""Publishing to RabbitMQ with confirms: messages per second, medians of several rounds.

The publisher's pipelined confirms stand beside what its client library offers ready-made: a
blocking connection that waits for the confirmation of each message. Same broker, same rounds,
persistent messages to one durable queue.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import pika

from benchmarks import project
from django_outbox_lock.backends.publishers.rabbitmq import RabbitMQPublisher
from django_outbox_lock.envelope import Envelope
from django_outbox_lock.outcomes import Sent
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUE = "benchmark"
WINDOWS = (50, 500)
PAGE = 1000


def envelopes(count: int, size: int) -> list[Envelope]:
    now = dt.datetime.now(dt.UTC)
    body = b"x" * size
    return [
        Envelope(uuid.uuid4(), QUEUE, None, body, "application/json", {}, "", "", now)
        for _ in range(count)
    ]


def pipelined(publisher: RabbitMQPublisher, messages: Sequence[Envelope]) -> float:
    """Messages per second through ``publish_batch``, in pages as the sweeper hands them over."""

    def work() -> None:
        for start in range(0, len(messages), PAGE):
            outcomes = publisher.publish_batch(messages[start : start + PAGE])
            if any(outcome != Sent() for outcome in outcomes):
                raise RuntimeError("The broker refused a message; nothing was measured.")

    return len(messages) / project.seconds(work)


def one_by_one(channel: Any, messages: Sequence[Envelope]) -> float:
    """Messages per second where each waits for its confirmation."""
    persistent = pika.BasicProperties(delivery_mode=2)

    def work() -> None:
        for message in messages:
            channel.basic_publish("", QUEUE, message.body, persistent, mandatory=True)

    return len(messages) / project.seconds(work)


def measure(url: str, rounds: int, count: int, size: int) -> dict[str, float]:
    """The medians, by name; the queue is emptied between the rounds."""
    messages = envelopes(count, size)
    figures: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = stack.enter_context(contextlib.closing(connection)).channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        publishers = {
            f"window {window}": RabbitMQPublisher(url=url, window=window) for window in WINDOWS
        }
        for publisher in publishers.values():
            stack.callback(publisher.close)
            pipelined(publisher, messages[:1])
        for _ in range(rounds):
            part = messages[: count // 10]
            figures.setdefault("blocking", []).append(one_by_one(channel, part))
            for name, publisher in publishers.items():
                figures.setdefault(name, []).append(pipelined(publisher, messages))
            channel.queue_purge(QUEUE)
    return {name: project.median(values) for name, values in figures.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Start a broker and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--size", type=int, default=300, help="bytes of a body")
    options = parser.parse_args(arguments)
    server = servers.get("rabbitmq")
    if missing := server.missing():
        print(f"RabbitMQ: not measured: {missing}")
        return
    with server:
        figures = measure(server.url, options.rounds, options.count, options.size)
        print(f"RabbitMQ {server.version}, bodies of {options.size} bytes: messages/s")
    for name, rate in figures.items():
        print(f"{name:>12}{rate:>10,.0f}{rate / figures['blocking']:>8.1f}")


if __name__ == "__main__":
    main()
