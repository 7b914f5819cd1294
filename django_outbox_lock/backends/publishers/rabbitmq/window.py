"""Which messages may be published now, and what the broker's answers mean for each."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from django_outbox_lock.outcomes import Outcome, Rejected, Retry, Sent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_outbox_lock.backends.publishers.inflight import Batch
    from django_outbox_lock.backends.publishers.rabbitmq.messages import Message

# Of bodies in flight: the client library buffers whatever the socket does not take.
_MAX_BYTES = 16 * 1024 * 1024


class Flight(NamedTuple):
    """A message on its way, and where its outcome belongs."""

    batch: Batch
    place: int
    message: Message

    def settle(self, outcome: Outcome) -> None:
        self.batch.settle(self.place, outcome)


class Window:
    """The messages of one channel after the other: waiting, then in flight until an answer.

    At most ``limit`` are in flight. After an interruption, those that were go again one by one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Flight] = deque()
        self._in_flight: dict[int, Flight] = {}  # by delivery tag, in their order
        self._bytes = 0
        self._last_tag = 0
        self._returned: dict[str, deque[str]] = {}  # the broker's words by message id
        self._suspects = 0

    def add(self, flights: Iterable[Flight]) -> None:
        self._waiting.extend(flights)

    def take(self) -> Flight | None:
        """The next message, which is in flight from now on; None if none may go now."""
        limit = 1 if self._suspects else self._limit
        while self._waiting and len(self._in_flight) < limit and self._bytes < _MAX_BYTES:
            flight = self._waiting.popleft()
            if not flight.batch.cancelled:
                self._last_tag += 1
                self._in_flight[self._last_tag] = flight
                self._bytes += len(flight.message.body)
                return flight
            self._cleared()
        return None

    def confirmed(self, tag: int, *, multiple: bool, kept: bool) -> None:
        """The broker has answered for ``tag`` and, if ``multiple``, for all before it."""
        for each in self._tags(tag) if multiple else [tag]:
            flight = self._land(each)
            flight.settle(self._outcome(flight, kept=kept))

    def returned(self, message_id: str, words: str) -> None:
        """The message leads to no queue; the broker confirms it all the same, afterwards."""
        self._returned.setdefault(message_id, deque()).append(words)

    def interrupted(self, words: str) -> bool:
        """The broker has closed the channel because of a message, and does not say of which.

        One that was in flight alone is it. Several go again, each alone, as far as they are
        still wanted. False when there was none.
        """
        flights = list(self._in_flight.values())
        self._in_flight.clear()
        self._returned.clear()
        self._bytes = self._last_tag = 0
        if len(flights) == 1:
            flights[0].settle(Rejected(words))
            self._cleared()
        elif flights:
            self._waiting.extendleft(reversed(flights))
            self._suspects = len(flights)
        return bool(flights)

    def _tags(self, last: int) -> list[int]:
        return [tag for tag in self._in_flight if tag <= last]

    def _land(self, tag: int) -> Flight:
        flight = self._in_flight.pop(tag)
        self._bytes -= len(flight.message.body)
        self._cleared()
        return flight

    def _cleared(self) -> None:
        self._suspects = max(0, self._suspects - 1)

    def _outcome(self, flight: Flight, *, kept: bool) -> Outcome:
        message_id = flight.message.properties.message_id
        if words := self._returned.get(message_id):
            said = words.popleft()
            if not words:
                del self._returned[message_id]
            return Rejected(said)
        return Sent() if kept else Retry("RabbitMQ refused the message (basic.nack).")
