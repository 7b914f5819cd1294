"""The circuits of an outbox as one holder of the lock knows them during its cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.models import Max

from django_outbox_lock.breaker import CLOSED, HALF_OPEN, RETURNING, Breaker, Circuit
from django_outbox_lock.clock import SECOND
from django_outbox_lock.models import OutboxMessage, TopicState
from django_outbox_lock.outcomes import Retry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django_outbox_lock.engines.items import Item
    from django_outbox_lock.engines.routing import Routing
    from django_outbox_lock.outcomes import Outcome

NO_ROUTE = "No route leads from here for this topic."


class Circuits:
    """Read once a cycle: only the holder of the lock writes them."""

    def __init__(self, using: str, breaker: Breaker, unroutable_after: float) -> None:
        self.breaker = breaker
        self._using = using
        self._unroutable_after = int(unroutable_after * SECOND)
        self._circuits: dict[str, Circuit] = {}
        self._newest: int | None = None

    def load(self) -> None:
        """Read the topics that are not simply closed."""
        rows = TopicState.objects.using(self._using).notable().values()
        self._circuits = {row["topic"]: Circuit.of(row) for row in rows}

    def __iter__(self) -> Iterator[Circuit]:
        return iter(list(self._circuits.values()))

    def get(self, topic: str) -> Circuit | None:
        """The circuit of a topic; None when it is closed, without failures."""
        return self._circuits.get(topic)

    def known(self, topic: str) -> Circuit:
        """The circuit of a topic, to be changed."""
        return self._circuits.setdefault(topic, Circuit(topic))

    def closed(self, topic: str) -> bool:
        """Whether messages of the topic may go."""
        circuit = self._circuits.get(topic)
        return circuit is None or not circuit.parks

    def note(self, item: Item, outcome: Outcome) -> None:
        """Learn from what became of a message.

        One that fails again and again says nothing new about its topic: only the first attempt of
        each counts, and every probe.
        """
        topic = item.row.topic
        if isinstance(outcome, Retry):
            if item.row.attempts == 0 or not self.closed(topic):
                self.breaker.failed(self.known(topic), outcome.reason)
        elif circuit := self._circuits.get(topic):
            self.breaker.succeeded(circuit)

    def trip(self, topic: str, error: str) -> None:
        """Open the circuit of a topic."""
        self.breaker.trip(self.known(topic), error)

    def put_off(self, topic: str, error: str) -> None:
        """Open the circuit of a topic that was not tried, because of others."""
        circuit = self.known(topic)
        if circuit.breaker == CLOSED:
            self.breaker.trip(circuit, error)
        elif circuit.breaker == HALF_OPEN:
            self.breaker.put_off(circuit, error)

    # Topics without a route

    def wait_for_route(self, topic: str, message_id: int, now: int) -> bool:
        """Note that a message has no route; False once it has waited for one long enough.

        The messages of a topic wait in generations, so that each waits its time: the clock starts
        with the first that is met, and what is written later waits for the next turn.
        """
        circuit = self.known(topic)
        if circuit.unroutable_since is not None:
            if now < circuit.unroutable_since + self._unroutable_after:
                return True
            if message_id <= (circuit.probe_id or 0):
                return False
            circuit.unroutable_since = None
        circuit.unroutable_in = 0
        circuit.probe_id = self._newest_message()
        circuit.last_error = NO_ROUTE
        circuit.changed = True
        return True

    def _newest_message(self) -> int:
        if self._newest is None:
            rows = OutboxMessage.objects.using(self._using)
            self._newest = rows.aggregate(newest=Max("id"))["newest"] or 0
        return self._newest

    def wants_attention(self, circuit: Circuit, routing: Routing, now: int) -> bool:
        """Whether parked rows are to come back, or a probe is to be chosen, at the time ``now``."""
        if circuit.unroutable_since is not None:
            over = now >= circuit.unroutable_since + self._unroutable_after
            return over or routing.name(circuit.topic) is not None
        return circuit.returning or circuit.needs_probe(now)

    def want_attention(self, routing: Routing, now: int) -> bool:
        """Whether any of them wants it."""
        return any(self.wants_attention(circuit, routing, now) for circuit in self)

    def found_route(self, circuit: Circuit) -> None:
        """Let the messages of the topic come back."""
        circuit.unroutable_since = circuit.probe_id = None
        circuit.breaker, circuit.open_until, circuit.changed = CLOSED, RETURNING, True

    def all_returned(self, circuit: Circuit) -> None:
        """Nothing is parked for the topic any more."""
        circuit.unroutable_since = None
        if circuit.breaker == CLOSED:
            circuit.open_until = None
        circuit.changed = True

    # Writing

    def changed(self) -> list[Circuit]:
        """The circuits that are to be written."""
        return [circuit for circuit in self._circuits.values() if circuit.changed]

    def written(self, circuits: Iterable[Circuit], now: int) -> None:
        """The server has computed what was asked of it, at about the time ``now``."""
        for circuit in circuits:
            if circuit.open_in is not None:
                circuit.open_until = now + circuit.open_in
            if circuit.unroutable_in is not None:
                circuit.unroutable_since = now + circuit.unroutable_in
            circuit.open_in = circuit.unroutable_in = None
            circuit.changed = False
        self._newest = None
